// Writes a review for a job.

import { post } from "./api.js";
import { askInDialog, say } from "./dialogs.js";
import { chip, el } from "./dom.js";
import { shorten } from "./format.js";

const STATUSES = ["approved", "rejected", "needs_changes"];

/** Return a review's status with a colour for what it means. */
export function statusChip(status) {
  const kind = /^(approved|accepted|ok|passed)$/i.test(status) ? "good" : /reject|fail|denied/i.test(status) ? "bad" : "open";
  return chip(status.replaceAll("_", " "), kind);
}

/** Ask for status and comment, store them as the job's latest review, then call `written`. */
export function writeReview(group, jobId, written) {
  const problem = el("p", { class: "problem", role: "alert" });
  const field = (name, title, control) => el("div", { class: "field" }, el("label", { for: `review-${name}` }, title), control);
  const dialog = askInDialog("small", `Review ${shorten(jobId, 60)}`, [
    field("status", "Status", el("input", { id: "review-status", name: "status", list: "review-statuses", required: true, maxlength: 64, value: "approved", autofocus: true })),
    el("datalist", { id: "review-statuses" }, STATUSES.map((value) => el("option", { value }))),
    field("comment", "Comment", el("textarea", { id: "review-comment", name: "comment", rows: 4 })),
    problem,
  ], [
    el("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Cancel"),
    el("button", { class: "primary" }, "Save review"),
  ], async (data) => {
    try {
      await post(["reviews", group], [{ job_id: jobId, status: data.get("status").trim(), comment: data.get("comment").trim() }]);
    } catch (error) {
      problem.textContent = error.sentence ?? "Something went wrong.";
      return false;
    }
    say(`The review of ${shorten(jobId, 60)} is saved`);
    written();
  });
}
