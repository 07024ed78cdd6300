// Where one is in the items of a group, and the ways on and back.

import { el, put } from "./dom.js";
import { fresh } from "./filters.js";
import { many } from "./format.js";
import { go, link } from "./place.js";

const LIMITS = [10, 25, 50, 100, 250, 1000];
const USUAL_LIMIT = "25";

export const withLimit = (params) => ({ ...params, limit: params.limit ?? USUAL_LIMIT });

/** Fill `place` with what the page of `desk` shows and the links to the pages around it. */
export function showPager(place, desk) {
  const { items, page, params, view } = desk;
  const step = (name, to, rel) => (to === undefined
    ? el("span", { class: "button off", "aria-disabled": "true" }, name)
    : el("a", { class: "button", rel, href: link(view.path, fresh(params, to)), onclick: () => view.tab.querySelector("#outputs-title").focus() }, name));
  const limit = withLimit(params).limit;
  const rows = el("select", { id: "limit", onchange: () => go(view.path, fresh(params, { limit: rows.value === USUAL_LIMIT ? "" : rows.value })) },
    [...new Set([...LIMITS.map(String), limit])].map((n) => el("option", { selected: n === limit }, n)));
  const ids = items.length ? `ids ${items[0].id} to ${items.at(-1).id}` : "";
  put(place,
    el("p", { class: "faint" }, items.length ? `${many(items.length, "item")}, ${ids}${page.next ? "" : ", the end"}` : ""),
    el("label", { class: "rows-choice", for: "limit" }, "Rows", rows),
    el("div", { class: "actions" }, step("First", page.first), step("Previous", page.previous, "prev"), step("Next", page.next, "next"), step("Last", page.last)));
}
