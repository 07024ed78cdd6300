// Selected items and the current row: what keys and buttons work on.

import { el, put } from "./dom.js";
import { many } from "./format.js";
import { judge } from "./reviewing.js";
import { rowOf } from "./rows.js";
import { may } from "./session.js";

/** Give `desk` a selection (output ids), a current row, and ways to change and judge them. */
export function makeSelectable(desk) {
  Object.assign(desk, {
    selected: new Set(),
    current: null,
    select: (id, yes) => {
      desk.selected[yes ? "add" : "delete"](id);
      showSelection(desk);
    },
    selectAll: (yes) => {
      for (const { output_id } of visible(desk)) desk.selected[yes ? "add" : "delete"](output_id);
      showSelection(desk);
    },
    selectionChanged: () => showSelection(desk),
    move: (by) => move(desk, by),
    judge: (approved) => judgeChosen(desk, approved),
  });
}

function visible(desk) {
  const shown = new Set([...desk.parts.table.querySelectorAll("tr[data-item]:not([hidden])")].map(({ dataset }) => dataset.item));
  return desk.items.filter(({ output_id }) => shown.has(output_id));
}

/** Make another row the current one, `by` places further. */
function move(desk, by) {
  const rows = visible(desk);
  const now = rows.findIndex(({ output_id }) => output_id === desk.current);
  const next = rows[now < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, now + by))];
  if (!next) return;
  desk.current = next.output_id;
  for (const old of desk.parts.table.querySelectorAll("tr.current")) old.classList.remove("current");
  const shown = rowOf(desk.parts.table, next.output_id);
  shown.classList.add("current");
  shown.querySelector("a[data-open]").focus();
  shown.scrollIntoView({ block: "nearest" });
}

function showSelection(desk) {
  const { selection, table } = desk.parts;
  for (const shown of table.querySelectorAll("tr[data-item]")) {
    const yes = desk.selected.has(shown.dataset.item);
    shown.setAttribute("aria-selected", yes);
    const check = shown.querySelector("input");
    if (check) check.checked = yes;
  }
  const all = table.querySelector("thead input");
  if (all) all.checked = desk.selected.size > 0 && visible(desk).every(({ output_id }) => desk.selected.has(output_id));
  selection.hidden = !desk.selected.size;
  put(selection,
    el("strong", null, `${many(desk.selected.size, "item")} selected`),
    el("button", { type: "button", class: "primary", onclick: () => desk.judge(true) }, "Approve"),
    el("button", { type: "button", onclick: () => desk.judge(false) }, "Reject"),
    el("button", { type: "button", class: "quiet", onclick: () => desk.selectAll(false) }, "Clear"));
}

/** Approve or reject what is selected, else the current row, and go on to the next one. */
function judgeChosen(desk, approved) {
  if (!may("write")) return;
  const chosen = desk.items.filter(({ output_id }) => desk.selected.has(output_id));
  if (chosen.length) {
    desk.selected.clear();
    showSelection(desk);
    return judge(desk, chosen, approved);
  }
  const current = desk.items.find(({ output_id }) => output_id === desk.current);
  if (!current || desk.pending.has(current.output_id)) return;
  move(desk, 1);
  return judge(desk, [current], approved);
}
