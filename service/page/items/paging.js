// Pages of outputs. The address says where a page begins (`after`) or ends (`before`), so every page can be
// reloaded and shared; `before=end` is the last one. What is shown is `order`: newest first unless it is "asc".

import { get } from "../base/api.js";
import { el, put } from "../base/dom.js";
import { many } from "../base/format.js";
import { go, link } from "../base/place.js";

const REQUESTS = 12; // a filter that no index serves may take several to fill one page

const opposite = { asc: "desc", desc: "asc" };

/** Return the parameters without what points at one page or one item of the old filters. */
export const fresh = (params, changes = {}) => ({ ...params, after: "", before: "", item: "", ...changes });

export const orderOf = (params) => (params.order === "asc" ? "asc" : "desc");

/** Return the page that `params` asks for: items, the links' parameters, and where a search stopped early. */
export async function readPage(group, filters, params, signal) {
  const order = orderOf(params);
  const limit = Number(params.limit);
  const backwards = Boolean(params.before);
  const bound = filters.until;
  const read = { ...filters, until: "", order: backwards ? opposite[order] : order, limit: params.limit };
  let cursor = params.before === "end" ? "" : params.before || params.after || "";
  if (bound && read.order === "desc" && (!cursor || Number(cursor) > Number(bound))) cursor = bound;
  const items = [];
  let next, requests = 0;
  do { // at least one: it is the service that refuses a limit that is none
    const page = await get(["outputs", group], { ...read, cursor }, signal);
    next = page.metadata.next_cursor;
    const within = bound && read.order === "asc" ? page.items.filter(({ id }) => id < Number(bound)) : page.items;
    if (within.length < page.items.length) next = null;
    items.push(...within);
    cursor = String(next);
  } while (++requests < REQUESTS && next !== null && items.length < limit);
  // Where the page beyond this one begins: after the last item shown, or where a long search stopped.
  const edge = items.length > limit ? items[limit - 1].id : next;
  items.splice(limit);
  const stopped = items.length < limit && edge !== null;
  if (backwards) items.reverse();
  return { items, stopped, ...steps(items, params, edge) };
}

/** Return the parameters of the pages around this one; undefined where there is none. */
function steps(items, params, edge) {
  const to = (given) => ({ after: "", before: "", ...given });
  const beyond = edge !== null;
  if (params.before) {
    const end = items.at(-1)?.id ?? inclusive(params, params.before);
    const forward = params.before !== "end";
    return {
      first: beyond ? to() : undefined,
      previous: beyond ? to({ before: String(edge) }) : undefined,
      next: forward ? to({ after: String(end) }) : undefined,
      last: forward ? to({ before: "end" }) : undefined,
    };
  }
  const start = items[0]?.id ?? (params.after && inclusive(params, params.after));
  return {
    first: params.after ? to() : undefined,
    previous: params.after ? to({ before: String(start) }) : undefined,
    next: beyond ? to({ after: String(edge) }) : undefined,
    last: beyond ? to({ before: "end" }) : undefined,
  };
}

/** Return the cursor that includes an id which the page in the other direction would leave out. */
function inclusive(params, id) {
  const up = (orderOf(params) === "desc") === Boolean(params.after);
  return Math.max(0, Number(id) + (up ? -1 : 1));
}

/** Return the first id after a day (UTC), or "" when the day is the last one with changes. */
export async function endOfDay(group, day, signal) {
  const next = new Date(Date.parse(day) + 86_400_000).toISOString().slice(0, 10);
  const { items } = await get(["outputs", group], { created_after: next, limit: "1", fields: "id" }, signal);
  return items.length ? String(items[0].id) : "";
}

// Where one is in the items of a group, and the ways on and back.

const LIMITS = [10, 25, 50, 100, 250, 1000];
const USUAL_LIMIT = "25";

export const withLimit = (params) => ({ ...params, limit: params.limit || USUAL_LIMIT });

/** Fill `place` with what the page of `desk` shows and the links to the pages around it. */
export function showPager(place, desk) {
  const { page, params, view } = desk;
  const { items } = page;
  const step = (name, to, rel) => (to === undefined
    ? el("span", { class: "button off", "aria-disabled": "true" }, name)
    : el("a", { class: "button", rel, href: link(view.path, fresh(params, to)), onclick: () => view.tab.querySelector("#outputs-title").focus() }, name));
  const limit = withLimit(params).limit;
  const rows = el("select", { id: "limit", onchange: () => go(view.path, fresh(params, { limit: rows.value === USUAL_LIMIT ? "" : rows.value })) },
    [...new Set([...LIMITS.map(String), limit])].map((n) => el("option", { selected: n === limit }, n)));
  const ids = items.length ? `ids ${items[0].id} to ${items.at(-1).id}` : "";
  put(place,
    el("p", { class: "faint" }, items.length ? `${many(items.length, "item")}, ${ids}${page.next ? "" : ", the end"}${params.sort ? ". Only these rows are sorted, not the other pages" : ""}` : ""),
    el("label", { class: "rows-choice", for: "limit" }, "Rows", rows),
    el("div", { class: "actions" }, step("First", page.first), step("Previous", page.previous, "prev"), step("Next", page.next, "next"), step("Last", page.last)));
}
