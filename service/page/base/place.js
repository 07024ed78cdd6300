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
  return { path: names.length ? names : ["groups"], params: Object.fromEntries(new URLSearchParams(query ?? "")) };
}

/** Return the link to a view; parameters without a value are left out. */
export function link(path, params = {}) {
  const given = Object.entries(params).filter(([, value]) => value);
  const query = new URLSearchParams(given).toString();
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
