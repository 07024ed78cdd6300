// One item: what the service knows about it, its data as a tree, its files.

import { Failure, get, loaded, patch, problem, toJson } from "../base/api.js";
import { askInDialog, closeButton, cross, isBeside, keepNotice, say } from "../base/dialogs.js";
import { button, chip, copyButton, el, fact, faint, isWebAddress, outside, put, time } from "../base/dom.js";
import { actor, at, count, many, shorten, splitPath } from "../base/format.js";
import { link, replace } from "../base/place.js";
import { may } from "../base/session.js";
import { APPROVED, askReason, changesOf, judge, reasonOf, rejectedFor, showNewer } from "./judging.js";
import { isInline, pictureOfFile, thumbnail } from "./pictures.js";
import { defaults, discover, visible } from "./table.js";

/** Return the content of an item's panel. */
function itemView(item, view) {
  const { path } = view;
  return [
    el("dl", { class: "facts" },
      fact("Source", outside(item.source_url)),
      fact("Job", el("a", { href: link([...path, "jobs", item.root_job_id]) }, shorten(item.root_job_id, 120))),
      fact("Judged", whoJudged(item, view), item.is_approved ? chip("approved", "good") : reasonOf(item) !== null ? el("span", null, chip("rejected", "bad"), ` ${shorten(reasonOf(item), 200)}`) : "no"),
      fact("Created", time(item.create_date)),
      fact("Updated", time(item.update_date)),
      fact("Last scraped", time(item.last_scraped_date))),
    section("Data", tree(item.data, 0, (keys, value) => link(path, { where: `${keys.join(".")}:${value}` })), copyButton("Copy JSON", () => toJson(item))),
    section("Before and after", versions(view, item)),
    section("Tags", tree(item.tags), may("write") && button("Edit tags", () => editTags(item, view), "quiet", { "aria-haspopup": "dialog" })),
    section(`Files (${count(item.files.length)})`, item.files.length ? el("ul", { class: "files" }, item.files.map(file)) : el("p", { class: "faint" }, "No files.")),
    el("details", { class: "hashes" }, el("summary", null, "Identity"),
      el("dl", { class: "facts" }, fact("Id", code(String(item.id))), fact("Output id", code(item.output_id)), fact("Key hash", code(item.key_hash)), fact("Value hash", code(item.value_hash)))),
  ];
}

/** Return a place for who approved or rejected an item and when, which lists do not have. */
function whoJudged(item, view) {
  const holder = el("span", { class: "who" });
  if (item.is_approved || reasonOf(item) !== null) {
    get(["outputs", view.group, item.output_id]).then((whole) => whole.approved_date && put(holder, `${actor(whole.approved_by)}, `, time(whole.approved_date), " "), () => {});
  }
  return holder;
}

