// The table of outputs: one row per item, to be opened, selected and searched.

import { cell, el, put, row, rowHead } from "../base/dom.js";
import { at, splitPath } from "../base/format.js";
import { may } from "../base/session.js";
import { content, label } from "./columns.js";
import { anyPicture, pictureOf, thumbnail } from "./pictures.js";

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
        head({ class: "id-cell" }, may("write") && all, el("span", null, "Id")),
        pictures && head({ class: "picture-cell" }, el("span", { class: "unseen" }, "Picture")),
        columns.map((path) => sortable(head, path, desk, numeric.has(path))))),
      el("tbody", { role: "rowgroup" }, items.map((item) => one(item, desk, pictures))))));
}

function sortable(head, path, desk, isNumber) {
  const order = { [path]: "ascending", [`-${path}`]: "descending" }[desk.params.sort];
  return head({ class: isNumber && "number", "aria-sort": order },
    el("a", { href: desk.sortLink(path), title: `Sort this page by ${path}` }, label(path), order && el("span", { "aria-hidden": "true" }, order === "ascending" ? " ↑" : " ↓")));
}

function one(item, desk, pictures) {
  const { output_id } = item;
  const listed = item.listed ?? item.id; // where it stood when the page was read: a judged row does not jump
  const check = may("write") && el("input", {
    type: "checkbox", "aria-label": `Select item ${listed}`, checked: desk.selected.has(output_id), onchange: () => desk.select(output_id, check.checked),
  });
  return row({ "data-item": output_id, "aria-selected": desk.selected.has(output_id) ? "true" : "false", onclick: openOnClick },
    rowHead({ class: "id-cell" }, check, el("a", { href: desk.itemLink(item), "data-open": output_id, "aria-label": `Open item ${listed}`, title: listed === item.id ? null : `Its id is ${item.id} since the last change` }, String(listed))),
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
    const parts = [item.id, item.source_url, item.root_job_id, item.data, item.tags];
    texts.set(item, JSON.stringify(parts, (_, value) => (typeof value === "bigint" ? String(value) : value)).toLowerCase());
  }
  return texts.get(item);
}
