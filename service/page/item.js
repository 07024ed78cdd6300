// One item: what the service knows about it, its data as a tree, its files.

import { toJson } from "./api.js";
import { chip, copyButton, el, outside, time } from "./dom.js";
import { count, shorten, when } from "./format.js";
import { pictureOfFile, thumbnail } from "./pictures.js";
import { link } from "./place.js";
import { tree } from "./tree.js";

/** Return the content of an item's panel; `path` is that of its group. */
export function itemView(item, path) {
  return [
    el("dl", { class: "facts" },
      fact("Source", outside(item.source_url)),
      fact("Job", el("a", { href: link(path, { job_id: item.root_job_id }) }, shorten(item.root_job_id, 120))),
      fact("Approved", item.is_approved ? chip("approved", "good") : "no"),
      fact("Created", date(item.create_date)),
      fact("Updated", date(item.update_date)),
      fact("Last scraped", date(item.last_scraped_date))),
    section("Data", tree(item.data), copyButton("Copy JSON", () => toJson(item))),
    section("Tags", tree(item.tags)),
    section(`Files (${count(item.files.length)})`, item.files.length ? el("ul", { class: "files" }, item.files.map(file)) : el("p", { class: "faint" }, "No files.")),
    el("details", { class: "hashes" }, el("summary", null, "Identity"),
      el("dl", { class: "facts" }, fact("Id", code(String(item.id))), fact("Output id", code(item.output_id)), fact("Key hash", code(item.key_hash)), fact("Value hash", code(item.value_hash)))),
  ];
}

const section = (title, content, ...tools) =>
  el("section", null, el("div", { class: "heading" }, el("h3", null, title), ...tools), content);
const fact = (name, value) => el("div", null, el("dt", null, name), el("dd", null, value));
const date = (text) => time(text, `${when(text)} UTC`);
const code = (value) => el("code", null, value);

function file(one) {
  const name = shorten(one.blob_key || one.field || one.id, 80);
  const links = [["File", one.file_url], ["Stored copy", one.blob_url], ["Found at", one.source_url]];
  const seen = new Set();
  return el("li", null,
    el("strong", null, name), " ", one.file_type && chip(shorten(one.file_type, 60)),
    thumbnail(pictureOfFile(one), "large"),
    el("dl", { class: "facts" },
      links.filter(([, url]) => url && !seen.has(url) && seen.add(url)).map(([title, url]) => fact(title, outside(url, shorten(url, 160)))),
      one.field && fact("Field", code(shorten(one.field, 200))),
      one.file_checksum && fact("Checksum", code(shorten(one.file_checksum, 200)))),
    Object.keys(one.file_metadata).length > 0 && tree(one.file_metadata));
}
