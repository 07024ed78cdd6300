// Selected items and the current row: what keys and buttons work on, up to everything that the filters match.

import { get, loaded, patch, remove, sentenceOf, toJson } from "../base/api.js";
import { askInDialog, checkbox, closeButton, field, say } from "../base/dialogs.js";
import { announce, button, el, put } from "../base/dom.js";
import { count, many } from "../base/format.js";
import { may } from "../base/session.js";
import { DELETABLE } from "./filters.js";
import { moveItem } from "./item.js";
import { APPROVED, askReason, changesOf, judge, rejectedFor, undo } from "./judging.js";
import { rowOf, visible } from "./table.js";

const PAGE = "1000";
const MOST = 100_000; // items that one selection holds
const AT_ONCE = 4; // single items being read or deleted
const MOVING = ["job_id", "change"]; // filters that an unchanged item begins to match, under its old id

/** Give `desk` a selection (output id -> item), a current row, and ways to change them. */
export function makeSelectable(desk) {
  Object.assign(desk, {
    selected: new Map(),
    isAll: false, // whether the selection is everything that the filters match
    all: {}, // the filters of such a selection, and its newest id
    current: null,
    work: null, // a long run: {text, done, total, stop}
    select: (id, yes) => choose(desk, desk.items.filter(({ output_id }) => output_id === id), yes),
    selectAll: (yes) => choose(desk, visible(desk), yes),
    clear: () => deselect(desk, [...desk.selected.values()]),
    enter: (place) => moveTo(desk, visible(desk).at(place)),
    selectionChanged: () => showSelection(desk),
    undos: [], // the last decisions
  });
}

function choose(desk, items, yes) {
  for (const item of items) {
    if (yes) desk.selected.set(item.output_id, item);
    else desk.selected.delete(item.output_id);
  }
  if (!yes) desk.isAll = false;
  showSelection(desk);
}

/** Make another row the current one, `by` places further; with `turns`, on the next page too. */
function move(desk, by, turns = false) {
  const rows = visible(desk);
  const now = rows.findIndex(({ output_id }) => output_id === desk.current);
  if (turns && now >= 0 && !rows[now + by] && desk.goesOn(by)) return desk.goOn(by);
  moveTo(desk, rows[now < 0 ? (by > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, now + by))]);
}

function moveTo(desk, item) {
  if (!item) return;
  const shown = mark(desk, item.output_id);
  shown.querySelector("a[data-open]").focus();
  shown.scrollIntoView({ block: "nearest" });
}

/** Make a row the current one, which keys work on; return it. */
function mark(desk, outputId) {
  desk.current = outputId;
  for (const old of desk.parts.table.querySelectorAll("tr.current")) old.classList.remove("current");
  const shown = rowOf(desk.parts.table, outputId);
  shown?.classList.add("current");
  return shown;
}

/** Let the row that has the focus be the current one: after a click, a tab or a closed dialog too. */
export function followFocus(desk) {
  desk.parts.table.addEventListener("focusin", ({ target }) => {
    const focused = target.closest("tr[data-item]");
    if (focused) mark(desk, focused.dataset.item);
  });
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
  const wholePage = desk.selected.size > 0 && visible(desk).every(({ output_id }) => desk.selected.has(output_id));
  if (all) all.checked = wholePage;
  selection.hidden = !desk.selected.size && !desk.work;
  if (desk.work) return showWork(desk);
  const chosen = () => chosenOf(desk);
  const more = wholePage && !desk.isAll && !desk.params.q && (desk.page.next || desk.page.previous);
  put(selection,
    el("strong", null, `${desk.isAll ? "All " : ""}${many(desk.selected.size, "item")} selected`),
    more && button(`Select all${desk.total() ? ` ${count(desk.total())}` : ""} that match`, () => selectMatching(desk), "quiet"),
    may("write") && button("Approve", () => approve(desk), "primary"),
    may("write") && button("Reject", () => reject(desk)),
    may("write") && button("Tag", () => askTag(desk, chosen())),
    button("Download", () => download(desk, chosen())),
    may("delete") && button("Delete", () => askDelete(desk, chosen()), "quiet danger-text"),
    button("Clear", desk.clear, "quiet"));
}

