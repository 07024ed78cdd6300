// The items of a group, page by page: filters, table, selection, live bar, and one item in a dialog.

import { address, Failure, get } from "../base/api.js";
import { announce, button, copyButton, el, focusHeading, put } from "../base/dom.js";
import { at, count, many, splitPath, splitPaths } from "../base/format.js";
import { go, link, replace } from "../base/place.js";
import { FILTERS, filteredColumns, filtersOf, showFilters } from "./filters.js";
import { FIRST, itemDialog, LAST, refreshItem, showItem } from "./item.js";
import { fresh, orderOf, readPage, showPager, withLimit } from "./paging.js";
import { want, wanted } from "./pictures.js";
import { followFocus, listenToKeys, makeSelectable, showHelp } from "./selection.js";
import { chooseColumns, defaults, discover, rowOf, search, showRows, updateRow } from "./table.js";

let desk = null; // the items on the screen

export async function show(view, params, signal, stay) {
  if (stay) {
    desk = makeDesk(view, stay);
    listenToKeys(desk, stay);
  }
  const columns = (given) => `${given.columns ?? ""} ${given.add ?? ""} ${given.sort ?? ""}`;
  const shown = desk.params;
  desk.params = params;
  if (request(params) !== desk.loaded) await load(signal);
  else if (columns(params) !== columns(shown) || (params.q ?? "") !== (shown.q ?? "")) {
    // Links keep what was chosen.
    fillTable();
    showPager(desk.parts.pager, desk);
    if (columns(params) !== columns(shown)) showFilters(desk.parts.filters, view, params);
  }
  await showItem(desk, signal);
}

/** Return what a page depends on, as text. */
const request = (params) => JSON.stringify([...FILTERS, "order", "limit", "after", "before"].map((name) => params[name] ?? ""));

const sideOf = (by) => (by > 0 ? "next" : "previous");

function makeDesk(view, stay) {
  const before = desk?.view.group === view.group ? desk : null;
  const made = {
    view, stay, params: {}, request: "", loaded: "", items: [], found: [], columns: [], filters: {}, page: {},
    own: before?.own ?? new Set(), pending: before?.pending ?? new Set(), // what this page changed itself is no news
    ids: before?.ids ?? new Map(), // id -> the id that the item got next, from this page
    listed: new Map(), // output id -> the id that it had when its page was read: a judged row does not jump, and is named by it later
    entry: null, // the row that becomes the current one when the page is read
    live: new AbortController(),
    itemLink: (item) => link(view.path, { ...made.params, item: item.output_id }),
    sortLink: (path) => link(view.path, { ...made.params, item: "", sort: nextSort(made.params.sort, path) }),
    filterLink: (name, value) => link(view.path, fresh(made.params, { [name]: value })),
    replace: (item) => {
      const place = made.items.findIndex(({ output_id }) => output_id === item.output_id);
      if (place >= 0) {
        if (!made.listed.has(item.output_id)) made.listed.set(item.output_id, made.items[place].id);
        made.items[place] = item;
      }
      if (made.selected.has(item.output_id)) made.selected.set(item.output_id, item);
      updateRow(made.parts.table, item, made);
      refreshItem(made, item);
    },
    drop: (outputId) => {
      made.items = made.items.filter(({ output_id }) => output_id !== outputId);
      made.selected.delete(outputId);
      rowOf(made.parts.table, outputId)?.remove();
      made.selectionChanged();
      if (made.items.length) made.counts();
      else reload(); // which says what is left
    },
    total: totalOf,
    counts: () => (made.counting ??= setTimeout(() => {
      made.counting = null;
      view.refresh(stay).catch(() => {});
    }, NEWS_MS)),
    reload,
    // Beyond the last row, or before the first one; a search looks at this page alone.
    goesOn: (by) => !made.params.q && Boolean(made.page[sideOf(by)]),
    goOn: (by, opens = false) => made.turn(sideOf(by), { row: by > 0 ? 0 : -1, opens }),
    // `row` of the other page becomes the current one: 0 is the first, -1 the last; `opens` shows its item.
    turn: (name, { row = 0, opens = false } = {}) => {
      if (!made.page[name]) return;
      made.entry = opens ? null : row;
      go(view.path, fresh(made.params, { ...made.page[name], item: opens ? (row ? LAST : FIRST) : "" }));
    },
  };
  view.replaceItem = (item) => made.replace(item);
  view.reload = reload;
  stay.addEventListener("abort", () => made.live.abort());
  addEventListener("connected", () => made.request || load(stay).catch(refused), { signal: stay }); // what failed is tried again
  if (before) before.replace = (item) => made.replace(item); // a decision that is being saved is shown in the view of now
  makeSelectable(made);
  made.parts = frame(view);
  followFocus(made);
  return made;
}

