import assert from "node:assert/strict";
import { test } from "node:test";

import { Client, ServiceError, type OutputInput, type Position } from "../src/index.js";
import { collect, lamp, lamps, newClient, newGroup } from "./support.js";

test("items are written in batches, and unchanged when they are written again", async () => {
  const [client, group, counts]: [Client, string, number[]] = [newClient(), newGroup(), []];
  const onBatch = (count: number): unknown => counts.push(count);
  assert.deepEqual(await client.push(group, lamps(1201), { onBatch }), { created: 1201, updated: 0, unchanged: 0 });
  assert.deepEqual(counts, [500, 500, 201]);
  assert.deepEqual(await client.push(group, lamps(3)), { created: 0, updated: 0, unchanged: 3 });
});

test("a batch has a limit of bytes too", async () => {
  const counts: number[] = [];
  await newClient().push(newGroup(), lamps(10), { batchBytes: 500, onBatch: (count) => counts.push(count) });
  assert.ok(counts.length > 2, String(counts));
});

test("an address that ends in /v1 is the same address", async () => {
  const client = new Client({ url: `${process.env["SDS_URL"]}/v1/` });
  assert.equal(client.url, process.env["SDS_URL"]);
  assert.deepEqual(await client.push(newGroup(), lamps(1)), { created: 1, updated: 0, unchanged: 0 });
});

test("a refused item is named by its place among all, and the batches before it are stored", async () => {
  const [client, group] = [newClient(), newGroup()];
  const wrong = { root_job_id: "monday", data: {} } as unknown as OutputInput;
  const error = await client.push(group, [...lamps(7), wrong], { batchItems: 3 }).catch((error: unknown) => error);
  assert.ok(error instanceof ServiceError);
  assert.equal(error.status, 422);
  assert.deepEqual(error.problems.map(({ loc, type }) => [loc.join("."), type]), [["body.7.source_url", "missing"]]);
  assert.match(error.message, /^422: body\.7\.source_url: /);
  assert.equal((await collect(client.outputs(group))).length, 6);
});

test("when the items end with an error, also one of a service, those before it are stored", async () => {
  for (const reason of [new RangeError("the site is gone"), new ServiceError(503, [], "the other service is away")]) {
    const [client, group] = [newClient(), newGroup()];
    async function* scraped(): AsyncGenerator<OutputInput> {
      yield* lamps(5);
      throw reason;
    }
    await assert.rejects(client.push(group, scraped()), reason);
    assert.equal((await collect(client.outputs(group))).length, 5);
  }
});

test("an abort loses no item that was taken", async () => {
  const [client, group, stop] = [newClient(), newGroup(), new AbortController()];
  let taken = 0;
  function* scraped(): Generator<OutputInput> {
    for (const item of lamps(1000)) {
      taken += 1;
      if (taken === 700) stop.abort(new RangeError("stopped"));
      yield item;
    }
  }
  await assert.rejects(client.push(group, scraped(), { signal: stop.signal }), /stopped/);
  assert.equal(taken, 700);
  assert.equal((await collect(client.outputs(group))).length, 700);
});

test("outputs are read page by page, filtered, and with some fields only", async () => {
  const [client, group] = [newClient(), newGroup()];
  await client.push(group, [...lamps(9), lamp(9, { tags: { country: "France" } })]);
  assert.equal((await collect(client.outputs(group, { pageSize: 4 }))).length, 10);
  const [french] = await collect(client.outputs(group, { country: "France", fields: ["data.title"] }));
  assert.deepEqual(french?.data, { title: "Lamp 9" });
  const [newest] = await collect(client.outputs(group, { order: "desc" }));
  assert.equal(newest?.key_hash, "lamp-9");
  assert.equal((await collect(client.outputs(group, { where: "title:Lamp 3" }))).length, 1);
});

test("conditions with each operator add up", async () => {
  const [client, group] = [newClient(), newGroup()];
  await client.push(group, [1, 2, 3, 4].map((n) => lamp(n, { data: { title: `Lamp ${n}`, price: { amount: n } } })));
  const selected: [string[], number[]][] = [
    [["price.amount:2"], [2]],
    [["price.amount!=2"], [1, 3, 4]],
    [["price.amount>2"], [3, 4]],
    [["price.amount>=2", "data.price.amount<4"], [2, 3]],
    [["price.amount<=3", "title~LAMP", "price.amount!=1"], [2, 3]],
  ];
  for (const [where, numbers] of selected) {
    const items = await collect(client.outputs(group, { where }));
    const found = items.map((item) => (item.data as { price: { amount: number } }).price.amount);
    assert.deepEqual(found, numbers, where.join());
  }
});

test("a wrong filter is the service's own error", async () => {
  const options = { contry: "France" } as object;
  await assert.rejects(collect(newClient().outputs(newGroup(), options)), /422: query\.contry: .*country/);
});

test("a copy follows changes and deletions from the position that was kept with it", async () => {
  const [client, group, copy] = [newClient(), newGroup(), new Map<string, unknown>()];
  let position: Position | undefined;
  async function sync(limit = Infinity): Promise<number> {
    const changes = client.changes(group, { after: position, deleted: true, pageSize: 4 });
    let count = 0;
    for await (const change of changes) {
      if (count === limit) return count; // this change is not taken: its position was not kept
      if (change.deleted) copy.delete(change.output_id);
      else copy.set(change.output_id, change.data);
      count += 1;
      position = JSON.parse(JSON.stringify(changes.position)) as Position;
    }
    position = changes.position;
    return count;
  }
  await client.push(group, lamps(10));
  assert.equal(await sync(6), 6);
  assert.equal(await sync(), 4);
  await client.call("DELETE", `/v1/outputs/${group}`, { query: new URLSearchParams({ url: "https://lamps.example/7" }) });
  await client.push(group, [lamp(1, { data: { title: "New" } })]);
  assert.equal(await sync(), 2);
  assert.equal(copy.size, 9);
  assert.equal(await sync(), 0);
});

test("a position is not taken for another group or other filters", async () => {
  const [client, group] = [newClient(), newGroup()];
  const changes = client.changes(group, { country: "France" });
  await collect(changes);
  assert.throws(() => client.changes(group, { after: changes.position }), /this position was kept with the filters/);
  assert.throws(() => client.changes("other", { after: changes.position, country: "France" }), /with the group/);
  // It knows of no deletion before it.
  assert.throws(() => client.changes(group, { after: changes.position, country: "France", deleted: true }), /with the filters/);
  const text = JSON.stringify(changes.position) as unknown as Position;
  assert.throws(() => client.changes(group, { after: text, country: "France" }), /not its JSON text/);
});

test("a follower gets what comes, and its position survives the abort", async () => {
  const [client, group, stop] = [newClient(), newGroup(), new AbortController()];
  await client.push(group, lamps(2));
  const changes = client.follow(group, { signal: stop.signal });
  const keys: string[] = [];
  const following = (async () => {
    for await (const item of changes) {
      keys.push(item.key_hash);
      if (keys.length === 2) void client.push(group, [lamp(2)]);
      if (keys.length === 3) stop.abort(new RangeError("enough"));
    }
  })();
  await assert.rejects(following, /enough/);
  assert.deepEqual(keys, ["lamp-0", "lamp-1", "lamp-2"]);
  await client.push(group, [lamp(3)]);
  const rest = await collect(client.changes(group, { after: changes.position }));
  assert.deepEqual(rest.map((item) => item.key_hash), ["lamp-3"]);
});
