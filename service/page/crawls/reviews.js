// Reviews of jobs: how one looks, and how one is written.

import { post } from "../base/api.js";
import { askInDialog, checkbox, closeButton, field, say } from "../base/dialogs.js";
import { chip, el } from "../base/dom.js";
import { shorten } from "../base/format.js";

const STATUSES = { approved: "Approved", needs_changes: "Needs changes", rejected: "Rejected" };
const OTHER = "other";

/** Return whether a review's status says that a crawl is good. */
export const isGood = (status) => /^(approved|accepted|ok|passed)$/i.test(status);

/** Return a review's status with a colour for what it means. */
export function statusChip(status) {
  const kind = isGood(status) ? "good" : /reject|fail|denied/i.test(status) ? "bad" : "open";
  return chip(status.replaceAll("_", " "), kind);
}

/** Ask for status and comment, store them as the job's latest review, then call `written`. */
export function writeReview(group, jobId, written) {
  const other = el("input", { id: "review-other", name: "other", maxlength: 64, "aria-label": "Other status", disabled: true });
  const radio = (value, text, ...more) => checkbox(text, el("input", {
    type: "radio", id: `review-${value}`, name: "status", value, required: true, onchange: () => {
      other.disabled = value !== OTHER;
      other.required = value === OTHER;
      if (value === OTHER) other.focus();
    },
  }), ...more);
  askInDialog("small", `Review ${shorten(jobId, 60)}`, [
    el("fieldset", null, el("legend", null, "Status"), Object.entries(STATUSES).map(([value, text]) => radio(value, text)), radio(OTHER, "Other", other)),
    field("Comment", el("textarea", { id: "review-comment", name: "comment", rows: 4 })),
  ], [closeButton("Cancel"), el("button", { class: "primary" }, "Save review")], async (data) => {
    const status = data.get("status") === OTHER ? data.get("other").trim() : data.get("status");
    await post(["reviews", group], [{ job_id: jobId, status, comment: data.get("comment").trim() }]);
    say(`The review of ${shorten(jobId, 60)} is saved`);
    written();
  });
}