async function download(desk, items) {
  const { offerDownload, saveAs } = await import("./downloads.js");
  if (desk.isAll) return offerDownload(desk);
  try {
    const whole = items.every(({ data }) => data) ? items : await readWhole(desk, items);
    saveAs(new Blob([toJson(whole)], { type: "application/json" }), "items.json");
  } catch (error) {
    if (error.name !== "AbortError") say(`Nothing is downloaded. ${sentenceOf(error)}`, "bad");
  }
}

/** Return the items with their data: those of other pages were selected without it. */
function readWhole(desk, items) {
  return longRun(desk, "Reading", items.length, async (signal, progress) => {
    const whole = [];
    for (let done = 0; done < items.length; done += AT_ONCE) {
      progress(done);
      whole.push(...await Promise.all(items.slice(done, done + AT_ONCE).map(({ output_id }) => get(["outputs", desk.view.group, output_id], {}, signal).catch((error) => {
        if (error.status !== 404) throw error;
      }))));
    }
    return whole.filter(Boolean);
  });
}

function showWork(desk) {
  const { text, done, total, stop } = desk.work;
  const { selection } = desk.parts;
  put(selection, el("strong", null, text),
    el("progress", total ? { max: total, value: done, "aria-label": text } : { "aria-label": text }),
    el("span", null, total ? `${count(done)} of ${count(total)}` : count(done)),
    button("Stop", () => stop.abort()));
}

/** Do something long with progress and a stop; `run` gets the signal and a function that says how much is done. */
async function longRun(desk, text, total, run) {
  const stop = new AbortController();
  desk.stay.addEventListener("abort", () => stop.abort());
  desk.work = { text, done: 0, total, stop };
  showSelection(desk);
  try {
    return await run(stop.signal, (done) => {
      desk.work.done = done;
      showWork(desk);
    });
  } finally {
    desk.work = null;
    showSelection(desk);
  }
}

/** Select every item that the filters match, on all pages: read what is needed to judge them. */
async function selectMatching(desk) {
  const { matched, filters: all } = desk;
  const { until, ...filters } = all;
  const found = new Map();
  let isWhole = false;
  try {
    await longRun(desk, "Selecting", desk.total(), async (signal, progress) => {
      let cursor = "0";
      while (!signal.aborted && found.size < MOST) {
        const { items, metadata } = await get(["outputs", desk.view.group], { ...filters, limit: PAGE, cursor, fields: "output_id,is_approved,tags.rejected" }, signal);
        for (const item of items) if (!until || item.id < Number(until)) found.set(item.output_id, item);
        progress(found.size);
        cursor = metadata.next_cursor;
        if (cursor === null || (until && cursor >= Number(until))) {
          isWhole = true;
          break;
        }
      }
    });
  } catch (error) {
    if (error.name !== "AbortError") return say(`Not everything is selected. ${error.sentence ?? ""}`, "bad");
  }
  if (desk.matched !== matched) return; // the items of other filters are shown by now
  const newest = [...found.values()].reduce((most, { id }) => Math.max(most, id), 0);
  Object.assign(desk, { selected: found, isAll: isWhole, all: { filters: all, newest } });
  showSelection(desk);
  if (!desk.isAll) say(`Selecting stopped at ${many(found.size, "item")}.`);
  announce(`${many(found.size, "item")} selected`);
}

/** Return what is selected, as it is on the screen where it is there, else the current row. */
function chosenOf(desk) {
  const onScreen = new Map(desk.items.map((item) => [item.output_id, item]));
  if (desk.selected.size) return [...desk.selected].map(([id, item]) => onScreen.get(id) ?? item);
  const current = visible(desk).find(({ output_id }) => output_id === desk.current);
  return current && !desk.pending.has(current.output_id) ? [current] : [];
}

