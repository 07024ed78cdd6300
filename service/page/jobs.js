// The jobs of a group, newest first.

import { get } from "./api.js";
import { announce, cell, el, faint, put, row, rowHead, table, time } from "./dom.js";
import { count, many, shorten, since } from "./format.js";
import { link } from "./place.js";
import { statusChip, writeReview } from "./review_dialog.js";
import { may } from "./session.js";

const HEAD = ["Job", ["Items"], ["Created"], ["Changed"], ["Unchanged"], "First write", "Last write", "Latest review", ""];

export async function showJobs(view, _params, signal, stay) {
  if (stay) put(view.tab, el("div", { class: "panel loading", "aria-hidden": "true" }));
  const jobs = await get(["groups", view.group, "jobs"], {}, signal);
  const again = () => showJobs(view, _params, undefined, null);
  put(view.tab, jobs.length
    ? el("section", { class: "panel" }, el("div", { class: "scroll", role: "region", tabindex: 0, "aria-label": "Jobs" }, table("jobs", HEAD, jobs.map((job) => line(view, job, again)))))
    : el("section", { class: "panel empty" }, el("h2", null, "No jobs"), el("p", null, "A job appears here with its first output.")));
  announce(many(jobs.length, "job"));
}

function line(view, job, again) {
  const number = (name, value) => cell(name, "number", count(value));
  const name = shorten(job.job_id, 80);
  return row(null,
    rowHead(null, el("a", { href: link(view.path, { job_id: job.job_id }), title: "Items of this job" }, name)),
    number("Items", job.items), number("Created", job.created), number("Changed", job.changed), number("Unchanged", job.unchanged),
    cell("First write", "", job.first_write ? time(job.first_write) : faint("–")),
    cell("Last write", "", job.last_write ? time(job.last_write, since(job.last_write)) : faint("–")),
    cell("Latest review", "review", job.review
      ? el("span", null, statusChip(job.review.status), " ", el("span", { class: "text" }, shorten(job.review.comment, 120)))
      : faint("none")),
    cell("", "tools-cell", el("span", { class: "actions" },
      el("a", { href: link([...view.path, "fields"], { job_id: job.job_id }), "aria-label": `Fields of ${name}` }, "Fields"),
      may("write") && el("button", { type: "button", class: "quiet small", "aria-label": `Review ${name}`, onclick: () => writeReview(view.group, job.job_id, again) }, "Review"))));
}
