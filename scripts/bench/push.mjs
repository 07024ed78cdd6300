// node push.mjs fetch|client FILE GROUP: write the items of FILE to a group; print the seconds, and those of the CPU.
import { readFileSync } from "node:fs";

import { Client } from "../../clients/typescript/dist/index.js";

const BATCH = 500;
const { SDS_URL, SDS_TOKEN } = process.env;
const [way, file, group] = process.argv.slice(2);
const items = readFileSync(file, "utf8").trimEnd().split("\n").map((line) => JSON.parse(line));
const client = new Client();
const ways = {
  async fetch(items, group) {
    const headers = { Authorization: `Bearer ${SDS_TOKEN}`, "Content-Type": "application/json" };
    for (let first = 0; first < items.length; first += BATCH) {
      const body = JSON.stringify(items.slice(first, first + BATCH));
      const response = await fetch(`${SDS_URL}/v1/outputs/${group}`, { method: "POST", headers, body });
      if (!response.ok) throw new Error(await response.text());
      await response.json();
    }
  },
  client: (items, group) => client.push(group, items, { batchItems: BATCH }),
};

await ways[way](items.slice(0, BATCH), `${group}-first`); // connects, and compiles the code
const [began, before] = [performance.now(), process.cpuUsage()];
await ways[way](items, group);
const { user, system } = process.cpuUsage(before);
console.log(JSON.stringify([(performance.now() - began) / 1000, (user + system) / 1e6]));