function frame(view) {
  const parts = {
    filters: el("div"),
    order: button("", () => go(view.path, fresh(desk.params, { order: orderOf(desk.params) === "desc" ? "asc" : "" }))),
    search: el("input", { type: "search", id: "find", placeholder: "Find on this page", "aria-label": "Find on this page", oninput: () => replace(view.path, { ...desk.params, q: parts.search.value }) }),
    found: el("span", { class: "faint", role: "status" }),
    news: el("p", { class: "news", hidden: true, role: "status" }),
    table: el("div", { class: "loading" }),
    selection: el("div", { class: "selection", hidden: true, role: "group", "aria-label": "Selected items" }),
    pager: el("nav", { class: "pager", "aria-label": "Pages" }),
    dialog: itemDialog(() => desk),
  };
  const pictures = el("input", { type: "checkbox", id: "pictures", checked: wanted(), onchange: () => { want(pictures.checked); fillTable(); } });
  put(view.tab,
    el("section", { class: "panel outputs" },
      parts.filters,
      el("div", { class: "toolbar" },
        el("h2", { id: "outputs-title", class: "unseen", tabindex: -1 }, "Items"),
        parts.order, parts.search, parts.found,
        el("div", { class: "actions" },
          el("label", { class: "check", for: "pictures" }, pictures, "Pictures"),
          button("Views", async () => (await import("./views.js")).showViews(desk), "", { "aria-haspopup": "dialog" }),
          button("Columns", () => chooseColumns(desk, saveColumns), "", { "aria-haspopup": "dialog" }),
          button("Download", async () => (await import("./downloads.js")).offerDownload(desk), "", { "aria-haspopup": "dialog" }),
          copyButton("Copy as curl", () => `curl -H "Authorization: Bearer $TOKEN" '${pageAddress()}'`, "quiet desk-only"),
          button("Reload", reload, "desk-only"),
          button("Keys", showHelp, "desk-only", { "aria-haspopup": "dialog" }))),
      parts.news, parts.table, parts.selection, parts.pager),
    parts.dialog);
  return parts;
}

/** Return the address of the API call that shows this page. */
function pageAddress() {
  const { until, ...filters } = desk.filters;
  const [first] = desk.page.items ?? [];
  const cursor = desk.params.before && first ? String(first.id + (orderOf(desk.params) === "desc" ? 1 : -1)) : desk.params.after || (orderOf(desk.params) === "desc" ? until : "");
  return address(["outputs", desk.view.group], { ...filters, order: orderOf(desk.params) === "desc" && "desc", limit: withLimit(desk.params).limit, cursor });
}

function saveColumns(columns) {
  replace(desk.view.path, { ...desk.params, columns, add: "" });
}

function reload() {
  desk.request = "";
  desk.view.suggestions = null;
  return Promise.all([desk.view.refresh(desk.stay), load(desk.stay)]).catch(refused);
}

async function load(signal) {
  const { parts, view, params } = desk;
  const wantedPage = request(params);
  Object.assign(desk, { request: wantedPage, loaded: "" });
  desk.live.abort();
  if (parts.news.contains(document.activeElement)) focusHeading(parts.news);
  parts.news.hidden = true;
  parts.search.value = params.q ?? "";
  parts.order.textContent = orderOf(params) === "desc" ? "Newest first ↓" : "Oldest first ↑";
  showFilters(parts.filters, view, params);
  parts.table.classList.add("waiting");
  parts.table.setAttribute("aria-busy", "true");
  let filters = null;
  try {
    const isFirst = !params.after && !params.before && orderOf(params) === "desc";
    const known = isFirst ? 0 : await newestId(signal);
    filters = await filtersOf(view.group, params, signal);
    const read = () => readPage(view.group, filters, withLimit(params), signal);
    let page = await read();
    // A decision of this page was saved while it was read: it may show the item as it was before.
    if (page.items.some(({ id }) => desk.ids.has(id))) page = await read();
    if (desk.request !== wantedPage) return; // another page was asked for meanwhile
    // The first page is whole, not what is left of it: going back from page two ends here.
    if (params.before && !page.previous && page.next) return void replace(view.path, fresh(params, { item: params.item }));
    const matched = JSON.stringify(filters);
    if (desk.matched !== matched) desk.clear(); // a selection goes on over the pages of the same filters
    Object.assign(desk, { page, filters, matched, loaded: wantedPage, items: page.items, found: discover(page.items), current: null });
    for (const { output_id } of page.items) desk.listed.delete(output_id);
    fillTable();
    showPager(parts.pager, desk);
    follow(isFirst ? page.items[0]?.id ?? (await newestId(signal)) : known);
    announce(`${many(page.items.length, "item")} shown`);
    if (desk.entry !== null) desk.enter(desk.entry);
  } catch (error) {
    if (signal?.aborted) throw error;
    if (desk.request !== wantedPage) return;
    Object.assign(desk, { request: "", items: [], found: [], page: {}, filters: filters ?? { created_after: params.day } });
    refused(error);
  } finally {
    if (!desk.request || desk.loaded) {
      desk.entry = null;
      parts.table.classList.remove("waiting");
      parts.table.removeAttribute("aria-busy");
    }
  }
}

