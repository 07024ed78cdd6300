// Judges items: approved, rejected with a reason, or neither. Each change carries the id that was looked at, so that
// nobody approves what they have not seen. What could not be saved is kept, and offered again until it is.

import { Failure, get, patch, sentenceOf } from "../base/api.js";
import { askInDialog, closeButton, field, say } from "../base/dialogs.js";
import { button, el, front, put } from "../base/dom.js";
import { many, shorten, when } from "../base/format.js";

const BATCH = 1000; // the most records of one body
const AT_ONCE = 10; // items being read that changed meanwhile
const UNDOS = 50; // decisions that can be undone
const REASON = "reason"; // the reason given last, for this tab
const REASONS = ["Wrong data", "Incomplete", "Duplicate", "Not an item"];

export const APPROVED = { is_approved: true, rejected: null };
export const rejectedFor = (reason) => ({ is_approved: false, rejected: reason });

/** Return why an item is rejected, or null. */
export const reasonOf = (item) => (item.tags?.rejected == null ? null : String(item.tags.rejected));

const stateOf = (item) => ({ is_approved: item.is_approved, rejected: item.tags?.rejected ?? null });
const wordOf = (to) => (to.is_approved ? "approved" : to.rejected !== null ? "rejected" : "reset");
const isSame = (a, b) => a.is_approved === b.is_approved && a.rejected === b.rejected;

/** Return the items with what they are to become. */
export const changesOf = (items, to) => items.map((item) => ({ item, to }));

let running = 0; // decisions on their way

/**
 * Make the changes `[{item, to}]`; update the items of `desk` in place and say what became of them, with an undo.
 *
 * `work` is `{signal, progress}` for a long run: the signal stops it between two requests. `isUndo` is not undone.
 */
export async function judge(desk, changes, work = {}) {
  const decision = {};
  if (!work.isUndo) desk.undos = [...desk.undos.slice(1 - UNDOS), decision];
  running += 1;
  try {
    return await (decision.judging = attempt(desk, changes, work, decision));
  } finally {
    running -= 1;
  }
}

let undoing = Promise.resolve();

/** Undo a decision, the last one if none is given; one after the other, and each when it is known what it changed. */
export function undo(desk, decision = desk.undos.at(-1)) {
  if (!decision) return say("There is nothing to undo in this view.");
  desk.undos = desk.undos.filter((one) => one !== decision);
  undoing = undoing.catch(() => {}).then(() => takeBack(desk, decision));
  return undoing;
}

async function takeBack(desk, decision) {
  const { done, left, failure } = await decision.judging;
  dropUnsaved(left);
  const now = (item) => { // as this page changed it since; a change by somebody else is a conflict
    let { id } = item;
    while (desk.ids.has(id)) id = desk.ids.get(id);
    return { ...item, id };
  };
  const changed = done.filter(({ was, to }) => !isSame(was, to));
  if (changed.length) await judge(desk, changed.map(({ item, was }) => ({ item: now(item), to: was })), { isUndo: true });
  else if (failure) say(`${many(left.length, "change is", "changes are")} dropped.`);
}

async function attempt(desk, changes, work, decision) {
  for (const { item } of changes) desk.pending.add(item.output_id);
  const done = [];
  let conflicts = [], gone = 0, full = 0, left = changes, failure = null;
  try {
    while (left.length && !work.signal?.aborted) {
      const part = left.slice(0, BATCH);
      const { items } = await patch(["outputs", desk.view.group], part.map(toRecord));
      items.forEach(({ id, result }, i) => {
        const { item, to } = part[i];
        if (result === "conflict") conflicts.push({ item, to });
        else if (result === "not_found") gone += 1;
        else if (result === "too_large") full += 1;
        else done.push({ item: apply(desk, item, id, to), was: stateOf(item), to });
      });
      left = left.slice(BATCH);
      work.progress?.(changes.length - left.length);
    }
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    failure = error;
  } finally {
    for (const { item } of changes) desk.pending.delete(item.output_id);
  }
  dropUnsaved(done); // of two decisions about an item the later one counts
  if (failure) keep(desk, left, failure, decision);
  const newer = await showNewer(desk, conflicts.map(({ item }) => item.output_id));
  // One that is as it should be: the response to an earlier attempt was lost, or somebody else decided the same.
  const same = ({ item, to }) => newer.find((one) => one.output_id === item.output_id && isSame(stateOf(one), to));
  for (const change of conflicts.filter(same)) done.push({ item: same(change), was: change.to, to: change.to });
  conflicts = conflicts.filter((change) => !same(change));
  const others = newer.filter((one) => conflicts.some(({ item }) => item.output_id === one.output_id));
  const isDone = !work.isUndo && done.some(({ was, to }) => !isSame(was, to));
  if (!isDone && !failure) desk.undos = desk.undos.filter((one) => one !== decision);
  report(desk, done, { newer: others, conflicts, gone, full, stopped: failure ? 0 : left.length }, isDone && ["Undo", () => undo(desk, decision)]);
  if (done.length) desk.counts();
  return { done, left, failure };
}

function toRecord({ item, to }) {
  const tags = to.rejected !== null || item.tags?.rejected != null ? { tags: { rejected: to.rejected } } : {};
  return { output_id: item.output_id, is_approved: to.is_approved, if_id: item.id, ...tags };
}

/** Return the item as it is now, and show it so where it is on the screen. */
function apply(desk, item, id, to) {
  const shown = desk.items.find(({ output_id }) => output_id === item.output_id) ?? item; // one of another page has no data
  const { rejected: _, ...tags } = shown.tags ?? {};
  desk.own.add(id);
  if (id !== item.id) desk.ids.set(item.id, id);
  const now = { ...shown, id, is_approved: to.is_approved, tags: to.rejected === null ? tags : { ...tags, rejected: to.rejected } };
  desk.replace(now);
  return now;
}

