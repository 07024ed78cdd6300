// Keys for reviewing without a mouse, and the help that lists them.

import { askInDialog } from "./dialogs.js";
import { el } from "./dom.js";
import { moveItem } from "./item_dialog.js";

const HELP = [
  ["j / k", "Next row, row before"], ["Enter", "Open the row"], ["a", "Approve the row or what is selected, and go on"],
  ["x", "Reject the row or what is selected, and go on"], ["s", "Select the row"], ["n / p", "Next page, page before"],
  ["/", "Find on this page"], ["Esc", "Close"], ["?", "This help"],
];

/** Listen until the signal `stay` ends. */
export function listenToKeys(desk, stay) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.defaultPrevented) return;
    if (event.target.closest("input:not([type=checkbox]), textarea, select, [contenteditable]")) return;
    const { dialog } = desk.parts;
    const action = dialog.open ? inDialog(desk)[event.key] : !document.querySelector("dialog[open]") && inTable(desk)[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  }, { signal: stay });
}

const inTable = (desk) => ({
  j: () => desk.move(1),
  k: () => desk.move(-1),
  a: () => desk.judge(true),
  x: () => desk.judge(false),
  s: () => desk.current && desk.select(desk.current, !desk.selected.has(desk.current)),
  n: () => desk.turn("next"),
  p: () => desk.turn("previous"),
  "/": () => desk.parts.search.focus(),
  "?": showHelp,
});

const inDialog = (desk) => ({
  j: () => moveItem(desk, 1),
  k: () => moveItem(desk, -1),
  a: () => desk.parts.dialog.querySelector('[data-judge="a"]:not(:disabled)')?.click(),
  x: () => desk.parts.dialog.querySelector('[data-judge="x"]:not(:disabled)')?.click(),
});

export function showHelp() {
  const dialog = askInDialog("small", "Keys", el("dl", { class: "facts keys" }, HELP.map(([keys, what]) =>
    el("div", null, el("dt", null, el("kbd", null, keys)), el("dd", null, what)))),
  el("button", { type: "button", class: "primary", autofocus: true, onclick: () => dialog.close() }, "Close"), () => true);
}
