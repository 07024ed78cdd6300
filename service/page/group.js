// One group: its days, its reviews, its outputs page by page, and one of them in a dialog.

import { address, Failure, get } from "./api.js";
import { dayChart } from "./chart.js";
import { cell, choices, defaults, discover, label, sample } from "./columns.js";
import { announce, copyButton, el, put } from "./dom.js";
import { at, count, many, shorten, since, splitPath, splitPaths, when } from "./format.js";
import { itemView } from "./item.js";
import { go, link, replace } from "./place.js";

const FILTERS = ["job_id", "country", "region", "url", "created_after"];
const LABELS = { job_id: "Job", country: "Country", region: "Region", url: "Source URL", created_after: "Changed since" };
const LIMITS = [10, 25, 50, 100, 250, 1000];
const USUAL_LIMIT = "25";
const LINKED_PAGES = 5;

let view = null; // the group on the screen
const came = new Map(); // a page's address -> the cursor of the page before it

export async function showGroup(main, { path, params }, signal, fresh) {
  const group = path[1];
  document.title = `${shorten(group, 60)} · Scraping Data Service`;
  if (fresh) {
    view = { main, path, group, parts: frame(main, path, group) };
    await Promise.all([overview(signal), outputs(params, signal)]);
  } else if (request(params) !== view.request) {
    await outputs(params, signal);
  } else if ((params.columns ?? "") !== (view.params.columns ?? "")) {
    view.params = params;
    fillTable();
  }
  view.params = params;
  await showItem(signal);
}

/** Return the parameters of the API call that a view stands for. */
function query(params) {
  return Object.fromEntries([...FILTERS, "cursor", "limit"].map((name) => [name, params[name] ?? (name === "limit" ? USUAL_LIMIT : "")]));
}

const request = (params) => address(["outputs", view.group], query(params));

function frame(main, path, group) {
  const parts = {
    lead: el("p", { class: "lead" }, "…"),
    days: el("div", { class: "loading" }),
    reviews: el("div", { class: "loading" }),
    filters: el("div"),
    table: el("div", { class: "loading" }),
    pager: el("nav", { class: "pager", "aria-label": "Pages" }),
    dialog: el("dialog", { class: "item", "aria-labelledby": "item-title", onclose: closed, onclick: (event) => event.target === parts.dialog && parts.dialog.close() }),
    columns: el("dialog", { class: "columns", "aria-labelledby": "columns-title", onclick: (event) => event.target === parts.columns && parts.columns.close() }),
  };
  const reload = () => {
    view.request = "";
    Promise.all([overview(), outputs(view.params)]).catch(refused);
  };
  put(main,
    el("nav", { class: "crumbs", "aria-label": "Where you are" }, el("a", { href: "#/groups" }, "Groups"), el("span", { "aria-hidden": "true" }, "/")),
    el("div", { class: "heading" }, el("div", null, el("h1", { tabindex: -1 }, group), parts.lead)),
    el("div", { class: "side-by-side" },
      el("section", { class: "panel" }, el("h2", null, "Items by day"), parts.days),
      el("section", { class: "panel" }, el("h2", null, "Latest reviews"), parts.reviews)),
    el("section", { class: "panel outputs" },
      el("div", { class: "heading tools" }, el("h2", { id: "outputs-title", tabindex: -1 }, "Outputs"),
        el("div", { class: "actions" },
          copyButton("Copy as curl", () => `curl -H "Authorization: Bearer $TOKEN" '${request(view.params)}'`),
          el("button", { type: "button", onclick: reload }, "Reload"),
          el("button", { type: "button", onclick: chooseColumns, "aria-haspopup": "dialog" }, "Columns"))),
      parts.filters, parts.table, parts.pager),
    parts.dialog, parts.columns);
  return parts;
}

/** Show what failed in the place of the table; only a refused token ends the whole view. */
function refused(error) {
  if (!(error instanceof Failure)) throw error;
  if (error.status === 401) {
    view.request = "";
    return dispatchEvent(new HashChangeEvent("hashchange"));
  }
  const { table, pager } = view.parts;
  table.className = "";
  put(table, el("div", { class: "empty", role: "alert" },
    el("h3", null, error.message), error.details.map((text) => el("p", null, text)),
    el("p", { class: "actions" },
      el("button", { type: "button", class: "primary", onclick: () => outputs(view.params).catch(refused) }, "Try again"),
      el("a", { class: "button", href: link(view.path) }, "Without filters"))));
  put(pager);
  announce(error.message);
}