/** Read items that changed meanwhile, show them as they are now where they are on the screen, and return them. */
export async function showNewer(desk, outputIds) {
  const newer = [];
  const read = async (id) => {
    const { data, files, ...rest } = await get(["outputs", desk.view.group, id]);
    const isShown = desk.parts.dialog.dataset.item === id || desk.items.some(({ output_id }) => output_id === id);
    if (isShown) desk.replace({ ...rest, data, files });
    newer.push(rest);
  };
  for (let from = 0; from < Math.min(outputIds.length, BATCH); from += AT_ONCE) {
    await Promise.all(outputIds.slice(from, from + AT_ONCE).map((id) => read(id).catch(() => {})));
  }
  return newer;
}

function report(desk, done, { newer, conflicts, gone, full, stopped }, action) {
  const items = (some, one, more) => (some.length === 1 ? `Item ${desk.listed.get(some[0].item.output_id) ?? some[0].item.id} ${one}` : `${many(some.length, "item")} ${more}`);
  const parts = [];
  for (const word of ["approved", "rejected", "reset"]) {
    const same = done.filter(({ to }) => wordOf(to) === word);
    const changed = same.filter(({ was, to }) => !isSame(was, to));
    if (changed.length) parts.push(word === "reset" ? `${items(changed, "is", "are")} as before.` : `${many(changed.length, "item")} ${word}.`);
    if (same.length > changed.length) parts.push(`${many(same.length - changed.length, "item was", "items were")} ${word} already.`);
  }
  if (conflicts.length) {
    const who = newer.length ? ` (job ${shorten(newer[0].root_job_id, 60)}, last change ${when(newer[0].update_date)})` : "";
    parts.push(`${items(conflicts, "was", "were")} changed by somebody else meanwhile${who} and left as ${conflicts.length === 1 ? "it is" : "they are"}.${newer.length ? " The new version is shown: look again." : ""}`);
  }
  if (gone) parts.push(`${many(gone, "item is", "items are")} deleted.`);
  if (full) parts.push(`The reason does not fit into the tags of ${many(full, "item")}, left as before.`);
  if (stopped) parts.push(`Stopped: ${many(stopped, "item is", "items are")} left as before.`);
  if (parts.length) say(parts.join(" "), conflicts.length || gone || full ? "bad" : "good", action);
}

// What is not saved, whatever the view: `{desk, changes, failure}` each.
let unsaved = [];

/** The forms of settings that were changed and left, or are being changed: group -> `{section, isChanged()}`. */
export const drafts = new Map();

const notSaved = () => `${many(unsaved.reduce((sum, { changes }) => sum + changes.length, 0), "change is", "changes are")} not saved.`;

/** Return whether there is something that closing the page would lose. */
export const isUnsaved = () => running > 0 || unsaved.length > 0 || [...drafts.values()].some((draft) => draft.isChanged());

export function forgetUnsaved() {
  unsaved = [];
  showUnsaved();
}

function keep(desk, changes, failure, decision) {
  dropUnsaved(changes);
  unsaved.push({ desk, changes, failure, decision });
  showUnsaved();
  if (front() !== document.body) say(`${notSaved()} ${sentenceOf(failure)}`, "bad"); // the bar is behind the dialog
}

/** Forget what waits for the items of these changes. */
function dropUnsaved(changes) {
  if (!unsaved.length) return;
  const newer = new Set(changes.map(({ item }) => item.output_id));
  for (const waiting of unsaved) waiting.changes = waiting.changes.filter(({ item }) => !newer.has(item.output_id));
  unsaved = unsaved.filter((waiting) => waiting.changes.length);
  showUnsaved();
}

/** Save what waits, one after the other; after a failure the rest goes on waiting. */
export async function saveAgain() {
  while (unsaved.length) {
    const { desk, changes, decision } = unsaved.shift();
    showUnsaved();
    desk.undos = desk.undos.filter((one) => one !== decision); // it is made anew
    if ((await judge(desk, changes)).failure) return;
  }
}

function showUnsaved() {
  const bar = document.getElementById("unsaved");
  bar.hidden = !unsaved.length;
  if (!unsaved.length) return put(bar);
  put(bar,
    el("span", null, el("strong", null, notSaved(), " "), sentenceOf(unsaved.at(-1).failure)),
    el("span", { class: "actions" },
      button("Save again", saveAgain, "primary"),
      button("Discard", forgetUnsaved, "quiet")));
}

/** Ask why items are rejected; `work` gets the reason when the dialog is closed. The reason given last is there already. */
export function askReason(count, work) {
  let reason = "";
  const input = el("input", {
    id: "reason", name: "reason", list: "reasons", required: true, maxlength: 200, autocomplete: "off", autofocus: true, value: sessionStorage.getItem(REASON) ?? "",
  });
  const dialog = askInDialog("small", `Reject ${many(count, "item")}`, [
    field("Why", input, el("datalist", { id: "reasons" }, REASONS.map((value) => el("option", { value })))),
    el("p", { class: "hint" }, "The reason is kept with the item, as its tag rejected."),
  ], [closeButton("Cancel"), el("button", { class: "danger" }, "Reject")], (data) => {
    reason = data.get("reason").trim();
    if (!reason) return false;
    sessionStorage.setItem(REASON, reason);
  });
  dialog.addEventListener("close", () => reason && work(reason)); // the focus is back in the row, and can go on
  input.select();
}