/** Change the tags of an item: texts as they are, everything else as JSON; an empty value removes the tag. */
function editTags(item, view) {
  const line = (name, value) => el("div", { class: "tag-line" },
    el("input", { name: "name", value: name, maxlength: 200, "aria-label": "Tag", placeholder: "Tag", autocomplete: "off", readonly: Boolean(name) }),
    el("input", { name: "value", value: typeof value === "string" ? value : value === undefined ? "" : toJson(value, 0), "aria-label": name ? `Value of ${name}` : "Value", placeholder: "Value", autocomplete: "off" }));
  const tags = Object.entries(item.tags).filter(([name]) => name !== "rejected");
  const rows = el("div", { class: "tag-lines" }, tags.map(([name, value]) => line(name, value)), line(""));
  askInDialog("small", "Edit tags", [rows, button("Add a tag", () => rows.append(line("")), "quiet"),
    el("p", { class: "hint" }, "An empty value removes a tag. A value that is JSON, such as 12 or true, is stored as that.")],
  [closeButton("Cancel"), el("button", { class: "primary" }, "Save tags")], async (data) => {
    const values = data.getAll("value");
    const tags = {};
    data.getAll("name").forEach((name, at) => {
      const text = values[at].trim();
      const before = item.tags[name.trim()];
      if (!name.trim() || text === (typeof before === "string" ? before : before === undefined ? "" : toJson(before, 0))) return;
      tags[name.trim()] = text === "" ? null : typeof before === "string" ? text : parsed(text);
    });
    if (!Object.keys(tags).length) return;
    const { items: [{ result }] } = await patch(["outputs", view.group], [{ output_id: item.output_id, tags, if_id: item.id }]);
    if (result === "conflict") throw problem("The item was changed meanwhile: open it again.");
    if (result === "too_large") throw problem("The tags are too large.");
    const { approved_by, approved_date, ...now } = await get(["outputs", view.group, item.output_id]);
    view.replaceItem(now);
    say("The tags are saved");
  });
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** Return a place for the earlier versions, which are loaded after the item is there. */
function versions(view, item) {
  const holder = el("div", null, faint("…"));
  import("./versions.js").then(({ showVersions }) => showVersions(view, item, holder)).catch(() => put(holder, faint("The earlier versions could not be read.")));
  return holder;
}

const section = (title, content, ...tools) =>
  el("section", null, el("div", { class: "heading" }, el("h3", null, title), ...tools), content);
const code = (value) => el("code", null, value);

function file(one) {
  const name = shorten(one.blob_key || one.field || one.id, 80);
  const links = [["File", one.file_url], ["Stored copy", one.blob_url], ["Found at", one.source_url]];
  const seen = new Set();
  return el("li", null,
    el("strong", null, name), " ", one.file_type && chip(shorten(one.file_type, 60)),
    thumbnail(pictureOfFile(one), "large"),
    el("dl", { class: "facts" },
      links.filter(([, url]) => url && !seen.has(url) && seen.add(url)).map(([title, url]) => fact(title, outside(url, shorten(url, 160)))),
      one.field && fact("Field", code(shorten(one.field, 200))),
      one.file_checksum && fact("Checksum", code(shorten(one.file_checksum, 200)))),
    Object.keys(one.file_metadata).length > 0 && tree(one.file_metadata));
}

// One item in a dialog, with its neighbours on the page, and what may be done with it.


const OPENED = "opened"; // of a place in the history: the page of items is the place before it
// In the address, instead of an output id: the item at that end of the page.
export const FIRST = "first", LAST = "last";

/** Return the dialog; `current()` is the desk that it belongs to. */
export function itemDialog(current) {
  const dialog = el("dialog", {
    class: "item", "aria-labelledby": "item-title", onclose: () => closed(current()), onmousedown: (event) => isBeside(dialog, event) && dialog.close(),
  });
  return dialog;
}

/** Show the item that the address names, or close the dialog. */
export async function showItem(desk, signal) {
  const { dialog } = desk.parts;
  const { item: wanted } = desk.params;
  if (!wanted) return dialog.close();
  const isEdge = [FIRST, LAST].includes(wanted);
  if (isEdge && !desk.loaded) return desk.request ? null : dialog.close(); // its page is being read, or could not be
  if (isEdge) return replace(desk.view.path, { ...desk.params, item: desk.items.at(wanted === FIRST ? 0 : -1)?.output_id ?? "" });
  if (dialog.open && dialog.dataset.item === wanted) return;
  const item = desk.items.find(({ output_id }) => output_id === wanted) ?? (await find(desk, wanted, signal));
  dialog.dataset.item = wanted;
  const step = dialog.open && document.activeElement?.dataset.step;
  fill(desk, item);
  if (!dialog.open) {
    dialog.showModal();
    if (desk.opening === wanted) history.replaceState(OPENED, "");
    desk.opening = null;
  }
  dialog.scrollTop = 0;
  (dialog.querySelector(`[data-step="${step}"]:enabled`) ?? dialog.querySelector("#item-title")).focus();
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
  const rows = visible(desk);
  const place = item ? rows.findIndex(({ output_id }) => output_id === item.output_id) : -1;
  const step = (name, by) => button(name, () => moveItem(desk, by, true), "quiet", { "data-step": by, disabled: place < 0 || !(rows[place + by] || desk.goesOn(by)) });
  put(dialog,
    el("div", { class: "dialog-head" },
      el("h2", { id: "item-title", tabindex: -1 }, item ? heading(item) : "Not found"),
      el("div", { class: "actions" }, step("Previous", -1), step("Next", 1), cross())),
    el("div", { class: "dialog-body" }, item ? itemView(item, desk.view) : el("p", null, "This item is not in the group: it was deleted, or the link is wrong.")),
    item && (may("write") || may("delete")) && el("div", { class: "dialog-foot" },
      may("write") && el("div", { class: "actions" },
        button(item.is_approved ? "Approved" : "Approve", () => judgeItem(desk, item, APPROVED), "primary", { id: "judge-a" }),
        button(reasonOf(item) !== null ? "Rejected" : "Reject", () => askReason(1, (reason) => judgeItem(desk, item, rejectedFor(reason))), "", { id: "judge-x" })),
      may("delete") && button("Delete", () => deleteItem(desk, item), "quiet danger-text")),
    [...dialog.querySelectorAll("#notice, #status")]); // a message about the item before stays
}

/** Show the item before or after this one; with `turns`, on the next page too. */
export function moveItem(desk, by, turns = false) {
  const { dialog } = desk.parts;
  const rows = visible(desk);
  const now = rows.findIndex(({ output_id }) => output_id === dialog.dataset.item);
  if (now < 0) return;
  if (rows[now + by]) replace(desk.view.path, { ...desk.params, item: rows[now + by].output_id });
  else if (turns && desk.goesOn(by)) desk.goOn(by, true);
}

/** Judge the item and go on to the next one; the last one, or one that is not on this page, stays as it is now. */
function judgeItem(desk, item, to) {
  if (desk.pending.has(item.output_id)) return;
  judge(desk, changesOf([item], to));
  moveItem(desk, 1);
}

/** Show an item anew if it is the one in the dialog. */
export function refreshItem(desk, item) {
  const { dialog } = desk.parts;
  if (dialog.open && dialog.dataset.item === item.output_id) fill(desk, item);
}

async function deleteItem(desk, item) {
  const { dialog } = desk.parts;
  const { askToDelete, removeItem, sayDeleted } = await loaded(import("./deleting.js"));
  await askToDelete(desk.view, heading(item), "Delete this item?", async (isKept) => {
    await removeItem(desk, item).catch(async (error) => {
      if (error.status === 412) await showNewer(desk, [item.output_id]);
      throw error;
    });
    dialog.close();
    desk.drop(item.output_id);
    sayDeleted(desk, item, isKept);
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
  keepNotice(dialog);
  if (item === undefined) return;
  delete dialog.dataset.item;
  if (history.state === OPENED) history.back();
  else replace(desk.view.path, rest);
  const opener = table.querySelector(`a[data-open="${CSS.escape(item)}"]`) ?? desk.view.tab.querySelector("#outputs-title");
  opener.focus();
}

// JSON as nested lists that open.

const OPEN_LEVELS = 2;
const INDENTED_LEVELS = 8; // deeper, there is no room left on a phone
const ENTRIES = 100;
const LONGEST = 500;

/** Return an object or array as nested lists; what is inside is made when it is opened. `filter(keys, value)` leads to the items that have the same. */
function tree(value, level = 0, filter = null, keysAbove = []) {
  const isList = Array.isArray(value);
  const keys = isList ? value.map((_, i) => i) : Object.keys(value);
  if (!keys.length) return el("p", { class: "faint" }, isList ? "empty list" : "empty");
  const list = el("ul", { class: level > INDENTED_LEVELS ? "tree flat" : "tree" });
  const add = (from) => {
    list.append(...keys.slice(from, from + ENTRIES).map((key) => entry(key, value[key], level, isList ? null : filter, [...keysAbove, key])));
    const left = keys.length - from - ENTRIES;
    if (left > 0) {
      const more = el("li", null, button(`Show ${count(Math.min(left, ENTRIES))} of ${count(left)} more`, () => { more.remove(); add(from + ENTRIES); }, "quiet"));
      list.append(more);
    }
  };
  add(0);
  return list;
}

function entry(key, value, level, filter, keys) {
  const name = el("span", { class: typeof key === "number" ? "name place" : "name" }, typeof key === "number" ? `${key + 1}.` : shorten(key, 200) || "(no name)");
  if (typeof value !== "object" || value === null) return el("li", { class: "leaf" }, name, el("span", null, leaf(value), isFilter(filter, keys, value) && el("a", { class: "only", href: filter(keys, value), "aria-label": `Only items with this ${key}` }, "Only these")));
  const size = Array.isArray(value) ? many(value.length, "entry", "entries") : many(Object.keys(value).length, "field");
  if (!Object.keys(value).length) return el("li", { class: "leaf" }, name, faint(Array.isArray(value) ? "empty list" : "empty"));
  const branch = el("details", null, el("summary", null, name, faint(size)));
  const grow = () => branch.children.length === 1 && branch.append(tree(value, level + 1, filter, keys));
  branch.addEventListener("toggle", grow);
  if (level + 1 < OPEN_LEVELS && Object.keys(value).length <= 20) {
    branch.open = true;
    grow();
  }
  return el("li", null, branch);
}

/** Return whether the service can filter by a value: it is short, and its path has no sign with a meaning. */
const isFilter = (filter, keys, value) => filter && value !== null && String(value).length <= 100 && value !== "" && !/\n/.test(String(value)) && !keys.some((key) => /[.:\\!<>~]/.test(key));

function leaf(value) {
  if (typeof value !== "string") return el("span", { class: `value ${value === null ? "faint" : "plain"}` }, String(value));
  if (isInline(value)) return el("span", { class: "value" }, thumbnail(value, "large"), faint(`${value.match(/^[^;,]*/)[0]}, ${count(value.length)} characters`));
  if (isWebAddress(value)) return el("span", { class: "value" }, outside(value, shorten(value, 160)));
  const text = el("span", { class: "value" }, value === "" ? faint("empty text") : shorten(value, LONGEST));
  if (value.length <= LONGEST) return text;
  text.append(" ", button(`Show all ${count(value.length)} characters`, () => put(text, value), "quiet"));
  return text;
}
