// The items of a group, page by page: filters, table, selection, live bar, and one item in a dialog.

import { address, Failure, get } from "./api.js";
import { defaults, discover } from "./columns.js";
import { chooseColumns } from "./columns_dialog.js";
import { announce, copyButton, el, put } from "./dom.js";
import { offerDownload } from "./downloads.js";
import { FILTERS, filtersOf, fresh, showFilters } from "./filters.js";
import { many, splitPaths } from "./format.js";
import { itemDialog, showItem } from "./item_dialog.js";
import { listenToKeys, showHelp } from "./keys.js";
import { watch } from "./live.js";
import { showPager, withLimit } from "./pager.js";
import { orderOf, readPage } from "./paging.js";
import { want, wanted } from "./pictures.js";
import { go, link, replace } from "./place.js";
import { rowOf, search, showRows, updateRow } from "./rows.js";
import { makeSelectable } from "./selection.js";

let desk = null; // the items on the screen

export async function showItems(view, params, signal, stay) {
  if (stay) {
    desk = makeDesk(view, stay);
    listenToKeys(desk, stay);
  }
  const columns = (given) => `${given.columns ?? ""} ${given.add ?? ""}`;
  const shown = desk.params;
  desk.params = params;
  if (request(params) !== desk.request) await load(signal);
  else if (columns(params) !== columns(shown)) fillTable();
  else if ((params.q ?? "") !== (shown.q ?? "")) find();
  await showItem(desk, signal);
}

/** Return what a page depends on, as text. */
const request = (params) => JSON.stringify([...FILTERS, "order", "limit", "after", "before"].map((name) => params[name] ?? ""));

function makeDesk(view, stay) {
  const made = {
    view, stay, params: {}, request: "", items: [], found: [], columns: [], filters: {}, page: {},
    own: new Set(), pending: new Set(), // what this page changed itself is no news
    live: new AbortController(),
    itemLink: (item) => link(view.path, { ...made.params, item: item.output_id }),
    filterLink: (name, value) => link(view.path, fresh(made.params, { [name]: value })),
    replace: (item) => {
      const at = made.items.findIndex(({ output_id }) => output_id === item.output_id);
      if (at >= 0) made.items[at] = item;
      updateRow(made.parts.table, item, made);
    },
    drop: (outputId) => {
      made.items = made.items.filter(({ output_id }) => output_id !== outputId);
      made.selected.delete(outputId);
      rowOf(made.parts.table, outputId)?.remove();
      made.selectionChanged();
      made.counts();
    },
    counts: () => view.refresh(stay).catch(() => {}),
    reload,
    turn: (name) => made.page[name] && go(view.path, fresh(made.params, made.page[name])),
  };
  stay.addEventListener("abort", () => made.live.abort());
  makeSelectable(made);
  desk = made;
  made.parts = frame(view);
  return made;
}

function frame(view) {
  const parts = {
    filters: el("div"),
    order: el("button", { type: "button", onclick: () => go(view.path, fresh(desk.params, { order: orderOf(desk.params) === "desc" ? "asc" : "" })) }),
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
          el("label", { class: "check small-check", for: "pictures" }, pictures, "Pictures"),
          el("button", { type: "button", "aria-haspopup": "dialog", onclick: () => chooseColumns(desk, saveColumns) }, "Columns"),
          el("button", { type: "button", "aria-haspopup": "dialog", onclick: () => offerDownload(desk) }, "Download"),
          copyButton("Copy as curl", () => `curl -H "Authorization: Bearer $TOKEN" '${pageAddress()}'`),
          el("button", { type: "button", onclick: reload }, "Reload"),
          el("button", { type: "button", class: "quiet", "aria-label": "Keys", "aria-haspopup": "dialog", onclick: showHelp }, "?"))),
      parts.news, parts.table, parts.selection, parts.pager),
    parts.dialog);
  return parts;
}

