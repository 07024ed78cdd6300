import type { Client } from "./client.js";
import { Crawl, type CrawlItem } from "./crawl.js";
import type { Outcome, Session, SessionOptions, StorageState } from "./session.js";

type Data = Record<string, unknown>;

export interface SdsDatasetOptions {
  /** The fields of an item that make it the same as in the last crawl, such as ["sku"]; default: its page and data. */
  keyFields?: readonly string[];
  /** The page of an item; default: its field `url`, which stays in its data. */
  sourceUrl?: (data: Data) => unknown;
  /** Put on every item, such as {country: "Germany"}. */
  tags?: Record<string, unknown>;
}

export interface SdsDatasetOfGroupOptions extends SdsDatasetOptions {
  /** The crawl's `root_job_id`; default: the time and a random end. */
  jobId?: string;
}

/** Stores what a Crawlee crawler scrapes. `pushData` is that of Crawlee's Dataset, and resolves when items are durable. */
export class SdsDataset {
  readonly #crawl: Promise<Crawl>;
  readonly #options: SdsDatasetOptions;

  /** A dataset of a crawl that is begun and ended elsewhere, as by `client.crawl`. */
  constructor(crawl: Crawl, options?: SdsDatasetOptions);
  /** A dataset with a job of its own: call `finish` when the crawler has run. */
  constructor(client: Client, group: string, options?: SdsDatasetOfGroupOptions);
  constructor(source: Client | Crawl, groupOrOptions: string | SdsDatasetOptions = {}, own: SdsDatasetOfGroupOptions = {}) {
    if (source instanceof Crawl) {
      this.#crawl = Promise.resolve(source);
      this.#options = groupOrOptions as SdsDatasetOptions;
    } else {
      const jobId = own.jobId ?? `${new Date().toISOString().slice(0, 19)}-${crypto.randomUUID().slice(0, 8)}`;
      this.#crawl = source.crawl(groupOrOptions as string, jobId);
      this.#crawl.catch(() => undefined); // pushData and finish report it
      this.#options = own;
    }
  }

