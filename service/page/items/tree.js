// JSON as nested lists that open.

import { el, faint, isWebAddress, outside, put } from "../base/dom.js";
import { count, many, shorten } from "../base/format.js";
import { isInline, thumbnail } from "./pictures.js";

const OPEN_LEVELS = 2;
const INDENTED_LEVELS = 8; // deeper, there is no room left on a phone
const ENTRIES = 100;
const LONGEST = 500;

/** Return an object or array as nested lists; what is inside is made when it is opened. `filter(keys, value)` leads to the items that have the same. */
export function tree(value, level = 0, filter = null, keysAbove = []) {
  const isList = Array.isArray(value);
  const keys = isList ? value.map((_, i) => i) : Object.keys(value);
  if (!keys.length) return el("p", { class: "faint" }, isList ? "empty list" : "empty");
  const list = el("ul", { class: level > INDENTED_LEVELS ? "tree flat" : "tree" });
  const add = (from) => {
    list.append(...keys.slice(from, from + ENTRIES).map((key) => entry(key, value[key], level, isList ? null : filter, [...keysAbove, key])));
    const left = keys.length - from - ENTRIES;
    if (left > 0) {
      const more = el("li", null, el("button", { type: "button", class: "quiet", onclick: () => { more.remove(); add(from + ENTRIES); } }, `Show ${count(Math.min(left, ENTRIES))} of ${count(left)} more`));
      list.append(more);
    }
  };
  add(0);
  return list;
}

function entry(key, value, level, filter, keys) {
  const name = el("span", { class: typeof key === "number" ? "name place" : "name" }, typeof key === "number" ? `${key + 1}.` : shorten(key, 200) || "(no name)");
  if (typeof value !== "object" || value === null) return el("li", { class: "leaf" }, name, el("span", null, leaf(value), isFilter(filter, keys, value) && el("a", { class: "only", href: filter(keys, value), "aria-label": `Only items with this ${key}` }, "Only these")));
  const size = Array.isArray(value) ? many(value.length, "entry", "entries") : many(Object.keys(value).length, "field");
  if (!Object.keys(value).length) return el("li", { class: "leaf" }, name, el("span", { class: "faint" }, Array.isArray(value) ? "empty list" : "empty"));
  const branch = el("details", null, el("summary", null, name, el("span", { class: "faint" }, size)));
  const grow = () => branch.children.length === 1 && branch.append(tree(value, level + 1, filter, keys));
  branch.addEventListener("toggle", grow);
  if (level + 1 < OPEN_LEVELS && Object.keys(value).length <= 20) {
    branch.open = true;
    grow();
  }
  return el("li", null, branch);
}

/** Return whether the service can filter by a value: it is short, and its path has no sign with a meaning. */
const isFilter = (filter, keys, value) => filter && value !== null && String(value).length <= 100 && value !== "" && !keys.some((key) => /[.:\\]/.test(key));

function leaf(value) {
  if (typeof value !== "string") return el("span", { class: `value ${value === null ? "faint" : "plain"}` }, String(value));
  if (isInline(value)) return el("span", { class: "value" }, thumbnail(value, "large"), faint(`${value.match(/^[^;,]*/)[0]}, ${count(value.length)} characters`));
  if (isWebAddress(value)) return el("span", { class: "value" }, outside(value, shorten(value, 160)));
  const text = el("span", { class: "value" }, value === "" ? el("span", { class: "faint" }, "empty text") : shorten(value, LONGEST));
  if (value.length <= LONGEST) return text;
  const more = el("button", { type: "button", class: "quiet", onclick: () => put(text, value) }, `Show all ${count(value.length)} characters`);
  text.append(" ", more);
  return text;
}
