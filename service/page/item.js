// One item: what the service knows about it, its data as a tree, its files.

import { toJson } from "./api.js";
import { copyButton, el, isWebAddress, outside, put } from "./dom.js";
import { count, many, shorten, when } from "./format.js";

const OPEN_LEVELS = 2;
const INDENTED_LEVELS = 8; // deeper, there is no room left on a phone
const ENTRIES = 100;
const LONGEST = 500;

/** Return the content of an item's panel. */
export function itemView(item) {
  return [
    el("dl", { class: "facts" },
      fact("Source", outside(item.source_url)),
      fact("Job", item.root_job_id),
      fact("Approved", item.is_approved ? el("span", { class: "chip good" }, "approved") : "no"),
      fact("Created", date(item.create_date)),
      fact("Updated", date(item.update_date)),
      fact("Last scraped", date(item.last_scraped_date))),
    section("Data", tree(item.data), copyButton("Copy JSON", () => toJson(item))),
    section("Tags", tree(item.tags)),
    section(`Files (${count(item.files.length)})`, item.files.length ? el("ul", { class: "files" }, item.files.map(file)) : el("p", { class: "faint" }, "No files.")),
    el("details", { class: "hashes" }, el("summary", null, "Identity"),
      el("dl", { class: "facts" }, fact("Id", code(item.id)), fact("Output id", code(item.output_id)), fact("Key hash", code(item.key_hash)), fact("Value hash", code(item.value_hash)))),
  ];
}

const section = (title, content, ...tools) =>
  el("section", null, el("div", { class: "heading" }, el("h3", null, title), ...tools), content);
const fact = (name, value) => el("div", null, el("dt", null, name), el("dd", null, value));
const date = (text) => el("time", { datetime: text, title: text }, `${when(text)} UTC`);
const code = (value) => el("code", null, value);

function file(one) {
  const name = shorten(one.blob_key || one.field || one.id, 80);
  const links = [["File", one.file_url], ["Stored copy", one.blob_url], ["Found at", one.source_url]];
  const seen = new Set();
  return el("li", null,
    el("strong", null, name), " ", one.file_type && el("span", { class: "chip" }, shorten(one.file_type, 60)),
    el("dl", { class: "facts" },
      links.filter(([, url]) => url && !seen.has(url) && seen.add(url)).map(([title, url]) => fact(title, outside(url, shorten(url, 160)))),
      one.field && fact("Field", code(shorten(one.field, 200))),
      one.file_checksum && fact("Checksum", code(shorten(one.file_checksum, 200)))),
    Object.keys(one.file_metadata).length > 0 && tree(one.file_metadata));
}

/** Return an object or array as nested lists; what is inside is made when it is opened. */
export function tree(value, level = 0) {
  const isList = Array.isArray(value);
  const keys = isList ? value.map((_, i) => i) : Object.keys(value);
  if (!keys.length) return el("p", { class: "faint" }, isList ? "empty list" : "empty");
  const list = el("ul", { class: level > INDENTED_LEVELS ? "tree flat" : "tree" });
  const add = (from) => {
    list.append(...keys.slice(from, from + ENTRIES).map((key) => entry(key, value[key], level)));
    const left = keys.length - from - ENTRIES;
    if (left > 0) {
      const more = el("li", null, el("button", { type: "button", class: "quiet", onclick: () => { more.remove(); add(from + ENTRIES); } }, `Show ${count(Math.min(left, ENTRIES))} of ${count(left)} more`));
      list.append(more);
    }
  };
  add(0);
  return list;
}

function entry(key, value, level) {
  const name = el("span", { class: typeof key === "number" ? "name place" : "name" }, typeof key === "number" ? `${key + 1}.` : shorten(key, 200) || "(no name)");
  if (typeof value !== "object" || value === null) return el("li", { class: "leaf" }, name, leaf(value));
  const size = Array.isArray(value) ? many(value.length, "entry", "entries") : many(Object.keys(value).length, "field");
  if (!Object.keys(value).length) return el("li", { class: "leaf" }, name, el("span", { class: "faint" }, Array.isArray(value) ? "empty list" : "empty"));
  const branch = el("details", null, el("summary", null, name, el("span", { class: "faint" }, size)));
  const grow = () => branch.children.length === 1 && branch.append(tree(value, level + 1));
  branch.addEventListener("toggle", grow);
  if (level + 1 < OPEN_LEVELS && Object.keys(value).length <= 20) {
    branch.open = true;
    grow();
  }
  return el("li", null, branch);
}

function leaf(value) {
  if (typeof value !== "string") return el("span", { class: `value ${value === null ? "faint" : "plain"}` }, String(value));
  if (isWebAddress(value)) return el("span", { class: "value" }, outside(value, shorten(value, 160)));
  const text = el("span", { class: "value" }, value === "" ? el("span", { class: "faint" }, "empty text") : shorten(value, LONGEST));
  if (value.length <= LONGEST) return text;
  const more = el("button", { type: "button", class: "quiet", onclick: () => put(text, value) }, `Show all ${count(value.length)} characters`);
  text.append(" ", more);
  return text;
}
