// Approves and rejects items. Each carries the id that was looked at, so nobody approves what they have not seen.

import { Failure, get, patch } from "./api.js";
import { say } from "./dialogs.js";
import { many, shorten, when } from "./format.js";

const BATCH = 1000; // the most records of one body

/** Set `is_approved` of items; update them in place and say what became of them. Returns how many were set. */
export async function judge(desk, items, approved) {
  for (const { output_id } of items) desk.pending.add(output_id);
  try {
    const results = items.length === 1 ? [await judgeOne(desk, items[0], approved)] : await judgeMany(desk, items, approved);
    const byId = new Map(items.map((item) => [item.output_id, item]));
    const set = results.filter(({ result }) => result === "updated" || result === "unchanged");
    for (const { output_id, id } of set) {
      desk.own.add(id);
      desk.replace(Object.assign(byId.get(output_id), { id, is_approved: approved }));
    }
    const conflicts = results.filter(({ result }) => result === "conflict").map(({ output_id }) => output_id);
    const gone = results.filter(({ result }) => result === "not_found").length;
    const newer = await Promise.all(conflicts.map((id) => again(desk, id)));
    report(set.length, approved, newer.filter(Boolean), gone);
    if (set.length) desk.counts();
    return set.length;
  } catch (error) {
    if (!(error instanceof Failure)) throw error;
    if (error.status === 401) return dispatchEvent(new HashChangeEvent("hashchange"));
    say(error.sentence, "bad");
    return 0;
  } finally {
    for (const { output_id } of items) desk.pending.delete(output_id);
  }
}

async function judgeOne(desk, { output_id, id }, approved) {
  try {
    return await patch(["outputs", desk.view.group, output_id], { is_approved: approved }, { "If-Match": `"${id}"` });
  } catch (error) {
    const result = { 412: "conflict", 404: "not_found" }[error.status];
    if (!result) throw error;
    return { output_id, result };
  }
}

async function judgeMany(desk, items, approved) {
  const results = [];
  for (let from = 0; from < items.length; from += BATCH) {
    const part = items.slice(from, from + BATCH);
    const done = await patch(["outputs", desk.view.group], part.map(({ output_id, id }) => ({ output_id, is_approved: approved, if_id: id })));
    // In the order sent; a record that was not found has no identity of its own.
    results.push(...done.items.map((item, i) => ({ ...item, output_id: part[i].output_id })));
  }
  return results;
}

/** Read an item that somebody else changed, and show it as it is now. */
async function again(desk, outputId) {
  try {
    const item = await get(["outputs", desk.view.group, outputId]);
    desk.replace(item);
    return item;
  } catch (error) {
    if (error.status !== 404) throw error;
    return null;
  }
}

function report(set, approved, newer, gone) {
  const parts = [];
  if (set) parts.push(`${many(set, "item")} ${approved ? "approved" : "rejected"}.`);
  if (newer.length) {
    const [{ root_job_id, update_date }] = newer;
    const who = `job ${shorten(root_job_id, 60)}, last change ${when(update_date)} UTC`;
    parts.push(`${many(newer.length, "item was", "items were")} changed by somebody else meanwhile (${who}) and not ${approved ? "approved" : "rejected"}. The new version is shown: look again.`);
  }
  if (gone) parts.push(`${many(gone, "item is", "items are")} deleted.`);
  say(parts.join(" "), newer.length || gone ? "bad" : "good");
}
