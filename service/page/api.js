// The public API, and nothing else.

const KEY = "token";

// For this tab only: other tabs, and this one once closed, know nothing of it.
export const token = {
  get: () => sessionStorage.getItem(KEY),
  set: (text) => sessionStorage.setItem(KEY, text),
  forget: () => sessionStorage.clear(),
};

/** What went wrong, in words for people. `status` is 0 when there was no answer. */
export class Failure extends Error {
  constructor(status, problems = []) {
    super(TITLES[status] ?? (status >= 500 ? "The service failed" : "The request was refused"));
    this.status = status;
    this.problems = problems;
  }

  /** Return one sentence for each problem. */
  get details() {
    if (this.status === 0) return ["There was no answer. Is the service running, and are you online?"];
    return this.problems.map(({ loc, msg }) => (loc?.[0] === "query" ? `${loc.slice(1).join(" › ")}: ${msg}` : msg));
  }
}

const TITLES = {
  0: "The service cannot be reached",
  401: "The token does not work",
  403: "The token may not read",
  404: "There is nothing here",
  422: "The filters cannot be used",
  429: "Too many requests",
  503: "The service is busy or its database is away",
};

/** Return the address of an API path under the page's own, with the parameters that have a value. */
export function address(path, params = {}) {
  const url = new URL(`v1/${path.map(encodeURIComponent).join("/")}`, document.baseURI);
  for (const [name, value] of Object.entries(params)) if (value) url.searchParams.set(name, value);
  url.hash = "";
  return url.href.replaceAll("'", "%27");
}

/** Return the JSON of a GET. Throws a `Failure`, or what `signal` was aborted with. */
export async function get(path, params, signal) {
  let response, text;
  try {
    response = await fetch(address(path, params), {
      headers: { Authorization: `Bearer ${token.get()}` },
      // The browser's cache knows nothing of tokens: another one must not get this one's answers.
      cache: "no-store",
      credentials: "omit",
      signal,
    });
    text = await response.text();
  } catch (error) {
    throw signal?.aborted ? error : new Failure(0);
  }
  const body = parse(text);
  if (!response.ok) throw new Failure(response.status, Array.isArray(body?.detail) ? body.detail : []);
  return body;
}

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
export function toJson(value) {
  return JSON.stringify(value, (_, v) => (typeof v === "bigint" ? JSON.rawJSON(String(v)) : v), 2);
}