async function overview(signal) {
  const { parts, group, path } = view;
  const [stats, reviews] = await Promise.all([
    get(["groups", group, "stats"], {}, signal), get(["reviews", group], {}, signal)]);
  const share = stats.items ? ` (${Math.round((100 * stats.approved) / stats.items)} %)` : "";
  put(parts.lead, stats.items
    ? `${many(stats.items, "item")} from ${many(stats.jobs, "job")} · ${count(stats.approved)} approved${share} · last change `
    : "Nothing has been written to this group, or it belongs to another organization.",
  stats.last_change ? el("time", { datetime: stats.last_change, title: `${when(stats.last_change)} UTC` }, since(stats.last_change)) : "");
  parts.days.className = parts.reviews.className = "";
  put(parts.days, dayChart(stats.days, (date) => link(path, { ...view.params, created_after: date, cursor: "", item: "", source: "" })));
  put(parts.reviews, reviews.length
    ? el("ul", { class: "reviews" }, reviews.map(review))
    : el("p", { class: "faint" }, "No job of this group has been reviewed."));
}

function review({ job_id, status, comment, review_date }) {
  const kind = /^(approved|accepted|ok|passed)$/i.test(status) ? "good" : /reject|fail|denied/i.test(status) ? "bad" : "open";
  return el("li", null,
    el("div", null, el("span", { class: `chip ${kind}` }, status.replaceAll("_", " ")), " ",
      el("a", { href: link(view.path, { job_id }), title: "Outputs of this job" }, shorten(job_id, 60))),
    comment && el("p", { class: "text" }, shorten(comment, 600)),
    el("p", { class: "faint" }, el("time", { datetime: review_date, title: review_date }, `${when(review_date)} UTC`)));
}

async function outputs(params, signal) {
  const { parts } = view;
  const url = request(params);
  view.params = params;
  view.request = url;
  fillFilters(params);
  parts.table.classList.add("waiting");
  parts.table.setAttribute("aria-busy", "true");
  try {
    const page = await get(["outputs", view.group], query(params), signal);
    if (view.request !== url) return; // another page was asked for meanwhile
    Object.assign(view, { items: page.items, next: page.metadata.next_cursor, found: discover(page.items) });
    if (view.next !== null) came.set(request({ ...params, cursor: String(view.next) }), params.cursor ?? "");
    fillTable();
    fillPager(params);
    announce(`${many(page.items.length, "output")} shown`);
  } catch (error) {
    if (signal?.aborted) throw error;
    view.request = "";
    view.items = [];
    if (error.status === 401) throw error;
    refused(error);
  } finally {
    parts.table.classList.remove("waiting");
    parts.table.removeAttribute("aria-busy");
  }
}

function fillFilters(params) {
  const input = (name, props = {}) => el("input", { id: `filter-${name}`, name, value: params[name] ?? "", autocapitalize: "none", spellcheck: "false", ...props });
  const field = (name, control, wide) => el("div", { class: wide ? "field wide" : "field" }, el("label", { for: `filter-${name}` }, LABELS[name] ?? "Rows"), control);
  // A date with a time of day, from a link, does not fit the date picker.
  const isDay = /^(\d{4}-\d\d-\d\d)?$/.test(params.created_after ?? "");
  const limit = params.limit ?? USUAL_LIMIT;
  const limits = [...new Set([...LIMITS.map(String), limit])];
  const given = FILTERS.filter((name) => params[name]);
  const focused = document.activeElement?.id;
  put(view.parts.filters,
    el("details", { class: "filter-box", open: given.length > 0 || innerWidth > 640 },
      el("summary", null, "Filters"),
      el("form", { class: "filters", onsubmit: apply },
        field("job_id", input("job_id", { placeholder: "All jobs" })),
        field("country", input("country", { placeholder: "Germany" })),
        field("region", input("region", { placeholder: "DE-BE" })),
        field("created_after", input("created_after", isDay ? { type: "date" } : {})),
        field("url", input("url", { placeholder: "https://… exactly", inputmode: "url" }), true),
        field("limit", el("select", { id: "filter-limit", name: "limit" },
          limits.map((n) => el("option", { selected: n === limit }, n)))),
        el("button", { id: "filter-apply", class: "primary" }, "Apply"))),
    given.length > 0 && el("p", { class: "given" }, given.map((name) =>
      el("a", { class: "chip", href: link(view.path, without(name)), "aria-label": `Remove the filter ${LABELS[name]}: ${shorten(params[name], 60)}` },
        `${LABELS[name]}: ${shorten(params[name], 60)}`, el("span", { "aria-hidden": "true" }, " ✕"))),
      el("a", { href: link(view.path, { limit: params.limit, columns: params.columns }) }, "Remove all")));
  if (focused?.startsWith("filter-")) document.getElementById(focused)?.focus();
}

