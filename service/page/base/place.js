// Where one is: `#/groups/demo-shop?country=Germany`. The address holds the whole view; the token is never in it.

/** Return `{path: ["groups", "demo-shop"], params: {country: "Germany"}}` of the address bar. */
export function here() {
  const [path, query] = location.hash.replace(/^#\/?/, "").split(/\?(.*)/s);
  let names;
  try {
    names = path.split("/").filter(Boolean).map(decodeURIComponent);
  } catch {
    names = ["?"];
  }
  const given = new URLSearchParams(query ?? "");
  const params = Object.fromEntries(given);
  if (given.has("where")) params.where = given.getAll("where").join(BETWEEN);
  return { path: names.length ? names : ["groups"], params };
}

// `where` may be given several times: between its conditions stands what nobody types.
const BETWEEN = "\n";

/** Return the conditions of the parameter `where`. */
export const conditionsOf = (where) => (where ? where.split(BETWEEN) : []);

/** Return conditions as the parameter `where`. */
export const joinConditions = (conditions) => conditions.join(BETWEEN);

/** Return the parameters that have a value as pairs, each condition of `where` one of its own. */
export const pairsOf = (params) => Object.entries(params).filter(([, value]) => value)
  .flatMap(([name, value]) => (name === "where" ? conditionsOf(value).map((one) => [name, one]) : [[name, value]]));

/** Return the link to a view; parameters without a value are left out. */
export function link(path, params = {}) {
  const query = new URLSearchParams(pairsOf(params)).toString();
  return `#/${path.map(encodeURIComponent).join("/")}${query && `?${query}`}`;
}

export function go(path, params) {
  location.hash = link(path, params);
}

/** Change the view without a new entry in the history. */
export function replace(path, params) {
  history.replaceState(history.state, "", link(path, params));
  dispatchEvent(new HashChangeEvent("hashchange"));
}