/** Judge what is selected, with progress; or the current row, and go on to the next one. */
async function judgeAll(desk, items, to) {
  if (!desk.selected.size) {
    move(desk, 1);
    return judge(desk, changesOf(items, to));
  }
  const text = to.is_approved ? "Approving" : "Rejecting";
  const { left } = await longRun(desk, text, items.length, (signal, progress) => judge(desk, changesOf(items, to), { signal, progress }));
  deselect(desk, items, left.map(({ item }) => item));
}

/** Deselect items, except those that a long run has left; what was selected meanwhile stays. */
function deselect(desk, items, left = []) {
  const kept = new Set(left.map(({ output_id }) => output_id));
  for (const { output_id } of items) if (!kept.has(output_id)) desk.selected.delete(output_id);
  desk.isAll = false;
  showSelection(desk);
}

function approve(desk) {
  const items = chosenOf(desk);
  if (may("write") && items.length && !desk.work) return judgeAll(desk, items, APPROVED);
}

function reject(desk) {
  const items = chosenOf(desk);
  if (may("write") && items.length && !desk.work) askReason(items.length, (reason) => judgeAll(desk, items, rejectedFor(reason)));
}

function askTag(desk, items) {
  askInDialog("small", `Tag ${many(items.length, "item")}`, [
    field("Tag", el("input", { id: "tag-name", name: "name", required: true, maxlength: 200, autocomplete: "off", autofocus: true })),
    field("Value", el("input", { id: "tag-value", name: "value", maxlength: 1000, autocomplete: "off" })),
    el("p", { class: "hint" }, "Without a value, the tag is removed."),
  ], [closeButton("Cancel"), el("button", { class: "primary" }, "Tag")], (data) => {
    const name = data.get("name").trim();
    if (!name) return false;
    void tag(desk, items, { [name]: data.get("value").trim() || null });
  });
}

async function tag(desk, items, tags) {
  let left = items;
  const failed = { not_found: 0, too_large: 0 };
  try {
    await longRun(desk, "Tagging", items.length, async (signal, progress) => {
      while (left.length && !signal.aborted) {
        const part = left.slice(0, Number(PAGE));
        const { items: results } = await patch(["outputs", desk.view.group], part.map(({ output_id }) => ({ output_id, tags })));
        for (const { result } of results) if (result in failed) failed[result] += 1;
        left = left.slice(part.length);
        progress(items.length - left.length);
      }
    });
    const { not_found: gone, too_large: full } = failed;
    say([
      `${many(items.length - left.length - gone - full, "item")} tagged${left.length ? `, ${count(left.length)} left as before` : ""}.`,
      gone && `${many(gone, "item is", "items are")} deleted.`,
      full && `The tag does not fit into ${many(full, "item")}, left as before.`,
    ].filter(Boolean).join(" "), gone || full ? "bad" : "");
  } catch (error) {
    say(`${many(left.length, "item is", "items are")} not tagged and still selected. ${sentenceOf(error)}`, "bad");
  }
  deselect(desk, items, left);
  desk.reload();
}

async function askDelete(desk, items) {
  const { askToDelete } = await loaded(import("./deleting.js"));
  await askToDelete(desk.view, many(items.length, "item"), `Delete ${many(items.length, "item")}?`, (isKept) => void deleteAll(desk, items, isKept), String(items.length));
}

