import assert from "node:assert/strict";
import { test } from "node:test";

import { Client, ServiceError, SessionLost, type StorageState } from "../src/index.js";
import { json, newClient, newGroup, serve } from "./support.js";

const STATE: StorageState = {
  cookies: [
    { name: "sid", value: "4f1c", domain: ".shop.example", path: "/", expires: -1, httpOnly: true, secure: true, sameSite: "Lax" },
  ],
  origins: [{ origin: "https://shop.example", localStorage: [{ name: "theme", value: "dark" }] }],
};

interface Stored {
  state: string;
  uses: number;
  errors: number;
  storage_state: StorageState;
}

async function newPool(client: Client, ...names: string[]): Promise<string> {
  const pool = newGroup();
  for (const name of names) {
    const body = JSON.stringify({ storage_state: STATE, user_data: { agent: name } });
    await client.call("PUT", `/v1/sessions/${pool}/${name}`, { body });
  }
  return pool;
}

function stored(client: Client, pool: string, name: string): Promise<Stored> {
  return client.call<Stored>("GET", `/v1/sessions/${pool}/${name}`);
}

test("a session is lent with its state, saved, and given back as good", async () => {
  const client = newClient();
  const pool = await newPool(client, "ada");
  const lent = await client.session(pool, { wait: 10 }, async (session) => {
    assert.deepEqual(session.user_data, { agent: "ada" });
    assert.equal(session.storage_state?.cookies[0]?.value, "4f1c");
    assert.equal((await stored(client, pool, "ada")).state, "leased");
    await session.save({ ...STATE, cookies: [{ ...STATE.cookies[0]!, value: "new" }] });
    return session.name;
  });
  const { state, uses, errors, storage_state } = await stored(client, pool, "ada");
  assert.deepEqual([lent, state, uses, errors], ["ada", "ready", 1, 0]);
  assert.equal(storage_state.cookies[0]?.value, "new");
});

test("a session whose work throws is bad, and the error is the one that was thrown", async () => {
  const client = newClient();
  const pool = await newPool(client, "ada");
  const work = client.session(pool, {}, () => Promise.reject(new RangeError("broken page")));
  await assert.rejects(work, RangeError);
  assert.equal((await stored(client, pool, "ada")).errors, 1);
});

test("a session that is stopped by its signal is interrupted, which is no error", async () => {
  const [client, stop] = [newClient(), new AbortController()];
  const pool = await newPool(client, "ada");
  const work = client.session(pool, { signal: stop.signal }, async () => {
    stop.abort(new RangeError("stopped"));
    stop.signal.throwIfAborted();
  });
  await assert.rejects(work, /stopped/);
  const { uses, errors, state } = await stored(client, pool, "ada");
  assert.deepEqual([uses, errors, state], [1, 0, "ready"]);
});

test("blocked and logged out say more than the end of the work", async () => {
  const client = newClient();
  const pool = await newPool(client, "ada", "ben");
  await client.session(pool, { name: "ada" }, async (session) => session.blocked());
  await client.session(pool, { name: "ben" }, async (session) => session.loggedOut());
  const states = [(await stored(client, pool, "ada")).state, (await stored(client, pool, "ben")).state];
  assert.deepEqual(states, ["blocked", "needs_login"]);
  await assert.rejects(client.session(pool), (error) => error instanceof ServiceError && error.hasType("no_session"));
});

test("a session in `await using` is bad unless it was released", async () => {
  const client = newClient();
  const pool = await newPool(client, "ada");
  {
    await using session = await client.session(pool);
    assert.equal(session.name, "ada");
  }
  assert.equal((await stored(client, pool, "ada")).errors, 1);
  {
    await using session = await client.session(pool);
    await session.release("good");
  }
  assert.equal((await stored(client, pool, "ada")).errors, 0.5);
});

test("one worker has a session at a time, and the next waits for it", async () => {
  const client = newClient();
  const pool = await newPool(client, "ada");
  let holders = 0;
  const work = async (): Promise<void> => {
    holders += 1;
    assert.equal(holders, 1);
    await stored(client, pool, "ada");
    holders -= 1;
  };
  await Promise.all(Array.from({ length: 4 }, () => client.session(pool, { wait: 60 }, work)));
  assert.equal((await stored(client, pool, "ada")).uses, 4);
});

test("a session that was taken away is lost: the work ends and nothing is saved", async () => {
  const client = newClient();
  const pool = await newPool(client, "ada");
  const work = client.session(pool, {}, async (session) => {
    await client.call("DELETE", `/v1/sessions/${pool}/ada`);
    await session.save(STATE).catch(() => undefined);
    assert.ok(session.signal.aborted);
    await new Promise(() => undefined); // a browser that does not end by itself
  });
  await assert.rejects(work, SessionLost);
});

test("a lease is renewed while the work lasts", async () => {
  const client = newClient();
  const pool = await newPool(client, "ada");
  const leaseEnd = async (): Promise<number> => {
    const [{ lease_expires }] = await client.call<[{ lease_expires: string }]>("GET", `/v1/sessions/${pool}`);
    return Date.parse(lease_expires);
  };
  await client.session(pool, { seconds: 10 }, async () => {
    const first = await leaseEnd();
    while ((await leaseEnd()) === first) await new Promise((resolve) => setTimeout(resolve, 100));
  });
});

test("a lease that arrives after its time is renewed before it is used", async () => {
  const lease = { lease_id: "x".repeat(32), seconds: 1, session: { name: "ada", storage_state: null, user_data: null } };
  const responses = [lease, { seconds: 300, saved: false }, {}];
  const server = await serve((_, response, index) => json(response, responses[index]));
  const client = new Client({ url: server.url, token: "t" });
  await client.session("shop", { wait: 60 }, async (session) => {
    await new Promise((resolve) => setTimeout(resolve, 20)); // the end of the lease would come now
    session.signal.throwIfAborted();
  });
  const methods = server.requests.map(({ method }) => method);
  assert.deepEqual(methods, ["POST", "PUT", "POST"]);
  server.close();
});