/** Return the address of the API call that shows this page. */
function pageAddress() {
  const { until, ...filters } = desk.filters;
  const cursor = desk.params.before && desk.items.length ? String(desk.items[0].id + (orderOf(desk.params) === "desc" ? 1 : -1)) : desk.params.after || (orderOf(desk.params) === "desc" ? until : "");
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
  desk.request = wantedPage;
  desk.live.abort();
  parts.news.hidden = true;
  parts.search.value = params.q ?? "";
  parts.order.textContent = orderOf(params) === "desc" ? "Newest first ↓" : "Oldest first ↑";
  showFilters(parts.filters, view, params);
  parts.table.classList.add("waiting");
  parts.table.setAttribute("aria-busy", "true");
  try {
    const isFirst = !params.after && !params.before && orderOf(params) === "desc";
    const known = isFirst ? 0 : await newestId(signal);
    desk.filters = await filtersOf(view.group, params, signal);
    const page = await readPage(view.group, desk.filters, withLimit(params), signal);
    if (desk.request !== wantedPage) return; // another page was asked for meanwhile
    // The first page is whole, not what is left of it: going back from page two ends here.
    if (params.before && !page.previous && page.next) return void replace(view.path, fresh(params, { item: params.item }));
    Object.assign(desk, { page, items: page.items, found: discover(page.items), selected: new Set(), current: null });
    fillTable();
    showPager(parts.pager, desk);
    follow(isFirst ? page.items[0]?.id ?? (await newestId(signal)) : known);
    announce(`${many(page.items.length, "item")} shown`);
  } catch (error) {
    if (signal?.aborted) throw error;
    Object.assign(desk, { request: "", items: [], found: [] });
    if (error.status === 401) throw error;
    refused(error);
  } finally {
    parts.table.classList.remove("waiting");
    parts.table.removeAttribute("aria-busy");
  }
}

/** Return the newest id of the group: all above it is news. */
const newestId = async (signal) => (await get(["groups", desk.view.group, "stats"], {}, signal)).last_id;

function follow(from) {
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

/** Show what failed in the place of the table; only a refused token ends the whole view. */
function refused(error) {
  if (desk.stay.aborted) return;
  if (!(error instanceof Failure)) throw error;
  desk.request = "";
  if (error.status === 401) return dispatchEvent(new HashChangeEvent("hashchange"));
  const { table, pager } = desk.parts;
  table.className = "";
  put(table, el("div", { class: "empty", role: "alert" },
    el("h3", null, error.message), error.details.map((text) => el("p", null, text)),
    el("p", { class: "actions" },
      el("button", { type: "button", class: "primary", onclick: () => load(desk.stay).catch(refused) }, "Try again"),
      el("a", { class: "button", href: link(desk.view.path) }, "Without filters"))));
  put(pager);
  announce(error.message);
}

/** Return the columns to show, with the one that a link from the fields asks for. */
function columnsShown() {
  const chosen = splitPaths(desk.params.columns ?? "");
  const columns = chosen.length ? chosen : defaults(desk.items, desk.found);
  const { add } = desk.params;
  return add && !columns.includes(add) ? [columns[0], add, ...columns.slice(1)] : columns;
}

function fillTable() {
  const { table } = desk.parts;
  table.className = "";
  desk.columns = columnsShown();
  if (desk.items.length) showRows(table, desk);
  else put(table, nothing());
  desk.selectionChanged();
  find();
}

function nothing() {
  const filtered = FILTERS.some((name) => desk.params[name]);
  return el("div", { class: "empty" },
    el("h3", null, "No items"),
    el("p", null, desk.page.stopped ? "Nothing matches in what was searched so far: Next searches on." : filtered ? "Nothing matches these filters." : desk.params.after || desk.params.before ? "There is nothing on this page." : "Nothing has been written to this group yet."));
}

function find() {
  const text = desk.params.q ?? "";
  const left = search(desk.parts.table, desk.items, text);
  desk.parts.found.textContent = text ? `${left} of ${many(desk.items.length, "row")} on this page` : "";
}