  /** Store one item or several. */
  async pushData(data: Data | readonly Data[]): Promise<void> {
    const list = Array.isArray(data) ? (data as readonly Data[]) : [data as Data];
    const items = await Promise.all(list.map((one) => this.#itemOf(one)));
    await (await this.#crawl).push(items);
  }

  /** The crawler has run: count, compare and judge the crawl. */
  async finish(): ReturnType<Crawl["finish"]> {
    return (await this.#crawl).finish();
  }

  async #itemOf(data: Data): Promise<CrawlItem> {
    const { keyFields, sourceUrl, tags } = this.#options;
    const page = sourceUrl ? sourceUrl(data) : data["url"];
    if (typeof page !== "string" || !page)
      throw new TypeError("an item has no page: give it a field `url`, or give SdsDataset the option sourceUrl");
    const key = keyFields && { key_hash: await keyHash(data, keyFields) };
    return { source_url: page, data, ...key, ...(tags && { tags }) };
  }
}

/** Return the identity that an item has by some of its fields; the Python client makes the same. */
async function keyHash(data: Data, fields: readonly string[]): Promise<string> {
  const values = fields.map((path) => {
    const value = path.split(".").reduce<unknown>((inside, name) => (inside as Data | null | undefined)?.[name], data);
    const isEmpty = value === undefined || value === null || value === "" || JSON.stringify(value).length === 2;
    if (isEmpty && typeof value !== "number") throw new TypeError(`the key field ${path} is missing or empty`);
    return value;
  });
  const digest = await crypto.subtle.digest("SHA-256", new TextEncoder().encode(JSON.stringify(values)));
  return [...new Uint8Array(digest)].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** What is used of Crawlee's Session. */
interface CrawleeSession {
  markGood(): void;
  markBad(): void;
  retire(): void;
  retireOnBlockedStatusCodes(status: number, more?: number[]): boolean;
  getState(): { cookieJar: object };
  setCookies(cookies: any[], url: string): void;
}

export interface SdsSessionsOptions<Taken extends CrawleeSession> extends SessionOptions {
  /** Crawlee's class: `import { Session } from "crawlee"`. */
  Session: new (options: any) => Taken;
  /** How many accounts the crawler uses at once; default 1. */
  size?: number;
}

interface Held {
  session: Session;
  crawlee: CrawleeSession;
}

/**
 * Gives each of a Crawlee crawler's sessions an account of a pool, with its cookies and `user_data` as `userData`.
 *
 * `markGood`, `markBad` and `retire` mean what they do in Crawlee. A retired session gives its account back: `logged_out`
 * after a 401, `bad` after too many errors, else `blocked`; the next session takes another account. The accounts still
 * held are given back, with their cookies, by `release`, after the crawler has run.
 */
export class SdsSessions<Taken extends CrawleeSession> {
  readonly #client: Client;
  readonly #pool: string;
  readonly #options: SdsSessionsOptions<Taken>;
  readonly #held = new Set<Held>();
  readonly #releases: Promise<void>[] = [];

  constructor(client: Client, pool: string, options: SdsSessionsOptions<Taken>) {
    [this.#client, this.#pool, this.#options] = [client, pool, options];
  }

  /** For the crawler: `new CheerioCrawler({ sessionPoolOptions: sessions.poolOptions, … })`. */
  get poolOptions(): {
    maxPoolSize: number;
    persistenceOptions: { enable: false };
    createSessionFunction: (pool: object, options?: { sessionOptions?: object }) => Promise<Taken>;
  } {
    return {
      maxPoolSize: this.#options.size ?? 1,
      persistenceOptions: { enable: false }, // a session of an earlier run has no account any more
      createSessionFunction: (pool, options) => this.#take(pool, options?.sessionOptions),
    };
  }

  /** Give all accounts back. Rejects when one could not be. */
  async release(): Promise<void> {
    for (const held of [...this.#held]) this.#end(held, "good");
    await Promise.all(this.#releases.splice(0));
  }

  async #take(sessionPool: object, sessionOptions: object = {}): Promise<Taken> {
    const { Session: CrawleeSession, size: _, ...wanted } = this.#options;
    const session = await this.#client.session(this.#pool, wanted);
    const ofPool = (sessionPool as { sessionOptions?: object }).sessionOptions;
    const crawlee = new CrawleeSession({ ...ofPool, ...sessionOptions, sessionPool, userData: session.user_data });
    for (const cookie of session.storage_state?.cookies ?? []) {
      const host = cookie.domain.replace(/^\./, "");
      crawlee.setCookies([cookie], `${cookie.secure ? "https" : "http"}://${host}${cookie.path || "/"}`);
    }
    this.#watch({ session, crawlee });
    return crawlee;
  }

  /** Learn what Crawlee and its user say of a session. */
  #watch(held: Held): void {
    const { crawlee, session } = held;
    const [markGood, markBad, retire] = [crawlee.markGood, crawlee.markBad, crawlee.retire].map((method) => method.bind(crawlee));
    const retireOnBlockedStatusCodes = crawlee.retireOnBlockedStatusCodes.bind(crawlee);
    let outcome: Outcome = "blocked";
    const during = (said: Outcome, call: () => void): void => {
      outcome = said;
      call();
      outcome = "blocked";
    };
    // Both retire the session when it has been used or has failed too often.
    crawlee.markGood = () => during("good", markGood!);
    crawlee.markBad = () => during("bad", markBad!);
    crawlee.retire = () => {
      retire!();
      this.#end(held, outcome);
    };
    crawlee.retireOnBlockedStatusCodes = (status, more) => {
      let isBlocked = false;
      during(status === 401 ? "logged_out" : "blocked", () => {
        isBlocked = retireOnBlockedStatusCodes(status, more);
      });
      return isBlocked;
    };
    this.#held.add(held);
    session.signal.addEventListener("abort", () => crawlee.retire(), { once: true });
  }

  #end(held: Held, outcome: Outcome): void {
    if (!this.#held.delete(held) || held.session.signal.aborted) return;
    const release = held.session.release(outcome, stateOf(held));
    release.catch(() => undefined); // `release` reports it
    this.#releases.push(release);
  }
}

interface JarCookie {
  key: string;
  value: string;
  domain: string;
  path?: string;
  expires?: string | Date | "Infinity";
  hostOnly?: boolean;
  httpOnly?: boolean;
  secure?: boolean;
  sameSite?: string;
}

/** Return the cookies that the session has now, beside the local storage with which it began. */
function stateOf({ session, crawlee }: Held): StorageState {
  const { cookies } = crawlee.getState().cookieJar as { cookies: JarCookie[] };
  return {
    cookies: cookies.map((cookie) => {
      const expires = Date.parse(String(cookie.expires)) / 1000;
      const site = (["Strict", "Lax", "None"] as const).find((name) => name.toLowerCase() === cookie.sameSite);
      return {
        name: cookie.key,
        value: cookie.value,
        domain: cookie.hostOnly ? cookie.domain : `.${cookie.domain}`,
        path: cookie.path ?? "/",
        expires: Number.isNaN(expires) ? -1 : expires,
        httpOnly: cookie.httpOnly ?? false,
        secure: cookie.secure ?? false,
        ...(site && { sameSite: site }),
      };
    }),
    origins: session.storage_state?.origins ?? [],
  };
}
