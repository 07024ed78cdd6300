// The deleted items of a group: what each was last, who or what deleted it and when, and the way back.

import { get, post, sentenceOf } from "../base/api.js";
import { say } from "../base/dialogs.js";
import { announce, button, cell, el, faint, loading, put, row, rowHead, scrolling, table, time } from "../base/dom.js";
import { actor, keyOf, many, shorten } from "../base/format.js";
import { go, link, replace } from "../base/place.js";
import { may } from "../base/session.js";
import { defaults, discover } from "../items/table.js";

const ROWS = ["25", "100", "250"];
const AT_ONCE = 5; // last versions that are read, and items that are restored, at the same time

export async function show(view, params, signal, stay) {
  if (stay) put(view.tab, loading());
  const page = await get(["outputs", view.group], { deleted: "only", order: "desc", limit: params.limit || ROWS[0], cursor: params.after ?? "" }, signal);
  if (!page.items.length && params.after) return replace([...view.path, "deleted"], { limit: params.limit }); // the last page was restored
  const found = await inParts(page.items, async (item) => ({ item, last: await lastVersion(view, item, signal) }));
  const again = () => show(view, params, undefined, null);
  const chosen = new Set();
  const bar = el("div", { class: "toolbar" });
  const refresh = () => put(bar,
    el("h2", { id: "deleted-title", tabindex: -1, class: "unseen" }, "Deleted items"),
    may("write") && el("label", { class: "check" }, all, "Select all rows"),
    el("span", { class: "faint" }, chosen.size ? `${many(chosen.size, "item")} selected` : "Deleted items are kept until the group's history ends."),
    may("write") && el("div", { class: "actions" }, button(`Restore${chosen.size ? ` ${chosen.size}` : ""} selected`, () => restore(view, [...chosen], again), "primary", { disabled: !chosen.size })));
  const all = el("input", {
    type: "checkbox", "aria-label": "Select all rows", onchange: () => {
      for (const one of view.tab.querySelectorAll("tbody input:enabled")) if (one.checked !== all.checked) one.click();
    },
  });
  const choose = (id, yes) => {
    if (yes) chosen.add(id);
    else chosen.delete(id);
    if (!yes) all.checked = false;
    refresh();
  };
  refresh();
  put(view.tab, found.length
    ? el("section", { class: "panel deleted" }, bar,
      scrolling("Deleted items", table("deleted", ["Item", "Last data", "Deleted by", "When", "Actions"], found.map((one) => line(view, one, choose, again)))),
      pager(view, params, page))
    : el("section", { class: "panel empty" }, el("h2", null, "Nothing was deleted"), el("p", null, "Items that people, crawls or the retention delete appear here, as long as the group keeps its history.")));
  announce(many(found.length, "deleted item"));
}

/** Return the ways to other pages, and how many rows one has; null where all are shown. */
function pager(view, params, { items, metadata: { next_cursor: next } }) {
  const path = [...view.path, "deleted"];
  if (next === null && !params.after && items.length <= Number(ROWS[0])) return null;
  const rows = el("select", { id: "deleted-rows", onchange: () => go(path, { limit: rows.value }) }, ROWS.map((n) => el("option", { selected: n === params.limit }, n)));
  return el("nav", { class: "pager", "aria-label": "Pages" }, el("label", { class: "rows-choice", for: "deleted-rows" }, "Rows", rows), el("div", { class: "actions" },
    params.after && el("a", { class: "button", href: link(path, { limit: params.limit }) }, "First"),
    next !== null && el("a", { class: "button", rel: "next", href: link(path, { limit: params.limit, after: String(next) }) }, "Next")));
}

/** Return the version of an item that was deleted, or null where it is not kept. */
async function lastVersion(view, { output_id }, signal) {
  const { items: [last] } = await get(["outputs", view.group, output_id, "versions"], { limit: "1" }, signal);
  return last ?? null;
}

function line(view, { item, last }, choose, again) {
  const name = nameOf(item, last);
  const check = may("write") && last && el("input", { type: "checkbox", "aria-label": `Select ${name}`, onchange: () => choose(item.output_id, check.checked) });
  return row(null,
    rowHead(null, el("label", { class: "check" }, check, el("span", { class: "text" }, name))),
    cell("Last data", "", last ? el("span", { class: "text" }, summary(last, name)) : faint("no longer kept")),
    cell("Deleted by", "", last ? actor(last.by) : faint("–")),
    cell("When", "", time(item.update_date)),
    cell("Actions", "tools-cell", may("write") && last && button("Restore", () => restore(view, [item.output_id], again), "quiet small", { "aria-label": `Restore ${name}` })));
}

function nameOf(item, last) {
  const title = last && Object.entries(last.data).find(([key, value]) => /^(title|name|headline|label)$/i.test(key) && typeof value === "string");
  return title ? shorten(title[1], 80) : keyOf(item);
}

/** Return the most telling values of an item in a line, without its name. */
function summary(last, name) {
  const paths = defaults([last], discover([last])).filter((path) => path.startsWith("data.")).slice(0, 5);
  const values = paths.map((path) => path.slice(5).split(".").reduce((value, key) => value?.[key], last.data)).filter((value) => ["string", "number", "bigint", "boolean"].includes(typeof value) && value !== name);
  return shorten(values.join(" · ") || last.source_url, 120);
}

async function restore(view, ids, again) {
  let failed = 0, failure = null;
  if (ids.length > AT_ONCE) say(`Restoring ${many(ids.length, "item")} …`);
  await inParts(ids, (id) => post(["outputs", view.group, id, "restore"]).catch((error) => {
    if (error.status !== 409) { // else it is there again already
      failed += 1;
      failure = error;
    }
  }));
  const done = ids.length - failed;
  if (failed) say(`${done ? `${many(done, "item is", "items are")} restored. ` : ""}${many(failed, "item", "items")} could not be restored. ${sentenceOf(failure)}`, "bad");
  else say(`${many(done, "item is", "items are")} restored`);
  await Promise.all([view.refresh(), again()]);
  view.tab.querySelector("#deleted-title, h2")?.focus();
}

async function inParts(values, work) {
  const done = [];
  for (let at = 0; at < values.length; at += AT_ONCE) done.push(...await Promise.all(values.slice(at, at + AT_ONCE).map(work)));
  return done;
}
