// The table of outputs: one row per item, to be opened, selected and searched; its columns, and how they are chosen.

import { askInDialog } from "../base/dialogs.js";
import { announce, button, cell, el, faint, isWebAddress, outside, put, row, rowHead, time } from "../base/dom.js";
import { at, isObject, joinPath, many, shorten, splitPath } from "../base/format.js";
import { reasonOf } from "./judging.js";
import { anyPicture, isInline, pictureOf, thumbnail } from "./pictures.js";

/** Fill `place` with the items of `desk`; keep its selection and current row. */
export function showRows(place, desk) {
  const { items, columns, selected } = desk;
  const numeric = new Set(columns.filter((path) => items.every((item) => ["number", "bigint", "undefined"].includes(typeof at(item, splitPath(path))))));
  const pictures = anyPicture(items);
  const head = (props, ...children) => el("th", { scope: "col", role: "columnheader", ...props }, ...children);
  const all = el("input", { type: "checkbox", "aria-label": "Select all rows", checked: items.length > 0 && items.every(({ output_id }) => selected.has(output_id)), onchange: () => desk.selectAll(all.checked) });
  desk.numeric = numeric;
  put(place, el("div", { class: "scroll", role: "region", tabindex: 0, "aria-labelledby": "outputs-title" },
    el("table", { class: "rows cards", role: "table" },
      el("thead", { role: "rowgroup" }, el("tr", { role: "row" },
        head({ class: "id-cell" }, all, el("span", null, "Id")),
        pictures && head({ class: "picture-cell" }, el("span", { class: "unseen" }, "Picture")),
        columns.map((path) => sortable(head, path, desk, numeric.has(path))))),
      el("tbody", { role: "rowgroup" }, items.map((item) => one(item, desk, pictures))))));
}

function sortable(head, path, desk, isNumber) {
  const order = { [path]: "ascending", [`-${path}`]: "descending" }[desk.params.sort];
  return head({ class: isNumber && "number", "aria-sort": order },
    el("a", { href: desk.sortLink(path), title: `Sort the ${many(desk.items.length, "row")} of this page by ${path}: other pages are not sorted` }, label(path), order && el("span", { "aria-hidden": "true" }, order === "ascending" ? " ↑" : " ↓")));
}

function one(item, desk, pictures) {
  const { output_id } = item;
  const listed = desk.listed.get(output_id) ?? item.id;
  const check = el("input", {
    type: "checkbox", "aria-label": `Select item ${listed}`, checked: desk.selected.has(output_id), onchange: () => desk.select(output_id, check.checked),
  });
  return row({ class: desk.current === output_id ? "current" : null, "data-item": output_id, "aria-selected": desk.selected.has(output_id) ? "true" : "false", onclick: openOnClick },
    rowHead({ class: "id-cell" }, check, el("a", { href: desk.itemLink(item), "data-open": output_id, onclick: () => (desk.opening = output_id), "aria-label": `Open item ${listed}`, title: listed === item.id ? null : `Its id is ${item.id} since the last change` }, String(listed))),
    pictures && cell("", "picture-cell", thumbnail(pictureOf(item)) ?? ""),
    desk.columns.map((path) => {
      const { content: shown, kind } = content(item, path, desk.filterLink);
      return cell(label(path), desk.numeric.has(path) ? "number" : kind, shown);
    }));
}

/** Show an item anew in its row, where it stands, with the focus where it was. */
export function updateRow(place, item, desk) {
  const old = rowOf(place, item.output_id);
  if (!old) return;
  const focused = old.contains(document.activeElement) && document.activeElement;
  const made = one(item, desk, Boolean(place.querySelector("thead .picture-cell")));
  made.classList.toggle("current", old.classList.contains("current"));
  made.hidden = old.hidden;
  old.replaceWith(made);
  if (focused) made.querySelector(focused.matches("input") ? "input" : "a[data-open]").focus();
}

/** Return the items whose rows the search leaves. */
export function visible(desk) {
  const shown = new Set([...desk.parts.table.querySelectorAll("tr[data-item]:not([hidden])")].map(({ dataset }) => dataset.item));
  return desk.items.filter(({ output_id }) => shown.has(output_id));
}

export const rowOf = (place, outputId) => place.querySelector(`tr[data-item="${CSS.escape(outputId)}"]`);

/** Let a click anywhere in a row open it, unless it was on a control or selects text. */
function openOnClick(event) {
  if (event.target.closest("a, button, input") || getSelection().toString()) return;
  const opener = event.currentTarget.querySelector("a[data-open]");
  opener.focus();
  opener.click();
}

