import { pathOf, type Transport } from "./transport.js";
import type { Job, OutputInput, Pushed, Stoppable } from "./types.js";
import { Writer } from "./writing.js";

export interface CrawlOptions extends Stoppable {
  /** The part of the group that this job crawls, such as a category. */
  series?: string;
  /** "delete": when the crawl has finished, delete the items of its series that it did not see. */
  missing?: "keep" | "delete";
}

/** An item of a crawl, which fills in `root_job_id`. */
export type CrawlItem = Omit<OutputInput, "root_job_id">;

/** A running job. One that is disposed of before `finish` is `failed`. */
export class Crawl {
  readonly #transport: Transport;
  readonly #path: string;
  readonly #options: CrawlOptions;
  readonly #writer: Writer;
  #hasEnded = false;

  private constructor(transport: Transport, readonly group: string, readonly jobId: string, options: CrawlOptions) {
    this.#transport = transport;
    this.#path = pathOf("groups", group, "jobs", jobId);
    this.#options = options;
    this.#writer = new Writer(transport, group);
  }

  /** Say that the crawl is running, and return it. */
  static async start(transport: Transport, group: string, jobId: string, options: CrawlOptions): Promise<Crawl> {
    const crawl = new Crawl(transport, group, jobId, options);
    await transport.send("PUT", crawl.#path, { state: "running", series: options.series });
    return crawl;
  }

  /**
   * Write one item or several. Resolves when they are durable.
   *
   * Items of calls that are made while a request is on its way share the next one. An item that is refused rejects its
   * own call only.
   */
  async push(items: CrawlItem | Iterable<CrawlItem>): Promise<Pushed> {
    const list = Symbol.iterator in items ? [...items] : [items];
    const pushed: Pushed = { created: 0, updated: 0, unchanged: 0 };
    this.#options.signal?.throwIfAborted();
    if (this.#hasEnded) throw new TypeError("the crawl has ended");
    const results = await Promise.allSettled(list.map((item) => this.#writer.add({ ...item, root_job_id: this.jobId })));
    for (const result of results) {
      if (result.status === "rejected") throw result.reason;
      pushed[result.value] += 1;
    }
    return pushed;
  }

  /** Say that the crawl is complete: it is counted, compared and judged. Returns the job with its `verdict`. */
  async finish(): Promise<Job> {
    await this.#writer.settled();
    for (;;) {
      const job = await this.#transport.send<Job>("PUT", this.#path, { state: "finished", missing: this.#options.missing });
      this.#hasEnded = true;
      if (!job.more) return job;
    }
  }

  /** Say that the crawl gave up. */
  async fail(): Promise<void> {
    await this.#writer.settled();
    this.#hasEnded = true;
    await this.#transport.send("PUT", this.#path, { state: "failed" });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (!this.#hasEnded) await this.fail();
  }
}
