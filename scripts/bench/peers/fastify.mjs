// Fastify with MongoDB's Node driver: keyset paging, schema-checked bodies in. `/v1/outputs` appends with insertMany.
// `/v1/upserts` stores one item per key, writes changes only, and returns the result of each item.

import { createHash, randomUUID } from "node:crypto";
import Fastify from "fastify";
import { MongoClient } from "mongodb";

const text = (maxLength) => ({ type: "string", maxLength });
const file = {
  type: "object",
  additionalProperties: false,
  properties: {
    field: text(1024), url_etag_hash: text(1024), blob_key: text(8192), blob_url: text(8192), source_url: text(8192),
    file_url: text(8192), file_type: text(256), file_checksum: text(1024), file_metadata: { type: "object" },
  },
};
const output = {
  type: "object",
  additionalProperties: false,
  required: ["source_url", "data", "root_job_id"],
  properties: {
    source_url: text(8192), data: { type: "object" }, root_job_id: { type: "string", minLength: 1, maxLength: 256 },
    key_hash: text(256), value_hash: text(256), is_approved: { type: "boolean" }, tags: { type: "object" },
    files: { type: "array", maxItems: 1000, items: file }, last_scraped_date: { type: "string", format: "date-time" },
  },
};
const query = {
  type: "object",
  properties: {
    limit: { type: "integer", minimum: 1, maximum: 1000, default: 10 },
    cursor: { type: "integer", minimum: 0, default: 0 },
  },
};

const client = await new MongoClient(process.env.MONGO_URL).connect();
const database = client.db(process.env.MONGO_DATABASE);
const majority = { writeConcern: { w: "majority", journal: true } };
const outputs = database.collection("outputs");
const ingest = database.collection(process.env.INGEST, majority);
const counters = database.collection("counters_fastify", majority);
const projection = {
  _id: 0, organization_id: 0, group_id: 0, content_hash: 0, country: 0, region: 0, first_id: 0,
};

const app = Fastify({ bodyLimit: 16 * 1024 * 1024, keepAliveTimeout: 60_000 });

app.get("/v1/outputs/:group", { schema: { querystring: query } }, async (request) => {
  const { limit, cursor } = request.query;
  const where = { organization_id: 1, group_id: request.params.group, id: { $gt: cursor } };
  const found = outputs.find(where, { projection, sort: { id: 1 }, limit: limit + 1, batchSize: limit + 1 });
  const items = await found.toArray();
  const more = items.length > limit;
  if (more) items.pop();
  const next = more ? items.at(-1).id : null;
  const url = more ? `${request.protocol}://${request.host}/v1/outputs/${request.params.group}?limit=${limit}&cursor=${next}` : null;
  return { metadata: { next_url: url, next_cursor: next }, items };
});

const body = { schema: { body: { type: "array", maxItems: 1000, items: output } } };
const digest = (...parts) => createHash("sha256").update(parts.join("\n")).digest("hex");

async function firstId(group, count) {
  const counter = await counters.findOneAndUpdate(
    { _id: group }, { $inc: { next: count } }, { upsert: true, returnDocument: "after" },
  );
  return counter.next - count;
}

app.post("/v1/outputs/:group", body, async (request) => {
  const group = request.params.group;
  const now = new Date();
  let id = await firstId(group, request.body.length);
  const documents = request.body.map((item) => ({
    organization_id: 1, group_id: group, ...item,
    files: (item.files ?? []).map((one) => ({ id: randomUUID(), create_date: now, ...one })),
    id: ++id, output_id: randomUUID(), create_date: now, update_date: now,
    last_scraped_date: item.last_scraped_date ? new Date(item.last_scraped_date) : now,
    key_hash: item.key_hash ?? createHash("sha256").update(item.source_url).update(JSON.stringify(item.data)).digest("hex"),
    is_approved: item.is_approved ?? false, country: item.tags?.country, region: item.tags?.region,
  }));
  await ingest.insertMany(documents, { ordered: false });
  return { created: documents.length };
});

app.post("/v1/upserts/:group", body, async (request) => {
  const owner = { organization_id: 1, group_id: request.params.group };
  const now = new Date();
  const sent = new Map();
  for (const item of request.body) {
    const { source_url, data, tags = {}, files = [] } = item;
    const text = JSON.stringify(data);
    const key_hash = item.key_hash ?? digest(source_url, text);
    sent.set(key_hash, {
      ...item, tags, key_hash, value_hash: item.value_hash ?? digest(text),
      files: files.map((one) => ({ id: randomUUID(), create_date: now, ...one })),
      content_hash: digest(source_url, text, JSON.stringify(tags), JSON.stringify(files)),
      last_scraped_date: item.last_scraped_date ? new Date(item.last_scraped_date) : now,
      is_approved: item.is_approved ?? false, country: tags.country, region: tags.region,
    });
  }
  const names = { key_hash: 1, output_id: 1, id: 1, content_hash: 1 };
  const found = await ingest.find({ ...owner, key_hash: { $in: [...sent.keys()] } }, { projection: names }).toArray();
  const stored = new Map(found.map((document) => [document.key_hash, document]));
  let id = await firstId(request.params.group, sent.size);
  const created = [], updates = [], items = [];
  for (const [key_hash, fields] of sent) {
    const before = stored.get(key_hash);
    if (before?.content_hash === fields.content_hash) {
      const seen = { root_job_id: fields.root_job_id, last_scraped_date: fields.last_scraped_date };
      updates.push({ updateOne: { filter: { _id: before._id }, update: { $set: seen } } });
      items.push({ id: before.id, output_id: before.output_id, key_hash, result: "unchanged" });
      continue;
    }
    Object.assign(fields, { id: ++id, update_date: now });
    if (before) {
      updates.push({ updateOne: { filter: { _id: before._id, id: before.id }, update: { $set: fields } } });
      items.push({ id, output_id: before.output_id, key_hash, result: "updated" });
    } else {
      Object.assign(fields, { ...owner, output_id: randomUUID(), create_date: now });
      created.push(fields);
      items.push({ id, output_id: fields.output_id, key_hash, result: "created" });
    }
  }
  if (created.length) await ingest.insertMany(created, { ordered: false });
  if (updates.length) await ingest.bulkWrite(updates, { ordered: false });
  return { items };
});

await app.listen({ host: "127.0.0.1", port: Number(process.env.PORT) });