/** Return the newest id of the group: all above it is news. */
const newestId = async (signal) => (await get(["groups", desk.view.group, "stats"], {}, signal)).last_id;

function follow(from) {
  desk.live.abort();
  if (desk.filters.until) return; // a day that is over has no news
  desk.live = new AbortController();
  const { parts, filters, live } = desk;
  watch(desk, filters, from, live.signal, ({ created, changed }) => {
    desk.counts();
    if (!created && !changed) return;
    const texts = [created && many(created, "new item"), changed && many(changed, "changed item")].filter(Boolean);
    put(parts.news, `${texts.join(", ")} `, el("a", {
      class: "button", href: link(desk.view.path, fresh(desk.params, { order: "" })),
      onclick: (event) => {
        const { after, before, order } = desk.params;
        if (after || before || order) return;
        event.preventDefault(); // the address stays: only read it again
        reload();
      },
    }, "Show"));
    parts.news.hidden = false;
  });
}

/** Show what failed in the place of the table. */
function refused(error) {
  if (desk.stay.aborted) return;
  if (!(error instanceof Failure)) throw error;
  desk.request = "";
  const { table, pager } = desk.parts;
  table.className = "";
  put(table, el("div", { class: "empty", role: "alert" },
    el("h3", null, error.message), error.details.map((text) => el("p", null, text)),
    el("p", { class: "actions" },
      button("Try again", () => load(desk.stay).catch(refused), "primary"),
      el("a", { class: "button", href: link(desk.view.path) }, "Without filters"))));
  put(pager);
  announce(error.message);
}

/** Return the columns to show, with the one that a link from the fields asks for. */
function columnsShown() {
  const chosen = splitPaths(desk.params.columns ?? "");
  const columns = chosen.length ? chosen : defaults(desk.items, desk.found);
  // A list that is filtered by a field shows that field, and one that a link from the fields asks for.
  const added = [...new Set([...splitPaths(desk.params.add ?? ""), ...filteredColumns(desk.params)])].filter((path) => !columns.includes(path));
  return [...columns.slice(0, 1), ...added, ...columns.slice(1)];
}

function fillTable() {
  const { table } = desk.parts;
  table.className = "";
  desk.columns = columnsShown();
  desk.items = sorted(desk.items, desk.page.items, desk.params.sort);
  if (desk.items.length) showRows(table, desk);
  else showNothing(table);
  desk.selectionChanged();
  find();
}

/** Return how many items match, where that is known without reading them. */
function totalOf() {
  const given = FILTERS.filter((name) => desk.params[name]);
  return given.length ? 0 : desk.view.stats?.items ?? 0;
}

/** Return the page's items in the order of a column, or as the service gave them; items without a value come last. */
function sorted(items, given, sort = "") {
  const now = new Map(items.map((item) => [item.output_id, item]));
  const listed = given.filter(({ output_id }) => now.has(output_id)).map(({ output_id }) => now.get(output_id));
  if (!sort) return listed;
  const keys = splitPath(sort.replace(/^-/, ""));
  const sign = sort.startsWith("-") ? -1 : 1;
  const isNumber = (value) => typeof value === "number" || typeof value === "bigint";
  return listed.map((item) => [item, at(item, keys)]).sort(([, a], [, b]) => {
    const missing = (a == null) - (b == null);
    if (missing || a == null) return missing;
    return sign * (isNumber(a) && isNumber(b) ? (a < b ? -1 : a > b ? 1 : 0) : String(a).localeCompare(String(b), "en", { numeric: true }));
  }).map(([item]) => item);
}

