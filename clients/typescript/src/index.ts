/// <reference lib="esnext.disposable" preserve="true" />
export { Client } from "./client.js";
export { Crawl, type CrawlItem, type CrawlOptions } from "./crawl.js";
export { ServiceError, SessionLost } from "./errors.js";
export { Changes, type ChangesOptions, type OutputsOptions, type ReadOptions } from "./reading.js";
export type { components, operations, paths } from "./schema.js";
export { Session, type Outcome, type SessionOptions, type StorageState } from "./session.js";
export type { ClientOptions, Request } from "./transport.js";
export type { Deletion, Filters, Job, Output, OutputInput, Position, Problem, Pushed } from "./types.js";
export type { Items, PushOptions } from "./writing.js";
