// Which columns a table of outputs has, and how a cell looks.

import { el, faint, isWebAddress, outside, time } from "./dom.js";
import { at, isObject, joinPath, many, shorten, splitPath } from "./format.js";
import { isInline, thumbnail } from "./pictures.js";

const LABELS = {
  root_job_id: "Job", is_approved: "Approved", update_date: "Updated (UTC)", create_date: "Created (UTC)",
  last_scraped_date: "Last scraped (UTC)", source_url: "Source", output_id: "Output id", files: "Files",
  key_hash: "Key", value_hash: "Value hash",
};
const DATES = new Set(["update_date", "create_date", "last_scraped_date"]);
const ITEM_COLUMNS = Object.keys(LABELS);
const TELLING = /^(title|name|headline|product|company|subject|label)$/i;
const DEEPEST = 4;
const MOST = 300;
const LONGEST = 120;

/** Return the columns that these items can fill, in the order in which they appear: `{path, keys, values}`. */
export function discover(items) {
  const found = new Map();
  const visit = (value, keys) => {
    if (isObject(value) && keys.length < DEEPEST && Object.keys(value).length) {
      for (const key of Object.keys(value)) visit(value[key], [...keys, key]);
    } else if (keys.length > 1) {
      const path = joinPath(keys);
      if (!found.has(path) && found.size < MOST) found.set(path, { path, keys, values: [] });
      found.get(path)?.values.push(value);
    }
  };
  for (const item of items) {
    visit(item.data, ["data"]);
    visit(item.tags, ["tags"]);
  }
  return [...found.values()];
}

/** Return the columns to begin with: the short and telling values of `data`, then the job, approval and date. */
export function defaults(items, columns) {
  const short = columns.filter(({ keys, values }) =>
    keys[0] === "data" && values.length * 2 >= items.length &&
    values.every((value) => typeof value !== "object" || value === null) &&
    values.reduce((sum, value) => sum + String(value).length, 0) / values.length <= 60 && !values.some(isWebAddress));
  const candidates = short.length ? short : columns.filter(({ keys }) => keys[0] === "data");
  const telling = candidates.filter(({ keys }) => keys.length === 2 && TELLING.test(keys.at(-1)));
  const chosen = [...new Set([...telling, ...candidates])].slice(0, 5);
  return [...chosen.map(({ path }) => path), "root_job_id", "is_approved", "update_date"];
}

/** Return the paths a person can choose from: what is in the data, the tags, the rest of the item, and `chosen`. */
export function choices(columns, chosen) {
  const known = [...columns.map(({ path }) => path), ...ITEM_COLUMNS];
  return [...known, ...chosen.filter((path) => !known.includes(path))];
}

export function label(path) {
  if (Object.hasOwn(LABELS, path)) return LABELS[path];
  return shorten(path.replace(/^data\./, ""), 60);
}

// Where the API has a filter for a column, a click on its cell filters by it.
const FILTERED = { root_job_id: "job_id", is_approved: "is_approved", "tags.country": "country", "tags.region": "region" };

/** Return a cell's content and class; `filterLink(name, value)` leads to the items that have the same. */
export function content(item, path, filterLink) {
  const value = at(item, splitPath(path));
  if (DATES.has(path)) return { content: time(value), kind: "date" };
  if (path === "is_approved") {
    return { content: el("a", { class: value ? "chip good" : "faint", href: filterLink("is_approved", String(value)), title: value ? "Only approved ones" : "Only those not approved" }, value ? "approved" : "no"), kind: "" };
  }
  if (Object.hasOwn(FILTERED, path) && typeof value === "string" && value) {
    return { content: el("a", { class: "text", href: filterLink(FILTERED[path], value), title: `Only ${label(path)} ${shorten(value, 60)}` }, shorten(value, 60)), kind: "" };
  }
  return show(value);
}

function show(value) {
  if (value === undefined) return { content: faint("–"), kind: "" };
  if (value === null) return { content: faint("null"), kind: "" };
  if (Array.isArray(value)) return { content: faint(many(value.length, "entry", "entries")), kind: "" };
  if (typeof value === "object") return { content: faint(many(Object.keys(value).length, "field")), kind: "" };
  if (typeof value === "number" || typeof value === "bigint") return { content: String(value), kind: "number" };
  if (typeof value === "boolean") return { content: String(value), kind: "" };
  if (isInline(value)) return { content: thumbnail(value), kind: "picture-cell" };
  if (isWebAddress(value)) return { content: outside(value, shorten(value.replace(/^https?:\/\//i, ""), 48)), kind: "address" };
  return { content: el("span", { class: "text", title: value.length > 40 && shorten(value, 600) }, shorten(value, LONGEST)), kind: "" };
}

/** Return a value in a few words. */
export function sample(item, path) {
  const value = at(item, splitPath(path));
  if (value === undefined) return "";
  return typeof value === "object" ? show(value).content.textContent : shorten(String(value), 40);
}