/** Hide the rows whose item does not contain `text`; return how many are left. */
export function search(place, items, text) {
  const wanted = text.toLowerCase();
  const found = new Set(items.filter((item) => !wanted || textOf(item).includes(wanted)).map(({ output_id }) => output_id));
  for (const shown of place.querySelectorAll("tr[data-item]")) shown.hidden = !found.has(shown.dataset.item);
  return found.size;
}

const texts = new WeakMap(); // made once per item, not at every key

function textOf(item) {
  if (!texts.has(item)) {
    const values = (value) => (value !== null && typeof value === "object" ? Object.values(value).flatMap(values) : [String(value)]);
    texts.set(item, values([item.id, item.source_url, item.root_job_id, item.data, item.tags]).join("\n").toLowerCase());
  }
  return texts.get(item);
}

// Which columns a table of outputs has, and how a cell looks.

const LABELS = {
  root_job_id: "Job", is_approved: "Judged", update_date: "Updated", create_date: "Created",
  last_scraped_date: "Last scraped", source_url: "Source", output_id: "Output id", files: "Files",
  key_hash: "Key", value_hash: "Value hash",
};
const DATES = new Set(["update_date", "create_date", "last_scraped_date"]);
const ITEM_COLUMNS = Object.keys(LABELS);
const TELLING = /^(title|name|headline|product|company|subject|label)$/i;
const DEEPEST = 4;
const MOST = 300;
const LONGEST = 120;

/** Return the columns that these items can fill, in the order of the data: `{path, keys, values}`. */
export function discover(items) {
  const found = new Map();
  let place; // of a field in its item; the last one counts, because items that lack fields have fewer before it
  const visit = (value, keys) => {
    if (isObject(value) && keys.length < DEEPEST && Object.keys(value).length) {
      for (const key of Object.keys(value)) visit(value[key], [...keys, key]);
    } else if (keys.length > 1) {
      const path = joinPath(keys);
      if (!found.has(path) && found.size < MOST) found.set(path, { path, keys, values: [], place: 0 });
      const column = found.get(path);
      if (!column) return;
      column.values.push(value);
      column.place = Math.max(column.place, place++);
    }
  };
  for (const item of items) {
    place = 0;
    visit(item.data, ["data"]);
    place = MOST;
    visit(item.tags, ["tags"]);
  }
  return [...found.values()].sort((a, b) => a.place - b.place);
}

/**
 * Return the columns to begin with: short and telling values of `data`, then the job, approval and date.
 *
 * A field that is filled in few rows may be the one that broke, so it stays; one that is the same in all rows goes last.
 */
export function defaults(items, columns) {
  const parents = new Set(columns.map(({ keys }) => joinPath(keys.slice(0, -1)))); // null in one item, an object in others
  const short = columns.filter(({ path, keys, values }) =>
    keys[0] === "data" && !parents.has(path) && values.every((value) => typeof value !== "object" || value === null) &&
    values.reduce((sum, value) => sum + String(value).length, 0) / values.length <= 60 && !values.some(isWebAddress));
  const candidates = short.length ? short : columns.filter(({ keys }) => keys[0] === "data");
  const isDull = ({ values }) => items.length > 4 && (values.length * 10 < items.length || (values.length === items.length && values.every((value) => value === values[0])));
  const telling = columns.filter(({ keys, values }) => keys.length === 2 && keys[0] === "data" && TELLING.test(keys[1]) && values.every((value) => typeof value !== "object" || value === null));
  const chosen = [...new Set([...telling, ...candidates.filter((one) => !isDull(one)), ...candidates])].slice(0, 5);
  return [...chosen.map(({ path }) => path), "root_job_id", "is_approved", "update_date"];
}

/** Return the paths a person can choose from: what is in the data, the tags, the rest of the item, and `chosen`. */
function choices(columns, chosen) {
  const known = [...columns.map(({ path }) => path), ...ITEM_COLUMNS];
  return [...known, ...chosen.filter((path) => !known.includes(path))];
}

function label(path) {
  if (Object.hasOwn(LABELS, path)) return LABELS[path];
  return shorten(path.replace(/^data\./, ""), 60);
}

// Where the API has a filter for a column, a click on its cell filters by it.
const FILTERED = { root_job_id: "job_id", is_approved: "is_approved", "tags.country": "country", "tags.region": "region" };

