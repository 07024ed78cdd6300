import type { components, operations } from "./schema.js";

type Schemas = components["schemas"];

/** An item as it is written. */
export type OutputInput = Schemas["OutputInput"];
/** An item as it is served. */
export type Output = Omit<Schemas["Output"], "deleted"> & { deleted?: never };
/** The record of a deletion: it has the item's `output_id` and `key_hash`, and no data. */
export type Deletion = Pick<Output, "id" | "output_id" | "key_hash" | "source_url" | "root_job_id" | "update_date"> & {
  deleted: true;
};
/** A crawl: its counts and, once finished, its verdict. */
export type Job = Schemas["JobPut"];
/** What is wrong with one part of a request. */
export type Problem = Schemas["Problem"];

type Query = NonNullable<operations["outputs_get"]["parameters"]["query"]>;
/** The filters of reading: `job_id`, `country`, `where`, …, and `fields` to keep only some paths. */
export type Filters = {
  [Name in Exclude<keyof Query, "limit" | "cursor" | "order" | "wait" | "walk" | "deleted">]?:
    | Query[Name]
    | (Name extends "where" ? string : never)
    | readonly string[]
    | undefined;
};

/** How many items were created, updated, or already stored with the same content. */
export interface Pushed {
  created: number;
  updated: number;
  unchanged: number;
}

/** Where a reader of changes continues: JSON to keep beside its data. It belongs to a group and its filters. */
export interface Position {
  cursor: number;
  walk?: string;
  group?: string;
  filters?: Record<string, string[]>;
}

/** Stops a call: its promise rejects with the signal's reason. */
export interface Stoppable {
  signal?: AbortSignal | undefined;
}
