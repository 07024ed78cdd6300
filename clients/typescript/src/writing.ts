import { ServiceError } from "./errors.js";
import { pathOf, type Transport } from "./transport.js";
import type { OutputInput, Pushed, Stoppable } from "./types.js";

export type Items = Iterable<OutputInput> | AsyncIterable<OutputInput>;

export interface PushOptions extends Stoppable {
  /** Items per request; default 500. */
  batchItems?: number;
  /** Bytes per request; default 4 MiB. */
  batchBytes?: number;
  /** Called after each request with the number of items that are durable since the last call. */
  onBatch?: (count: number, pushed: Pushed) => void;
}

type Result = "created" | "updated" | "unchanged";

interface Written extends Pushed {
  items: { result: Result }[];
}

const BATCH_ITEMS = 500;
const BATCH_BYTES = 4 * 1024 * 1024;
const encoder = new TextEncoder();

/** Send a batch, in halves where the service accepts less; problems are counted from the item `first`. */
async function post(transport: Transport, path: string, texts: string[], first: number, signal?: AbortSignal): Promise<Written[]> {
  try {
    return [(await transport.call<Written>("POST", path, { body: `[${texts.join(",")}]`, signal })).value];
  } catch (error) {
    if (!(error instanceof ServiceError)) throw error;
    const half = texts.length >> 1;
    if (half && (error.status === 408 || error.status === 413 || error.hasType("too_many"))) {
      const written = await post(transport, path, texts.slice(0, half), first, signal);
      return [...written, ...(await post(transport, path, texts.slice(half), first + half, signal))];
    }
    if (error.status === 413) throw new ServiceError(413, [], `the item at index ${first} is too large for a body`);
    throw countedFrom(error, first);
  }
}

function countedFrom(error: ServiceError, first: number): ServiceError {
  const problems = error.problems.map((problem) => {
    const [body, index, ...rest] = problem.loc;
    return index !== undefined && body === "body" && /^\d+$/.test(index)
      ? { ...problem, loc: [body, String(Number(index) + first), ...rest] }
      : problem;
  });
  if (!problems.length) return error;
  const counted = new ServiceError(error.status, problems);
  counted.retryAfter = error.retryAfter;
  return counted;
}

function encoded(item: OutputInput, index: number): string {
  const text = JSON.stringify(item) as string | undefined;
  if (text === undefined) throw new TypeError(`the item at index ${index} has no JSON form`);
  return text;
}

/** Send items as they come, in batches; see Client.push. */
export async function push(transport: Transport, group: string, items: Items, options: PushOptions): Promise<Pushed> {
  const { batchItems = BATCH_ITEMS, batchBytes = BATCH_BYTES, onBatch, signal } = options;
  const [path, pushed] = [pathOf("outputs", group), { created: 0, updated: 0, unchanged: 0 }];
  let [texts, bytes, first]: [string[], number, number] = [[], 0, 0];

  async function send(): Promise<void> {
    const batch = texts;
    [texts, bytes, first] = [[], 0, first + batch.length];
    if (!batch.length) return;
    // Not stopped by the signal: what was taken from the items gets stored.
    for (const written of await post(transport, path, batch, first - batch.length)) {
      for (const result of ["created", "updated", "unchanged"] as const) pushed[result] += written[result];
      onBatch?.(written.items.length, written);
    }
  }

  try {
    signal?.throwIfAborted();
    for await (const item of items) {
      const text = encoded(item, first + texts.length);
      const size = encoder.encode(text).byteLength + 1;
      if (texts.length >= batchItems || (texts.length && bytes + size > batchBytes)) await send();
      texts.push(text);
      bytes += size;
      signal?.throwIfAborted();
    }
  } catch (error) {
    // After a refusal of this push nothing is left to send; the items may themselves come from a service that refused.
    await send().catch((refusal: Error) => {
      refusal.cause ??= error;
      throw refusal;
    });
    throw error;
  }
  await send();
  return pushed;
}

interface Waiting {
  text: string;
  bytes: number;
  resolve: (result: Result) => void;
  reject: (error: unknown) => void;
}

/** Writes items that come one by one: those that come while a request is on its way share the next one. */
export class Writer {
  readonly #transport: Transport;
  readonly #path: string;
  #waiting: Waiting[] = [];
  #loop: Promise<void> | undefined;

  constructor(transport: Transport, group: string) {
    this.#transport = transport;
    this.#path = pathOf("outputs", group);
  }

  /** Resolves when the item is durable; rejects when the service refuses it, whatever becomes of the others. */
  add(item: OutputInput): Promise<Result> {
    return new Promise((resolve, reject) => {
      const text = encoded(item, 0);
      this.#waiting.push({ text, bytes: encoder.encode(text).byteLength + 1, resolve, reject });
      this.#loop ??= this.#run();
    });
  }

  /** Resolves when nothing is on its way. */
  async settled(): Promise<void> {
    while (this.#loop) await this.#loop;
  }

  async #run(): Promise<void> {
    await Promise.resolve(); // all items that are added in the same step go together
    while (this.#waiting.length) await this.#send(this.#take());
    this.#loop = undefined;
  }

  #take(): Waiting[] {
    let [count, bytes] = [0, 0];
    for (const { bytes: size } of this.#waiting) {
      if (count === BATCH_ITEMS || (count && bytes + size > BATCH_BYTES)) break;
      [count, bytes] = [count + 1, bytes + size];
    }
    return this.#waiting.splice(0, count);
  }

  async #send(batch: Waiting[]): Promise<void> {
    try {
      const written = await post(this.#transport, this.#path, batch.map(({ text }) => text), 0);
      written.flatMap(({ items }) => items).forEach(({ result }, index) => batch[index]?.resolve(result));
    } catch (error) {
      const refused = refusedItems(error);
      if (!refused.size) {
        for (const { reject } of batch) reject(error);
        return;
      }
      // Nothing of a refused body is stored: the others are sent without the items that are at fault.
      for (const [index, reason] of refused) batch[index]?.reject(reason);
      const others = batch.filter((_, index) => !refused.has(index));
      if (others.length) await this.#send(others);
    }
  }
}

/** Return the error of each item that a refusal names. */
function refusedItems(error: unknown): Map<number, ServiceError> {
  const refused = new Map<number, ServiceError>();
  if (!(error instanceof ServiceError) || error.status !== 422) return refused;
  for (const problem of error.problems) {
    const index = Number(problem.loc[1] ?? "0");
    const earlier = refused.get(index)?.problems ?? [];
    refused.set(index, new ServiceError(422, [...earlier, problem]));
  }
  return refused;
}