/** Return a cell's content, and its class if it has one; `filterLink(name, value)` leads to the items that have the same. */
function content(item, path, filterLink) {
  const value = at(item, splitPath(path));
  if (DATES.has(path)) return { content: time(value), kind: "date" };
  if (path === "is_approved") {
    const reason = reasonOf(item);
    if (!value && reason !== null) return { content: el("a", { class: "chip bad", href: filterLink("rejected", "true"), title: `Rejected: ${shorten(reason, 200)}` }, "rejected") };
    return { content: el("a", { class: value ? "chip good" : "faint", href: filterLink("is_approved", String(value)), title: value ? "Only approved ones" : "Only those not approved" }, value ? "approved" : "no") };
  }
  if (Object.hasOwn(FILTERED, path) && typeof value === "string" && value) {
    return { content: el("a", { class: "text", href: filterLink(FILTERED[path], value), title: `Only ${label(path)} ${shorten(value, 60)}` }, shorten(value, 60)) };
  }
  return show(value);
}

function show(value) {
  if (value === undefined) return { content: faint("–") };
  if (value === null) return { content: faint("null") };
  if (Array.isArray(value)) return { content: faint(many(value.length, "entry", "entries")) };
  if (typeof value === "object") return { content: faint(many(Object.keys(value).length, "field")) };
  if (typeof value === "number" || typeof value === "bigint") return { content: String(value), kind: "number" };
  if (typeof value === "boolean") return { content: String(value) };
  if (isInline(value)) return { content: thumbnail(value), kind: "picture-cell" };
  if (isWebAddress(value)) return { content: outside(value, shorten(value.replace(/^https?:\/\//i, ""), 48)), kind: "address" };
  return { content: el("span", { class: "text", title: value.length > 40 && shorten(value, 600) }, shorten(value, LONGEST)) };
}

/** Return a value in a few words. */
function sample(item, path) {
  const value = at(item, splitPath(path));
  if (value === undefined) return "";
  return typeof value === "object" ? show(value).content.textContent : shorten(String(value), 40);
}

// Chooses columns: search, all or none, and their order by drag or with the arrow keys.

/** Ask which columns to show; `save` gets their paths, a comma between, or "" for the usual ones. */
export function chooseColumns(desk, save) {
  const shown = desk.columns;
  const all = choices(desk.found, shown);
  const list = el("ul", { class: "choices" }, [...shown, ...all.filter((path) => !shown.includes(path))].map((path) => choice(desk, path, shown.includes(path))));
  const search = el("input", {
    type: "search", placeholder: "Search columns", "aria-label": "Search columns", autofocus: true, oninput: () => {
      for (const item of list.children) item.hidden = !item.dataset.path.toLowerCase().includes(search.value.toLowerCase());
    },
  });
  const setAll = (checked) => {
    for (const item of list.children) if (!item.hidden) item.querySelector("input").checked = checked;
  };
  list.addEventListener("dragover", (event) => dragOver(event, list));
  list.addEventListener("drop", (event) => event.preventDefault());
  const dialog = askInDialog("columns", "Columns", [
    el("div", { class: "choices-tools" }, search, button("All", () => setAll(true), "quiet"), button("None", () => setAll(false), "quiet")),
    el("p", { class: "hint" }, "Drag a row, or press Alt with an arrow key on it, to change the order."),
    list,
  ], [
    button("Usual ones", () => {
      dialog.close();
      save("");
    }, "quiet"),
    el("button", { class: "primary" }, "Show these"),
  ], (data) => save(data.getAll("column").join(",")));
}

function choice(desk, path, checked) {
  const item = el("li", {
    "data-path": path, draggable: "true",
    ondragstart: (event) => {
      event.dataTransfer.effectAllowed = "move";
      item.classList.add("dragged");
    },
    ondragend: () => item.classList.remove("dragged"),
    onkeydown: (event) => {
      if (event.altKey && (event.key === "ArrowUp" || event.key === "ArrowDown")) moveBy(event, item, event.key === "ArrowUp" ? -1 : 1);
    },
  },
    el("label", null,
      el("input", { type: "checkbox", name: "column", value: path, checked }),
      el("span", { class: "text" }, label(path)), el("span", { class: "faint text" }, sample(desk.items[0] ?? {}, path))),
    el("span", { class: "grip", "aria-hidden": "true" }, "⠿"));
  return item;
}

function moveBy(event, item, by) {
  event.preventDefault();
  const other = by < 0 ? item.previousElementSibling : item.nextElementSibling;
  if (!other) return;
  const focused = document.activeElement;
  if (by < 0) other.before(item);
  else other.after(item);
  focused.focus();
  announce(`${label(item.dataset.path)}: place ${[...item.parentElement.children].indexOf(item) + 1}`);
}

function dragOver(event, list) {
  const dragged = list.querySelector(".dragged");
  const over = event.target.closest("li");
  if (!dragged) return;
  event.preventDefault();
  if (!over || over === dragged) return;
  const { top, height } = over.getBoundingClientRect();
  if (event.clientY < top + height / 2) over.before(dragged);
  else over.after(dragged);
}
