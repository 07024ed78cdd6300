import { ServiceError } from "./errors.js";
import type { Problem } from "./types.js";

export interface ClientOptions {
  /** Address of the service; default: `SDS_URL`, else http://127.0.0.1:8080. A `/v1` at its end does no harm. */
  url?: string | undefined;
  /** Access token; default: `SDS_TOKEN`. */
  token?: string | undefined;
  /** Seconds for one response; default 60. */
  timeout?: number;
  /** Seconds for which a service that is away or busy is waited for, after the first failure; default 120. */
  patience?: number;
  /** In place of the global `fetch`. */
  fetch?: typeof fetch;
  /** Called before a request is repeated, with the reason and the seconds of patience that are left. */
  onWait?: (error: ServiceError, seconds: number) => void;
}

export interface Request {
  query?: URLSearchParams;
  /** JSON text. */
  body?: string;
  /** Seconds that the service was asked to hold the request. */
  wait?: number;
  /** False where a repetition could do something twice. */
  repeatable?: boolean;
  signal?: AbortSignal | undefined;
}

export interface Response<Value> {
  value: Value;
  headers: Headers;
}

// A busy or restarting service, or a proxy before it; 408: the body did not arrive in time.
const BUSY = new Set([408, 429, 502, 503, 504]);
// A request that is refused with one of these stored nothing.
const NOT_STORED = new Set([408, 429]);
// The request never left.
const NOT_CONNECTED = new Set(["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "UND_ERR_CONNECT_TIMEOUT", "ConnectionRefused"]);
const NO_TOKEN =
  "no access token: set SDS_TOKEN, or give a token; `make run` prints one, and where the service runs, " +
  "`scraping-data-service token create --organization 1` makes one";
const [MIN_PAUSE, MAX_PAUSE] = [0.2, 15];
// A slower upload counts as a lost connection.
const MIN_BYTES_PER_SECOND = 20_000;

/** Sends requests, again where that is safe, and turns refusals into ServiceError. */
export class Transport {
  readonly url: string;
  readonly #token: string;
  readonly #options: ClientOptions;

  constructor(options: ClientOptions) {
    const environment = (globalThis as { process?: { env?: Record<string, string | undefined> } }).process?.env ?? {};
    const url = options.url || environment["SDS_URL"] || "http://127.0.0.1:8080";
    if (!/^https?:\/\//.test(url)) throw new TypeError("the address of the service must start with http:// or https://");
    const token = options.token || environment["SDS_TOKEN"];
    if (!token) throw new TypeError(NO_TOKEN);
    this.url = url.replace(/\/+$/, "").replace(/\/v1$/, "");
    this.#token = token;
    this.#options = options;
  }

  /** Return the response to a request. The service is waited for until `patience` ends. */
  async call<Value>(method: string, path: string, request: Request = {}): Promise<Response<Value>> {
    const { patience = 120, onWait } = this.#options;
    let [ceiling, since] = [MIN_PAUSE, Infinity];
    for (;;) {
      try {
        return await this.#once<Value>(method, path, request);
      } catch (error) {
        request.signal?.throwIfAborted();
        const failure = error instanceof ServiceError ? error : lost(error);
        if (!mayRepeat(failure, request.repeatable ?? true)) throw failure;
        const pause = Math.max(failure.retryAfter ?? 0, ceiling * (0.5 + Math.random() / 2));
        since = Math.min(since, now());
        const left = patience - (now() - since);
        if (pause > left) throw failure;
        onWait?.(failure, left);
        ceiling = Math.min(ceiling * 2, MAX_PAUSE);
        await sleep(pause, request.signal);
      }
    }
  }

  /** Send a value as JSON and return the one in the response. */
  async send<Value>(method: string, path: string, value: unknown, request: Request = {}): Promise<Value> {
    return (await this.call<Value>(method, path, { ...request, body: JSON.stringify(value) })).value;
  }

  async #once<Value>(method: string, path: string, request: Request): Promise<Response<Value>> {
    const { query, body, wait = 0, signal } = request;
    signal?.throwIfAborted();
    const seconds = (this.#options.timeout ?? 60) + wait + (body?.length ?? 0) / MIN_BYTES_PER_SECOND;
    const ending = new AbortController();
    const stop = (): void => ending.abort(signal?.reason);
    const timer = setTimeout(() => ending.abort(new ServiceError(0, [], "the service did not respond in time")), seconds * 1000);
    signal?.addEventListener("abort", stop);
    try {
      const headers: Record<string, string> = { Authorization: `Bearer ${this.#token}` };
      if (body !== undefined) headers["Content-Type"] = "application/json";
      const address = `${this.url}${path}${query?.size ? `?${query}` : ""}`;
      // No redirects: the token is for this address only.
      const init: RequestInit = { method, headers, body: body ?? null, redirect: "manual", signal: ending.signal };
      const response = await (this.#options.fetch ?? fetch)(address, init);
      const text = await response.text();
      if (response.status !== 200) throw refusal(response, text);
      return { value: parse(response, text) as Value, headers: response.headers };
    } finally {
      clearTimeout(timer);
      signal?.removeEventListener("abort", stop);
    }
  }
}

/** Return the path of a resource below /v1, its parts quoted. */
export function pathOf(...parts: string[]): string {
  return ["/v1", ...parts.map(encodeURIComponent)].join("/");
}

/** Seconds of a clock that is never set back. */
export function now(): number {
  return performance.now() / 1000;
}

/** Wait; rejects with the signal's reason when it is aborted. */
export function sleep(seconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = (): void => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, seconds * 1000);
    if (signal?.aborted) stop();
    else signal?.addEventListener("abort", stop, { once: true });
  });
}

function mayRepeat(failure: ServiceError, isRepeatable: boolean): boolean {
  if (failure.status) return BUSY.has(failure.status) && (isRepeatable || NOT_STORED.has(failure.status));
  return isRepeatable || NOT_CONNECTED.has(codeOf(failure.cause));
}

function codeOf(error: unknown): string {
  const { code, cause } = (error ?? {}) as { code?: unknown; cause?: unknown };
  return typeof code === "string" || cause === undefined ? String(code) : codeOf(cause);
}

function lost(error: unknown): ServiceError {
  const code = codeOf(error);
  let text = "the connection was lost";
  if (NOT_CONNECTED.has(code)) text = `cannot connect to the service (${code})`;
  if (/CERT|UNABLE_TO_/.test(code))
    text = `the certificate of the service is not trusted (${code}): NODE_EXTRA_CA_CERTS names a file with those to trust`;
  return new ServiceError(0, [], text, { cause: error });
}

function parse(response: globalThis.Response, text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    // Behind some proxies a lost connection looks like the end of the response.
    if (response.headers.get("Content-Type")?.startsWith("application/json") && text) throw lost(undefined);
    throw new ServiceError(200, [], "the response is not JSON: is this the address of the service?");
  }
}

/** Return the error of a response; a body that is not in the service's error shape is left out. */
function refusal(response: globalThis.Response, text: string): ServiceError {
  let problems: Problem[] = [];
  try {
    const { detail } = JSON.parse(text) as { detail?: unknown };
    if (Array.isArray(detail)) problems = detail.filter((problem) => Array.isArray((problem as Problem).loc));
  } catch {
    // A proxy's page.
  }
  const location = response.headers.get("Location");
  const reason = `${response.statusText}${location ? ` to ${location}` : ""}`;
  const error = new ServiceError(response.status, problems, problems.length ? "" : reason);
  const header = response.headers.get("Retry-After");
  const seconds = header === null ? NaN : /^\d+$/.test(header) ? Number(header) : (Date.parse(header) - Date.now()) / 1000;
  if (seconds >= 0) error.retryAfter = seconds;
  return error;
}
