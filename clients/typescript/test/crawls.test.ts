import assert from "node:assert/strict";
import { test } from "node:test";

import { Client, ServiceError, type CrawlItem, type Job } from "../src/index.js";
import { collect, lamp, newClient, newGroup } from "./support.js";

function item(number: number): CrawlItem {
  const { root_job_id: _, ...rest } = lamp(number);
  return rest;
}

function job(client: Client, group: string, jobId: string): Promise<Job> {
  return client.call<Job>("GET", `/v1/groups/${group}/jobs/${jobId}`);
}

test("a crawl runs, writes what is pushed with its job, and finishes", async () => {
  const [client, group] = [newClient(), newGroup()];
  const finished = await client.crawl(group, "run-1", {}, async (crawl) => {
    assert.equal((await job(client, group, "run-1")).state, "running");
    assert.deepEqual(await crawl.push(item(1)), { created: 1, updated: 0, unchanged: 0 });
    assert.deepEqual(await crawl.push([item(1), item(2)]), { created: 1, updated: 0, unchanged: 1 });
  });
  assert.deepEqual([finished.state, finished.items, finished.created], ["finished", 2, 2]);
  assert.deepEqual((await collect(client.outputs(group, { job_id: "run-1" }))).length, 2);
});

test("many pushes at once share requests, and one that is refused rejects alone", async () => {
  const [client, group] = [newClient(), newGroup()];
  const finished = await client.crawl(group, "run-1", {}, async (crawl) => {
    const wrong = { data: {} } as unknown as CrawlItem;
    const pushes = Array.from({ length: 1200 }, (_, number) => crawl.push(number === 700 ? wrong : item(number)));
    const results = await Promise.allSettled(pushes);
    const refused = results.flatMap((result, index) => (result.status === "rejected" ? [[index, result.reason]] : []));
    assert.equal(refused.length, 1);
    const [[index, reason]] = refused as [[number, ServiceError]];
    assert.deepEqual([index, reason.status, reason.problems[0]?.type], [700, 422, "missing"]);
  });
  assert.equal(finished.items, 1199);
});

test("a crawl that throws is failed, and the error is the one that was thrown", async () => {
  const [client, group] = [newClient(), newGroup()];
  const crawl = client.crawl(group, "run-1", {}, async (crawl) => {
    await crawl.push(item(1));
    throw new RangeError("the site is gone");
  });
  await assert.rejects(crawl, RangeError);
  assert.equal((await job(client, group, "run-1")).state, "failed");
});

test("a crawl that the service does not finish is failed", async () => {
  const [client, group] = [newClient(), newGroup()];
  const wrong = { missing: "destroy" } as object;
  const crawl = client.crawl(group, "run-1", wrong, (crawl) => crawl.push(item(1)));
  await assert.rejects(crawl, (error) => error instanceof ServiceError && error.status === 422);
  assert.equal((await job(client, group, "run-1")).state, "failed");
});

test("a crawl in `await using` is failed unless it was finished", async () => {
  const [client, group] = [newClient(), newGroup()];
  {
    await using crawl = await client.crawl(group, "left");
    await crawl.push(item(1));
  }
  {
    await using crawl = await client.crawl(group, "ended");
    await crawl.push(item(1));
    await crawl.finish();
  }
  assert.equal((await job(client, group, "left")).state, "failed");
  assert.equal((await job(client, group, "ended")).state, "finished");
});

test("a finished crawl deletes what it did not see, in its series only", async () => {
  const [client, group] = [newClient(), newGroup()];
  for (const [jobId, numbers] of [["run-1", [1, 2, 3]], ["run-2", [1, 2]]] as const) {
    const options = { series: "oak", missing: "delete" } as const;
    await client.crawl(group, jobId, options, (crawl) => crawl.push(numbers.map(item)));
  }
  assert.deepEqual((await collect(client.outputs(group))).map((output) => output.key_hash), ["lamp-1", "lamp-2"]);
  const { series, deleted } = await job(client, group, "run-2");
  assert.deepEqual([series, deleted], ["oak", 1]);
});
