// Deleting one item or many: what becomes of them, and the way back.

import { get, post, remove, sentenceOf } from "../base/api.js";
import { confirm, say } from "../base/dialogs.js";
import { many } from "../base/format.js";
import { go } from "../base/place.js";

/** Ask before items are deleted, and say whether they can be restored; `typed` as for `confirm`. */
export async function askToDelete(view, what, question, work, typed = "") {
  const days = await get(["groups", view.group]).then(({ history_days }) => history_days, () => null);
  const back = days === null ? "" : days ? ` Under Deleted there is a way back, while the group keeps its history (${many(days, "day")}).` : " This cannot be undone: the group keeps no history.";
  confirm(question, `${what}: data and files go, and readers of the group learn of it.${back}`, "Delete", () => work(Boolean(days)), typed);
}

/** Delete an item as it was looked at: one that changed since stays. */
export const removeItem = (desk, { output_id, id }) => remove(["outputs", desk.view.group, output_id], {}, { headers: { "If-Match": `"${id}"` } });

/** Say that an item is deleted, with a way back where its last version is kept. */
export function sayDeleted(desk, { output_id }, isKept) {
  say("The item is deleted", "", isKept && ["Restore", async () => {
    try {
      await post(["outputs", desk.view.group, output_id, "restore"]);
      say("The item is restored");
      await desk.reload();
    } catch (error) {
      say(sentenceOf(error), "bad");
    }
  }]);
}

/** Say what became of many items that were to be deleted; the deleted ones can be looked at. */
export function sayManyDeleted(desk, text, kind, isKept) {
  say(text, kind, isKept && ["Show them", () => go([...desk.view.path, "deleted"])]);
}