/** Delete everything that the filters match in few requests where the API has these filters, else item by item. */
async function deleteAll(desk, items, isKept) {
  const { removeItem, sayManyDeleted } = await loaded(import("./deleting.js"));
  const given = Object.entries(desk.all.filters ?? {}).filter(([, value]) => value);
  const byFilter = desk.isAll && given.every(([name]) => DELETABLE.includes(name) && !MOVING.includes(name));
  const newest = String(desk.all.newest); // what comes or changes after it was selected stays
  let left = items;
  let deleted = 0, changed = 0;
  try {
    await longRun(desk, "Deleting", items.length, async (signal, progress) => {
      for (let more = byFilter; more && !signal.aborted;) {
        const part = await remove(["outputs", desk.view.group], { ...Object.fromEntries(given), max_id: newest });
        ({ more } = part);
        deleted += part.deleted;
        progress(Math.min(deleted, items.length));
        if (!more) left = [];
      }
      while (!byFilter && left.length && !signal.aborted) {
        const part = left.slice(0, AT_ONCE);
        await Promise.all(part.map((item) => removeItem(desk, item).then(() => (deleted += 1), (error) => {
          if (![404, 412].includes(error.status)) throw error;
          if (error.status === 412) changed += 1;
        })));
        left = left.slice(part.length);
        progress(items.length - left.length);
      }
    });
    const kept = changed ? ` ${many(changed, "item was", "items were")} changed meanwhile and kept.` : "";
    sayManyDeleted(desk, `${left.length ? "Deleting stopped." : `${many(deleted, "item")} deleted.`}${kept}`, changed ? "bad" : "", isKept && deleted);
  } catch (error) {
    say(`Not everything is deleted. ${sentenceOf(error)}`, "bad");
  }
  deselect(desk, items, left);
  desk.reload();
}

const HELP = [
  ["j / k", "Next row, row before, also on the next page or the page before"], ["Enter", "Open the row"], ["a", "Approve the row or what is selected, and go on"],
  ["x", "Reject the row or what is selected, and go on"], ["z", "Undo the last approval or rejection, then the one before"], ["s", "Select the row"],
  ["n / p", "Next page, page before"], ["/", "Find on this page"], ["Esc", "Close"], ["?", "This help"],
];

const MOVES = ["j", "k"];
const ON_ROWS = [...MOVES, "a", "x", "s"];
const areOn = () => localStorage.getItem("keys") !== "off"; // one may speak to a computer, or hit keys by accident

/** Listen to the keys until the signal `stay` ends. */
export function listenToKeys(desk, stay) {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.altKey || event.metaKey || event.defaultPrevented) return;
    if (event.target.closest("input:not([type=checkbox]), textarea, select, [contenteditable]") || !areOn()) return;
    if (event.repeat && !MOVES.includes(event.key)) return; // a key that is held decides nothing
    const open = [...document.querySelectorAll("dialog[open]")].at(-1);
    const action = open === undefined ? inTable(desk)[event.key] : open === desk.parts.dialog && inDialog(desk)[event.key];
    if (!action || (!open && !desk.loaded && ON_ROWS.includes(event.key))) return; // the rows of another page are coming
    event.preventDefault();
    action();
  }, { signal: stay });
}

const inTable = (desk) => ({
  j: () => move(desk, 1, true),
  k: () => move(desk, -1, true),
  a: () => approve(desk),
  x: () => reject(desk),
  z: () => undo(desk),
  s: () => visible(desk).some(({ output_id }) => output_id === desk.current) && desk.select(desk.current, !desk.selected.has(desk.current)),
  n: () => desk.turn("next"),
  p: () => desk.turn("previous"),
  "/": () => desk.parts.search.focus(),
  "?": showHelp,
});

const inDialog = (desk) => ({
  j: () => moveItem(desk, 1, true),
  k: () => moveItem(desk, -1, true),
  a: () => desk.parts.dialog.querySelector("#judge-a")?.click(),
  x: () => desk.parts.dialog.querySelector("#judge-x")?.click(),
  z: () => undo(desk),
});

export function showHelp() {
  const on = el("input", { type: "checkbox", id: "keys-on", checked: areOn(), onchange: () => localStorage.setItem("keys", on.checked ? "on" : "off") });
  askInDialog("small", "Keys", [
    el("dl", { class: "facts keys" }, HELP.map(([keys, what]) => el("div", null, el("dt", null, el("kbd", null, keys)), el("dd", null, what)))),
    checkbox("Use these keys on this computer", on),
  ]);
}
