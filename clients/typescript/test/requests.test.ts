import assert from "node:assert/strict";
import { test } from "node:test";

import { Client, ServiceError, type OutputInput } from "../src/index.js";
import { json, lamps, serve } from "./support.js";

const WRITTEN = { created: 1, updated: 0, unchanged: 0, items: [{ result: "created" }] };
const BUSY = { detail: [{ loc: [], msg: "The database does not respond", type: "unavailable" }] };

test("a service that is away is asked again with the same body, after the pause that it names", async () => {
  const server = await serve((_, response, index) => {
    if (index === 0) response.destroy();
    else if (index === 1) json(response, BUSY, 503, { "Retry-After": "1" });
    else json(response, WRITTEN);
  });
  const reasons: string[] = [];
  const client = new Client({ url: server.url, token: "t", onWait: (error) => reasons.push(error.message) });
  const began = performance.now();
  assert.equal((await client.push("shop", lamps(1))).created, 1);
  assert.ok(performance.now() - began >= 1000);
  assert.deepEqual(reasons, ["the connection was lost", "503: The database does not respond"]);
  assert.equal(new Set(server.requests.map(({ body }) => body)).size, 1);
  server.close();
});

test("patience ends with the service's own reason", async () => {
  const server = await serve((_, response) => json(response, BUSY, 503));
  const client = new Client({ url: server.url, token: "t", patience: 0.5 });
  await assert.rejects(client.push("shop", lamps(1)), { status: 503, message: "503: The database does not respond" });
  assert.ok(server.requests.length > 1);
  server.close();
});

test("a pause longer than the patience is not begun", async () => {
  const server = await serve((_, response) => json(response, BUSY, 429, { "Retry-After": "3600" }));
  const client = new Client({ url: server.url, token: "t", patience: 5 });
  await assert.rejects(client.push("shop", lamps(1)), { status: 429, retryAfter: 3600 });
  assert.equal(server.requests.length, 1);
  server.close();
});

test("an abort ends a pause at once", async () => {
  const server = await serve((_, response) => json(response, BUSY, 503, { "Retry-After": "60" }));
  const stop = new AbortController();
  const client = new Client({ url: server.url, token: "t", onWait: () => stop.abort(new RangeError("stopped")) });
  const reading = client.outputs("shop", { signal: stop.signal }).next();
  await assert.rejects(reading, /stopped/);
  server.close();
});

test("a call that was aborted before it began sets no timer, which would keep the process alive", async () => {
  const [client, setTimer] = [new Client({ url: "http://127.0.0.1:9", token: "t" }), globalThis.setTimeout];
  let timers = 0;
  globalThis.setTimeout = ((...given: Parameters<typeof setTimer>) => {
    timers += 1;
    return setTimer(...given);
  }) as typeof setTimer;
  try {
    const signal = AbortSignal.abort(new RangeError("stopped"));
    await assert.rejects(client.outputs("shop", { signal }).next(), /stopped/);
  } finally {
    globalThis.setTimeout = setTimer;
  }
  assert.equal(timers, 0);
});

test("what may have been done is not repeated where it would be done twice", async () => {
  const server = await serve((_, response) => response.destroy());
  const client = new Client({ url: server.url, token: "t" });
  const request = client.call("POST", "/v1/webhooks", { body: "{}", repeatable: false });
  await assert.rejects(request, (error) => error instanceof ServiceError && error.status === 0);
  assert.equal(server.requests.length, 1);
  server.close();
});

test("other refusals are not repeated", async () => {
  const detail = [{ loc: ["header", "Authorization"], msg: "The token is unknown", type: "auth_invalid" }];
  const server = await serve((_, response) => json(response, { detail }, 401));
  const client = new Client({ url: server.url, token: "t" });
  await assert.rejects(client.push("shop", lamps(1)), /^ServiceError: 401: header\.Authorization: The token is unknown$/);
  assert.equal(server.requests.length, 1);
  server.close();
});

test("a body that is too large is sent in halves, and one item that is too large is named", async () => {
  const server = await serve(({ body }, response) => {
    const items = JSON.parse(body) as { key_hash: string }[];
    if (items.length > 1 || items[0]?.key_hash === "lamp-2") json(response, { detail: [] }, 413);
    else json(response, WRITTEN);
  });
  const client = new Client({ url: server.url, token: "t" });
  await assert.rejects(client.push("shop", lamps(4)), { status: 413, message: /item at index 2/ });
  server.close();
});

test("the token does not follow a redirect", async () => {
  const other = await serve((_, response) => json(response, WRITTEN));
  const server = await serve((_, response) => response.writeHead(307, { Location: `${other.url}/v1/outputs/shop` }).end());
  const client = new Client({ url: server.url, token: "secret" });
  await assert.rejects(client.push("shop", lamps(1)), { status: 307, message: new RegExp(other.url) });
  assert.equal(other.requests.length, 0);
  for (const one of [server, other]) one.close();
});

test("a page that is not the service's is refused, and a response that is cut off is read again", async () => {
  const server = await serve((_, response, index) => {
    if (index === 0) response.writeHead(200, { "Content-Type": "application/json" }).end('{"created": 1, "upd');
    else response.writeHead(200, { "Content-Type": "text/html" }).end("<h1>Sign in</h1>");
  });
  const client = new Client({ url: server.url, token: "t" });
  await assert.rejects(client.push("shop", lamps(1)), /not JSON: is this the address of the service/);
  assert.equal(server.requests.length, 2);
  server.close();
});

test("a response that does not come is a lost one", async () => {
  const server = await serve(() => undefined);
  const client = new Client({ url: server.url, token: "t", timeout: 0.2, patience: 0.1 });
  await assert.rejects(client.push("shop", lamps(1)), /did not respond in time/);
  server.close();
});

test("an error of the items is not hidden by a refusal of those before it", async () => {
  const server = await serve((_, response) => json(response, { detail: [] }, 422));
  const client = new Client({ url: server.url, token: "t" });
  function* scraped(): Generator<OutputInput> {
    yield* lamps(1);
    throw new RangeError("the site is gone");
  }
  const error = await client.push("shop", scraped()).catch((error: unknown) => error);
  assert.ok(error instanceof ServiceError && error.cause instanceof RangeError);
  server.close();
});

test("a certificate that is not trusted is no lost connection", async () => {
  const cause = Object.assign(new Error("self-signed certificate"), { code: "DEPTH_ZERO_SELF_SIGNED_CERT" });
  const failing: typeof fetch = () => Promise.reject(new TypeError("fetch failed", { cause }));
  const client = new Client({ url: "https://data.example", token: "t", patience: 0, fetch: failing });
  await assert.rejects(client.push("shop", lamps(1)), { status: 0, message: /not trusted \(DEPTH_ZERO_SELF_SIGNED_CERT\): NODE_EXTRA_CA_CERTS/ });
});

test("an address or a token that is missing is said at once", () => {
  assert.throws(() => new Client({ url: "data.example", token: "t" }), /must start with http/);
  const token = process.env["SDS_TOKEN"];
  delete process.env["SDS_TOKEN"];
  assert.throws(() => new Client(), /no access token: set SDS_TOKEN, .*`scraping-data-service token create --organization 1` makes one/);
  process.env["SDS_TOKEN"] = token;
});