const without = (name) => ({ ...view.params, [name]: "", cursor: "", item: "", source: "" });

function apply(event) {
  event.preventDefault();
  const given = Object.fromEntries([...new FormData(event.target)].map(([name, value]) => [name, value.trim()]));
  go(view.path, { columns: view.params.columns, ...given });
}

const chosenColumns = () => splitPaths(view.params.columns ?? "");
const columnsShown = () => (chosenColumns().length ? chosenColumns() : defaults(view.items, view.found));

function fillTable() {
  const { table } = view.parts;
  table.className = "";
  if (!view.items.length) {
    const filtered = FILTERS.some((name) => view.params[name]) || view.params.cursor;
    put(table, el("div", { class: "empty" },
      el("h3", null, "No outputs"),
      el("p", null, filtered ? "Nothing in this group matches these filters from here on." : "Outputs appear here as soon as a scraper writes them."),
      filtered && el("p", { class: "actions" }, el("a", { class: "button", href: link(view.path) }, "Without filters"))));
    return;
  }
  const columns = columnsShown();
  const numeric = new Set(columns.filter((path) => view.items.every((item) => ["number", "bigint", "undefined"].includes(typeof at(item, splitPath(path))))));
  const kind = (path, given) => (numeric.has(path) ? "number" : given === "number" ? "" : given);
  const row = (item) => el("tr", { role: "row", onclick: openOnClick },
    el("th", { scope: "row", role: "rowheader" },
      el("a", { href: itemLink(item), "data-item": item.output_id, "aria-label": `Open item ${item.id}` }, count(item.id))),
    columns.map((path) => {
      const { content, kind: given } = cell(item, path);
      return el("td", { role: "cell", class: kind(path, given), "data-label": label(path) }, content);
    }));
  put(table, el("div", { class: "scroll", role: "region", tabindex: 0, "aria-labelledby": "outputs-title" },
    el("table", { class: "rows cards", role: "table" },
      el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, el("th", { scope: "col", role: "columnheader" }, "Id"),
        columns.map((path) => el("th", { scope: "col", role: "columnheader", class: numeric.has(path) && "number", title: path }, label(path))))),
      el("tbody", { role: "rowgroup" }, view.items.map(row)))));
}

const itemLink = (item) => link(view.path, { ...view.params, item: item.output_id, source: item.source_url });

/** Let a click anywhere in a row open it, unless it was on a link or selects text. */
function openOnClick(event) {
  if (event.target.closest("a, button") || getSelection().toString()) return;
  const opener = event.currentTarget.querySelector("a[data-item]");
  opener.focus();
  opener.click();
}

function fillPager(params) {
  const { pager } = view.parts;
  const to = (cursor) => link(view.path, { ...params, cursor, item: "", source: "" });
  const step = (name, cursor, rel) => (cursor === undefined
    ? el("span", { class: "button off", "aria-disabled": "true" }, name)
    : el("a", { class: "button", rel, href: to(cursor), onclick: () => view.main.querySelector("#outputs-title").focus() }, name));
  const before = came.get(request(params));
  const ids = view.items.map((item) => item.id);
  put(pager,
    el("p", { class: "faint" }, ids.length ? `${many(ids.length, "output")}, ids ${count(ids[0])} to ${count(ids.at(-1))}${view.next === null ? ", the end" : ""}` : ""),
    el("div", { class: "actions" },
      step("First", params.cursor ? "" : undefined),
      step("Previous", params.cursor ? before : undefined, "prev"),
      step("Next", view.next === null ? undefined : String(view.next), "next")));
}

