// One item in a dialog, with its neighbours on the page, and what may be done with it.

import { Failure, get, remove } from "./api.js";
import { defaults, discover } from "./columns.js";
import { closeButton, confirm, say } from "./dialogs.js";
import { el, put } from "./dom.js";
import { at, shorten, splitPath } from "./format.js";
import { itemView } from "./item.js";
import { replace } from "./place.js";
import { judge } from "./reviewing.js";
import { may } from "./session.js";

/** Return the dialog; `current()` is the desk that it belongs to. */
export function itemDialog(current) {
  const dialog = el("dialog", {
    class: "item", "aria-labelledby": "item-title", onclose: () => closed(current()), onclick: (event) => event.target === dialog && dialog.close(),
  });
  return dialog;
}

/** Show the item that the address names, or close the dialog. */
export async function showItem(desk, signal) {
  const { dialog } = desk.parts;
  const { item: wanted } = desk.params;
  if (!wanted) return dialog.close();
  if (dialog.open && dialog.dataset.item === wanted) return;
  const item = desk.items.find(({ output_id }) => output_id === wanted) ?? (await find(desk, wanted, signal));
  dialog.dataset.item = wanted;
  fill(desk, item);
  if (!dialog.open) dialog.showModal();
  dialog.scrollTop = 0;
  dialog.querySelector("#item-title").focus();
}

/** Read an item that is not on this page: it may have changed since a link to it was made, and moved. */
async function find(desk, wanted, signal) {
  try {
    return await get(["outputs", desk.view.group, wanted], {}, signal);
  } catch (error) {
    if (error instanceof Failure && [404, 422].includes(error.status)) return undefined;
    throw error;
  }
}

function fill(desk, item) {
  const { dialog } = desk.parts;
  const place = desk.items.indexOf(item);
  const step = (name, by) => el("button", {
    type: "button", class: "quiet", "data-step": by, disabled: place < 0 || !desk.items[place + by], onclick: () => moveItem(desk, by),
  }, name);
  put(dialog,
    el("div", { class: "dialog-head" },
      el("h2", { id: "item-title", tabindex: -1 }, item ? heading(item) : "Not found"),
      el("div", { class: "actions" }, step("Previous", -1), step("Next", 1), closeButton(dialog))),
    el("div", { class: "dialog-body" }, item ? itemView(item, desk.view.path) : el("p", null, "This item is not in the group: it was deleted, or the link is wrong.")),
    item && (may("write") || may("delete")) && el("div", { class: "dialog-foot" },
      may("write") && el("div", { class: "actions" },
        el("button", { type: "button", class: "primary", "data-judge": "a", disabled: item.is_approved, onclick: () => judgeItem(desk, item, true) }, item.is_approved ? "Approved" : "Approve"),
        el("button", { type: "button", "data-judge": "x", disabled: !item.is_approved, onclick: () => judgeItem(desk, item, false) }, "Reject")),
      may("delete") && el("button", { type: "button", class: "quiet danger-text", onclick: () => deleteItem(desk, item) }, "Delete")));
}

/** Show the item before or after this one. */
export function moveItem(desk, by) {
  const { dialog } = desk.parts;
  const next = desk.items[desk.items.findIndex(({ output_id }) => output_id === dialog.dataset.item) + by];
  if (!next) return;
  replace(desk.view.path, { ...desk.params, item: next.output_id });
  const again = dialog.querySelector(`[data-step="${by}"]`);
  if (again && !again.disabled) again.focus();
}

async function judgeItem(desk, item, approved) {
  const { dialog } = desk.parts;
  const kept = desk.items.includes(item);
  await judge(desk, [item], approved);
  if (dialog.dataset.item !== item.output_id || !dialog.open) return;
  const now = kept ? desk.items.find(({ output_id }) => output_id === item.output_id) : await find(desk, item.output_id);
  fill(desk, now);
  dialog.querySelector("[data-judge]:not(:disabled)")?.focus();
}

function deleteItem(desk, item) {
  const { dialog } = desk.parts;
  confirm("Delete this item?", `${heading(item)}: its data and files go, and readers of the group learn that it was deleted.`, "Delete", async () => {
    await remove(["outputs", desk.view.group, item.output_id]);
    dialog.close();
    desk.drop(item.output_id);
    say("The item is deleted");
  });
}

/** Return an item's most telling text. */
function heading(item) {
  const [first] = defaults([item], discover([item]));
  const value = at(item, splitPath(first));
  const text = first.startsWith("data.") && typeof value === "string" ? value : "";
  return shorten(text, 80) || `Item ${item.id}`;
}

function closed(desk) {
  const { dialog, table } = desk.parts;
  const { item, ...rest } = desk.params;
  if (item === undefined) return;
  delete dialog.dataset.item;
  replace(desk.view.path, rest);
  const opener = table.querySelector(`a[data-open="${CSS.escape(item)}"]`) ?? desk.view.tab.querySelector("#outputs-title");
  opener.focus();
}
