// The public API of the service, and nothing else.

import { pairsOf } from "./place.js";
import { token } from "./session.js";

/** What went wrong, in words for people. `status` is 0 when there was no response. */
export class Failure extends Error {
  constructor(status, problems = []) {
    super(TITLES[status] ?? (status >= 500 ? "The service failed" : "The request was refused"));
    this.status = status;
    this.problems = problems;
  }

  /** Return one sentence for each problem. */
  get details() {
    if (this.status === 0) return ["There was no response. Is the service running, and are you online?"];
    return this.problems.map(({ loc, msg }) => (loc?.[0] === "query" ? `${loc.slice(1).join(" › ")}: ${msg}` : msg));
  }

  get sentence() {
    return [`${this.message}.`, ...this.details].join(" ");
  }
}

const RESPONSE_MS = 60_000; // until a response begins; the service holds a request for up to 25 s, an export for longer
const NOT_LOADED = -1;
const TITLES = {
  [NOT_LOADED]: "A part of the page could not be loaded",
  0: "The service cannot be reached",
  401: "The token does not work",
  403: "The token does not have the scope for this",
  404: "There is nothing here",
  412: "It was changed meanwhile",
  422: "The request cannot be used",
  429: "Too many requests",
  503: "The service is busy or its database is away",
};

/** Return a module that is being imported; a `Failure` where it cannot be loaded. */
export const loaded = (importing) => importing.catch((error) => {
  if (!(error instanceof TypeError)) throw error;
  throw new Failure(NOT_LOADED, [{ msg: "Reload the page, and try again if the service was away." }]);
});

/** Return an error that says `text` to people. */
export const problem = (text) => Object.assign(new Error(text), { sentence: text });

/** Return what an error says to people. */
export const sentenceOf = (error) => error?.sentence ?? "Something went wrong.";

/** Return the address of an API path under the page's own, with the parameters that have a value. */
export function address(path, params = {}) {
  const url = new URL(`v1/${path.map(encodeURIComponent).join("/")}`, document.baseURI);
  for (const [name, value] of pairsOf(params)) url.searchParams.append(name, value);
  url.hash = "";
  return url.href.replaceAll("'", "%27");
}

/**
 * What the shell does for every call: `heard(status)` learns how it went, and `askAgain(failure)` asks for another
 * token when one no longer works; it throws the failure when the person does not give one.
 */
export const shell = { heard: () => {}, askAgain: null };

/**
 * Return the response of a successful call. Throws a `Failure`, or what `signal` was aborted with.
 *
 * After a 401 the person is asked for another token, and the call is made again: nothing is lost. A `quiet` call,
 * which nobody waits for, does not ask. `as` is a token that is only tried.
 */
export async function call(method, path, options = {}) {
  for (;;) {
    const used = options.as ?? token.get();
    try {
      return await send(method, path, used, options);
    } catch (error) {
      if (error.status !== 401 || options.quiet || options.as || !shell.askAgain) throw error;
      if (token.get() === used) await shell.askAgain(error);
    }
  }
}

async function send(method, path, bearer, { params, body, headers, signal, isExport }) {
  // A connection that died in silence, as after a sleep, would keep a call waiting for minutes.
  const late = new AbortController();
  const timer = isExport ? 0 : setTimeout(() => late.abort(), RESPONSE_MS);
  try {
    const response = await fetch(address(path, params), {
      method,
      headers: { Authorization: `Bearer ${bearer}`, ...(body && { "Content-Type": "application/json" }), ...headers },
      body: body && toJson(body, 0),
      // The browser's cache knows nothing of tokens: another one must not get this one's responses.
      cache: "no-store",
      credentials: "omit",
      signal: AbortSignal.any([late.signal, ...(signal ? [signal] : [])]),
    });
    shell.heard(response.status);
    if (response.ok) return response;
    const problems = parse(await response.text())?.detail;
    throw new Failure(response.status, Array.isArray(problems) ? problems : []);
  } catch (error) {
    if (error instanceof Failure || signal?.aborted) throw error;
    shell.heard(0);
    throw new Failure(0);
  } finally {
    clearTimeout(timer);
  }
}

const json = async (method, path, options) => {
  const response = await call(method, path, options);
  try {
    return parse(await response.text());
  } catch (error) {
    if (options.signal?.aborted) throw error;
    shell.heard(0);
    throw new Failure(0);
  }
};

/** Return a page of a list, and the cursor of the next one, which the header `Link` has; "" if there is none. */
export async function getPage(path, params, signal) {
  const response = await call("GET", path, { params, signal });
  const [, next] = response.headers.get("Link")?.match(/<([^>]*)>; *rel="next"/) ?? [];
  return { items: parse(await response.text()), next: next ? new URL(next).searchParams.get("cursor") : "" };
}

export const get = (path, params, signal, more) => json("GET", path, { params, signal, ...more });
export const post = (path, body) => json("POST", path, { body });
export const patch = (path, body) => json("PATCH", path, { body });
export const write = (path, body) => json("PUT", path, { body });
export const remove = (path, params, more) => json("DELETE", path, { params, ...more });

function parse(text) {
  try {
    return JSON.parse(text, exactly);
  } catch {
    return null;
  }
}

// Scraped ids are often longer than the 53 bits of a JavaScript number.
function exactly(_, value, context) {
  const rounded = typeof value === "number" && !Number.isSafeInteger(value) && /^-?\d+$/.test(context?.source ?? "");
  return rounded ? BigInt(context.source) : value;
}

/** Return a value as JSON again. */
export function toJson(value, indent = 2) {
  return JSON.stringify(value, (_, v) => (typeof v === "bigint" ? JSON.rawJSON(String(v)) : v), indent);
}