/** Return the sort after a click on a column: up, down, as given. */
const nextSort = (sort, path) => (sort === path ? `-${path}` : sort === `-${path}` ? "" : path);

/** Say why there is nothing: it depends on what was asked for, and on what became of the items. */
async function showNothing(table) {
  const { params, page, view, request } = desk;
  const text = el("p");
  put(table, el("div", { class: "empty" }, el("h3", null, "No items"), text));
  const given = FILTERS.filter((name) => params[name]);
  text.textContent = page.stopped ? "Nothing matches in what was searched so far: Next searches on."
    : given.length ? "Nothing matches these filters." : "There is nothing on this page.";
  if (page.stopped) return;
  if (["job_id", "job_id,change"].includes(given.join())) {
    const job = (await get(["groups", view.group, "jobs"], {}, desk.stay).catch(() => [])).find(({ job_id }) => job_id === params.job_id);
    if (job && desk.request === request) text.textContent = params.change ? noneLeft(job, params.change) : laterCrawls(job);
  } else if (!given.length) {
    const stats = view.stats?.items === 0 ? view.stats : await view.refresh(desk.stay).catch(() => null);
    if (stats?.items === 0 && desk.request === request) text.textContent = stats.last_id > 0 ? "All items of this group were deleted." : "Nothing has been written to this group yet.";
  }
}

const noneLeft = (job, change) => (job[change]
  ? `This job had ${many(job[change], "item")} ${change}. Later crawls saw them again, or they were deleted: none of them is left in this list.`
  : `This job has no item ${change}.`);

const laterCrawls = ({ created, changed, unchanged }) => {
  const seen = created + changed + unchanged;
  if (!seen) return "This job has not written any items.";
  return `This job wrote ${many(seen, "item")} (${count(created)} created, ${count(changed)} changed, ${count(unchanged)} unchanged). Later crawls saw them again, or they were deleted: an item belongs to the newest job that saw it.`;
};

function find() {
  const text = desk.params.q ?? "";
  const left = search(desk.parts.table, desk.items, text);
  desk.parts.found.textContent = text ? `${left} of ${many(desk.items.length, "row")} on this page` : "";
}

// Says when there is something new in a group, as it happens.

const WAIT = "25"; // seconds the service holds a request without news
const PAUSE_MS = 5_000; // after a failure, and while the tab is not looked at
const NEWS_MS = 1_000; // at least, from news to news: a crawl changes items all the time
const PAGE = "1000";
const MOST = 100_000; // items that are counted

/** Count the items that become readable after id `from` until `signal` ends; call `news({created, changed})` when there are more. */
async function watch(desk, filters, from, signal, news) {
  const seen = new Map(); // output id -> whether it is new; one that changes twice is one item
  let cursor = from;
  while (!signal.aborted && seen.size < MOST) {
    if (document.hidden) {
      await pause(signal);
      continue;
    }
    try {
      const params = { ...filters, until: "", limit: PAGE, cursor: String(cursor), wait: WAIT, fields: "output_id,create_date,update_date" };
      const asked = performance.now();
      const { items, metadata } = await get(["outputs", desk.view.group], params, signal, { quiet: true });
      for (const { id, output_id, create_date, update_date } of items) {
        cursor = Math.max(cursor, id);
        if (desk.own.has(id) || desk.pending.has(output_id)) continue;
        seen.set(output_id, seen.get(output_id) ?? create_date === update_date);
      }
      cursor = Math.max(cursor, metadata.next_cursor ?? 0);
      if (items.length) {
        const created = [...seen.values()].filter(Boolean).length;
        news({ created, changed: seen.size - created });
        await pause(signal, NEWS_MS);
      } else if (performance.now() - asked < 1000 && metadata.next_cursor === null) await pause(signal); // it stops, and does not wait
    } catch (error) {
      if (signal.aborted) return;
      if (!(error instanceof Failure) || [403, 422].includes(error.status)) return;
      await pause(signal);
    }
  }
}

function pause(signal, ms = PAUSE_MS) {
  return new Promise((resolve) => {
    const timer = setTimeout(done, ms);
    function done() {
      clearTimeout(timer);
      signal.removeEventListener("abort", done);
      document.removeEventListener("visibilitychange", done);
      resolve();
    }
    signal.addEventListener("abort", done);
    document.addEventListener("visibilitychange", done);
  });
}