function chooseColumns() {
  const { columns: dialog } = view.parts;
  const shown = columnsShown();
  const all = choices(view.found ?? [], shown);
  const groups = [["Data", "data."], ["Tags", "tags."], ["Item", ""]];
  const left = new Set(all);
  const choice = (path, i) => el("li", null, el("label", null,
    el("input", { type: "checkbox", name: "column", value: path, checked: shown.includes(path), autofocus: i === 0 }),
    el("span", { class: "text" }, label(path)), el("span", { class: "faint text" }, sample(view.items?.[0] ?? {}, path))));
  const lists = groups.map(([title, start]) => {
    const paths = [...left].filter((path) => path.startsWith(start));
    paths.forEach((path) => left.delete(path));
    return paths.length > 0 && el("fieldset", null, el("legend", null, title), el("ul", null, paths.map(choice)));
  });
  const save = (columns) => {
    dialog.close();
    replace(view.path, { ...view.params, columns });
  };
  put(dialog, el("form", {
    onsubmit: (event) => {
      event.preventDefault();
      const picked = new FormData(event.target).getAll("column");
      // Those shown before keep their order; new ones come after.
      save([...shown.filter((path) => picked.includes(path)), ...picked.filter((path) => !shown.includes(path))].join(","));
    },
  },
    el("div", { class: "dialog-head" }, el("h2", { id: "columns-title" }, "Columns"), closeButton(dialog)),
    el("div", { class: "dialog-body" }, lists),
    el("div", { class: "dialog-foot" },
      el("button", { type: "button", class: "quiet", onclick: () => save("") }, "Usual ones"),
      el("button", { class: "primary" }, "Show these"))));
  dialog.showModal();
}

const closeButton = (dialog) => el("button", { type: "button", class: "quiet close", "aria-label": "Close", onclick: () => dialog.close() }, "✕");

async function showItem(signal) {
  const { dialog } = view.parts;
  const { item: wanted, source } = view.params;
  if (!wanted) return dialog.close();
  if (dialog.open && dialog.dataset.item === wanted) return;
  let item = view.items.find(({ output_id }) => output_id === wanted);
  const onPage = Boolean(item);
  if (!item && source) item = await findItem(wanted, source, signal);
  dialog.dataset.item = wanted;
  const place = view.items.indexOf(item);
  const step = (name, by) => el("button", {
    type: "button", class: "quiet", disabled: !onPage || !view.items[place + by],
    onclick: () => moveTo(view.items[place + by], name),
  }, name);
  put(dialog,
    el("div", { class: "dialog-head" },
      el("h2", { id: "item-title", tabindex: -1 }, item ? heading(item) : "Not found"),
      el("div", { class: "actions" }, step("Previous", -1), step("Next", 1), closeButton(dialog))),
    el("div", { class: "dialog-body" }, item ? itemView(item) : el("p", null, "This item is not in the group, or the link does not say where it came from.")));
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
  dialog.querySelector("#item-title").focus();
}

function moveTo(item, name) {
  replace(view.path, { ...view.params, item: item.output_id, source: item.source_url });
  const again = [...view.parts.dialog.querySelectorAll(".actions button")].find((button) => button.textContent === name);
  if (again && !again.disabled) again.focus();
}

/** Look an item up by its source: it may have changed since a link to it was made, and moved to another page. */
async function findItem(wanted, source, signal) {
  let cursor = "";
  for (let page = 0; page < LINKED_PAGES && cursor !== null; page++) {
    const { items, metadata } = await get(["outputs", view.group], { url: source, limit: "200", cursor }, signal);
    const found = items.find(({ output_id }) => output_id === wanted);
    if (found) return found;
    cursor = metadata.next_cursor && String(metadata.next_cursor);
  }
  return undefined;
}

/** Return an item's most telling text. */
function heading(item) {
  const [first] = defaults([item], discover([item]));
  const value = at(item, splitPath(first));
  const text = first.startsWith("data.") && typeof value === "string" ? value : "";
  return shorten(text, 80) || `Item ${count(item.id)}`;
}

function closed() {
  const { dialog } = view.parts;
  const { item, source, ...rest } = view.params;
  if (item === undefined) return;
  delete dialog.dataset.item;
  replace(view.path, rest);
  const opener = view.main.querySelector(`a[data-item="${CSS.escape(item)}"]`) ?? view.main.querySelector("#outputs-title");
  opener.focus();
}
