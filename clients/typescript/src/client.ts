import { Crawl, type CrawlOptions } from "./crawl.js";
import { Changes, readOutputs, type ChangesOptions, type OutputsOptions } from "./reading.js";
import { Session, type SessionOptions } from "./session.js";
import { Transport, type ClientOptions, type Request } from "./transport.js";
import type { Deletion, Job, Output, Pushed } from "./types.js";
import { push, type Items, type PushOptions } from "./writing.js";

/** A client of one service with one token. */
export class Client {
  readonly #transport: Transport;

  constructor(options: ClientOptions = {}) {
    this.#transport = new Transport(options);
  }

  /** Address of the service. */
  get url(): string {
    return this.#transport.url;
  }

  /**
   * Write items, in batches as they come. Resolves when all of them are durable.
   *
   * The problems of a ServiceError count from the first item of all; the batches before the refused one are stored. When
   * `items` throws, or the signal is aborted, the items taken from it are stored first. The signal is looked at between two
   * items: give it to a source that may wait, too.
   */
  push(group: string, items: Items, options: PushOptions = {}): Promise<Pushed> {
    return push(this.#transport, group, items, options);
  }

  /** Yield a group's items in the order in which they last changed, to the present end. */
  outputs(group: string, options: OutputsOptions = {}): AsyncGenerator<Output, void> {
    return readOutputs(this.#transport, group, options);
  }

  /** Read what is new or changed (with `deleted`, also deleted) since a position, to the present end. */
  changes(group: string, options: ChangesOptions & { deleted: true }): Changes<Output | Deletion>;
  changes(group: string, options?: ChangesOptions): Changes<Output>;
  changes(group: string, options: ChangesOptions = {}): Changes<Output | Deletion> {
    return new Changes(this.#transport, group, false, options);
  }

  /** Like `changes`, and wait for more, until the signal is aborted. */
  follow(group: string, options: ChangesOptions & { deleted: true }): Changes<Output | Deletion>;
  follow(group: string, options?: ChangesOptions): Changes<Output>;
  follow(group: string, options: ChangesOptions = {}): Changes<Output | Deletion> {
    return new Changes(this.#transport, group, true, options);
  }

  /**
   * Run a crawl: the job is `running`, then `finished`, or `failed` when `work` throws or the service does not finish it.
   *
   * Without `work`, return the crawl: with `await using`, it is `failed` unless `crawl.finish()` was called.
   */
  crawl(group: string, jobId: string, options: CrawlOptions, work: (crawl: Crawl) => Promise<unknown>): Promise<Job>;
  crawl(group: string, jobId: string, options?: CrawlOptions): Promise<Crawl>;
  async crawl(
    group: string,
    jobId: string,
    options: CrawlOptions = {},
    work?: (crawl: Crawl) => Promise<unknown>,
  ): Promise<Job | Crawl> {
    const crawl = await Crawl.start(this.#transport, group, jobId, options);
    if (!work) return crawl;
    try {
      await work(crawl);
      options.signal?.throwIfAborted();
      return await crawl.finish();
    } catch (error) {
      await crawl[Symbol.asyncDispose]().catch(() => undefined); // the first error is the one to see
      throw error;
    }
  }

  /**
   * Lend a session of a pool to `work`: `good` when it ends, `bad` when it throws, `interrupted` when the signal stops
   * it. Rejects with SessionLost when its time is over before `work` ends.
   *
   * Without `work`, return the session: with `await using`, it is `bad` unless `session.release()` was called.
   */
  session<Value>(pool: string, options: SessionOptions, work: (session: Session) => Promise<Value>): Promise<Value>;
  session(pool: string, options?: SessionOptions): Promise<Session>;
  async session<Value>(
    pool: string,
    options: SessionOptions = {},
    work?: (session: Session) => Promise<Value>,
  ): Promise<Value | Session> {
    const session = await Session.take(this.#transport, pool, options);
    return work ? session.lend(work, options.signal) : session;
  }

  /** Send any other request, such as `client.call("GET", "/v1/groups")`, with the same repetitions. */
  async call<Value = unknown>(method: string, path: string, request: Request = {}): Promise<Value> {
    return (await this.#transport.call<Value>(method, path, request)).value;
  }
}
