// Fastify with MongoDB's Node driver: keyset paging, schema-checked bodies in, insertMany.

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

app.post("/v1/outputs/:group", { schema: { body: { type: "array", maxItems: 1000, items: output } } }, async (request) => {
  const group = request.params.group;
  const counter = await counters.findOneAndUpdate(
    { _id: group }, { $inc: { next: request.body.length } }, { upsert: true, returnDocument: "after" },
  );
  const now = new Date();
  let id = counter.next - request.body.length;
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

await app.listen({ host: "127.0.0.1", port: Number(process.env.PORT) });
