import { ServiceError } from "./errors.js";
import { now, pathOf, sleep, type Transport } from "./transport.js";
import type { Deletion, Filters, Output, Position, Stoppable } from "./types.js";

export interface ReadOptions extends Filters, Stoppable {
  /** Items per request; default 500. */
  pageSize?: number;
}

export interface OutputsOptions extends ReadOptions {
  /** Begin after this id, with `order: "desc"` below it. */
  cursor?: number;
  /** "desc": the newest change first, for looking and not for syncing. */
  order?: "asc" | "desc";
}

export interface ChangesOptions extends ReadOptions {
  /** The position of an earlier reader of the same group and filters, `deleted` among them; default: the beginning. */
  after?: Position | undefined;
  /** Yield deletions too, in their place among the changes. */
  deleted?: boolean;
}

interface Page<Item> {
  metadata: { next_url: string | null; next_cursor: number | null };
  items: Item[];
}

// Seconds that the service may hold a request while there is nothing to read.
const WAIT = 30;
// A service that is stopping ends the waiting at once.
const MIN_WAIT = 0.25;
// After a failover, a new primary may not know its newest ids for a moment.
const DOUBT = 2;

function queryOf(filters: Filters): URLSearchParams {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(filters)) {
    if (value === undefined || value === null) continue;
    if (name === "where" && Array.isArray(value)) value.forEach((one) => query.append(name, String(one)));
    else query.set(name, String(value)); // a list of fields is joined by commas
  }
  return query;
}

/** Return what makes the next page one of the same walk. */
function walkOf(page: Page<unknown>): string | undefined {
  const { next_url: next } = page.metadata;
  return next === null ? undefined : (new URL(next).searchParams.get("walk") ?? undefined);
}

/** Yield a group's items, page by page, to the present end. */
export async function* readOutputs(transport: Transport, group: string, options: OutputsOptions): AsyncGenerator<Output, void> {
  const { pageSize = 500, cursor, order, signal, ...filters } = options;
  const query = queryOf(filters);
  query.set("limit", String(pageSize));
  if (order) query.set("order", order);
  for (let next: number | null | undefined = cursor; next !== null; ) {
    if (next !== undefined) query.set("cursor", String(next));
    const { value: page } = await transport.call<Page<Output>>("GET", pathOf("outputs", group), { query, signal });
    yield* page.items;
    next = page.metadata.next_cursor;
    const walk = walkOf(page);
    if (walk) query.set("walk", walk);
  }
}

/** What is new, changed or deleted in a group, in the order in which it happened. Iterate over it once. */
export class Changes<Item extends Output | Deletion> implements AsyncIterable<Item> {
  readonly #transport: Transport;
  readonly #group: string;
  readonly #isLive: boolean;
  readonly #query: URLSearchParams;
  readonly #signal: AbortSignal | undefined;
  readonly #belongsTo: { group: string; filters: Record<string, string[]> };
  #taken: number;
  #walk: string | undefined;

  constructor(transport: Transport, group: string, isLive: boolean, options: ChangesOptions) {
    const { pageSize = 500, after, deleted = false, signal, ...filters } = options;
    [this.#transport, this.#group, this.#isLive, this.#signal] = [transport, group, isLive, signal];
    this.#query = queryOf(filters);
    if (deleted) this.#query.set("deleted", "true");
    const names = [...new Set(this.#query.keys())].filter((name) => name !== "fields").sort();
    this.#belongsTo = { group, filters: Object.fromEntries(names.map((name) => [name, this.#query.getAll(name).sort()])) };
    if (after !== undefined && !Number.isInteger(after.cursor))
      throw new TypeError("a position is the object `changes.position`, not its JSON text");
    for (const name of ["group", "filters"] as const) {
      const [kept, wanted] = [JSON.stringify(after?.[name]), JSON.stringify(this.#belongsTo[name])];
      if (kept !== undefined && kept !== wanted)
        throw new TypeError(`this position was kept with the ${name} ${kept} and not ${wanted}: read on with the same`);
    }
    this.#query.set("limit", String(pageSize));
    [this.#taken, this.#walk] = [after?.cursor ?? 0, after?.walk];
  }

  /** Where to continue after the newest item that the loop has been given. Keep it when that item is stored. */
  get position(): Position {
    return { cursor: this.#taken, ...(this.#walk ? { walk: this.#walk } : {}), ...this.#belongsTo };
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Item, void> {
    let [read, isAtEnd, isDoubtful] = [this.#taken, false, false];
    for (;;) {
      const [wait, asked] = [isAtEnd ? WAIT : 0, now()];
      const { page, applied } = await this.#page(read, wait);
      if (applied < read) {
        if (isDoubtful)
          throw new Error(`the group has no id above ${applied}, so the cursor ${read} is of another database: ${AGAIN}`);
        isDoubtful = true;
        await sleep(DOUBT, this.#signal);
        continue;
      }
      isAtEnd = page.metadata.next_cursor === null;
      const last = page.items.at(-1);
      this.#walk = walkOf(page) ?? this.#walk;
      read = Math.max(read, applied, last?.id ?? 0);
      for (const item of page.items) {
        if (item === last) [this.#taken, this.#walk] = [read, isAtEnd ? undefined : this.#walk];
        // Without a walk, a cursor inside the first page may be too old for deletions: that page counts as a whole.
        else if (this.#taken || this.#walk || !this.#query.has("deleted")) this.#taken = item.id;
        yield item;
      }
      [this.#taken, this.#walk] = [read, isAtEnd ? undefined : this.#walk];
      if (isAtEnd && !this.#isLive) return;
      if (wait && !page.items.length && now() - asked < MIN_WAIT) await sleep(MIN_WAIT, this.#signal);
    }
  }

  /** Return a page, and the id up to which the filters were applied to it: often beyond the last item. */
  async #page(cursor: number, wait: number): Promise<{ page: Page<Item>; applied: number }> {
    const query = new URLSearchParams(this.#query);
    query.set("cursor", String(cursor));
    if (this.#walk) query.set("walk", this.#walk);
    if (wait) query.set("wait", String(wait));
    const path = pathOf("outputs", this.#group);
    try {
      const { value: page, headers } = await this.#transport.call<Page<Item>>("GET", path, { query, wait, signal: this.#signal });
      return { page, applied: page.metadata.next_cursor ?? Number(headers.get("X-Cursor") ?? cursor) };
    } catch (error) {
      if (!(error instanceof ServiceError) || error.status !== 410) throw error;
      throw new ServiceError(410, error.problems, `the cursor ${cursor} is too old to learn of every deletion since: ${AGAIN}`);
    }
  }
}

const AGAIN = "empty the copy and read again without a position";
