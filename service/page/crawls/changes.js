// What one crawl changed: in how many items which fields, and each item before and after, filtered by field.

import { get, sentenceOf, toJson } from "../base/api.js";
import { cell, el, faint, put, row, rowHead, scrolling, table } from "../base/dom.js";
import { count, keyOf, many, shorten } from "../base/format.js";
import { link } from "../base/place.js";

const ROWS = "25";
const FIELDS = 12; // that the summary names
const COLUMNS = 5; // changed fields that a list of the items shows
const LONGEST = 200;

/** Return a section with what a job changed, which is read after the job is there; `params` has the field and the page. */
export function changesSection(view, job, params) {
  const path = [...view.path, "jobs", job.job_id];
  const summary = el("p", { class: "given" }, faint("…"));
  const list = el("div");
  const failed = (place) => (error) => put(place, faint(sentenceOf(error)));
  const read = (more) => get(["groups", view.group, "jobs", job.job_id, "changes"], more);
  read({ summary: "true" }).then((found) => put(summary, inWords(view, job, found, path, params)), failed(summary));
  read({ limit: ROWS, path: params.path, cursor: params.after }).then((page) => put(list, items(view, page, path, params)), failed(list));
  return el("section", { class: "panel changes", "aria-label": "What it changed" }, el("h2", null, "What it changed"), summary, list);
}

const short = (field) => shorten(field.replace(/^data\./, ""), 60);

/** Return "price changed in 212 items, title in 3", each field a link to its changes. */
function inWords(view, job, { items, fields, more }, path, params) {
  if (!items && more) return faint("Nothing was found in the time there is.");
  if (!items) return [faint("Its earlier versions are not kept: there is nothing to compare."), job.items > 0 && el("a", { href: link(view.path, { job_id: job.job_id, change: "changed" }) }, "Show the items as they are now")];
  const one = ({ path: field, changed }, at) => [at ? ", " : "",
    el("a", { href: link(path, { path: field }), "aria-current": params.path === field && "true" }, short(field)), at ? ` in ${count(changed)}` : ` changed in ${many(changed, "item")}`];
  return [
    el("span", null, ...fields.slice(0, FIELDS).flatMap(one), fields.length > FIELDS && `, and ${many(fields.length - FIELDS, "other field")}`, more ? ` (of the first ${many(items, "changed item")})` : "."),
    job.items > 0 && el("a", { href: link(view.path, { job_id: job.job_id, change: "changed", add: fields.slice(0, COLUMNS).map(({ path: field }) => field).join(",") }) }, "Show the items"),
    params.path && el("a", { class: "chip", href: link(path), "aria-label": `Remove the filter ${short(params.path)}` }, `Only ${short(params.path)}`, el("span", { "aria-hidden": "true" }, " ✕")),
  ];
}

function items(view, { items: changed, metadata }, path, params) {
  if (!changed.length && metadata.next_cursor === null) return null;
  const rows = changed.flatMap((item) => item.fields.map((field, at) => row(null,
    rowHead(null, at === 0 ? el("a", { href: link(view.path, { item: item.output_id }), title: item.source_url }, keyOf(item)) : el("span", { class: "unseen" }, keyOf(item))),
    cell("Field", "", el("span", { class: "text" }, short(field.path))),
    cell("Before", "", value(field.before, "old")), cell("After", "", value(field.after, "new")))));
  return [
    scrolling("Changed items", table("changed", ["Item", "Field", "Before", "After"], rows)),
    (metadata.next_cursor !== null || params.after) && el("nav", { class: "pager", "aria-label": "Pages of changes" }, el("span"), el("div", { class: "actions" },
      params.after && el("a", { class: "button", href: link(path, { path: params.path }) }, "First"),
      metadata.next_cursor !== null && el("a", { class: "button", rel: "next", href: link(path, { path: params.path, after: String(metadata.next_cursor) }) }, "Next"))),
  ];
}

const value = (one, kind) => (one === undefined ? faint("–") : el("span", { class: `value ${kind}` }, shorten(typeof one === "string" ? one : toJson(one, 0), LONGEST)));
