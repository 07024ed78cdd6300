// What happened in a group: items by day, and the latest review of each job.

import { get } from "./api.js";
import { dayChart } from "./chart.js";
import { el, put, time } from "./dom.js";
import { shorten, when } from "./format.js";
import { link } from "./place.js";
import { statusChip } from "./review_dialog.js";

export async function showActivity(view, _params, signal, stay) {
  if (!stay) return;
  put(view.tab, el("div", { class: "panel loading", "aria-hidden": "true" }));
  const [stats, reviews] = await Promise.all([
    get(["groups", view.group, "stats"], {}, signal), get(["reviews", view.group], {}, signal)]);
  put(view.tab, el("div", { class: "side-by-side" },
    el("section", { class: "panel" }, el("h2", null, "Items by day"),
      dayChart(stats.days, (date) => link(view.path, { day: date }))),
    el("section", { class: "panel" }, el("h2", null, "Latest reviews"), reviews.length
      ? el("ul", { class: "reviews" }, reviews.map((review) => entry(view, review)))
      : el("p", { class: "none-found" }, "No job of this group has been reviewed."))));
}

function entry(view, { job_id, status, comment, review_date }) {
  return el("li", null,
    el("div", null, statusChip(status), " ", el("a", { href: link(view.path, { job_id }), title: "Items of this job" }, shorten(job_id, 60))),
    comment && el("p", { class: "text" }, shorten(comment, 600)),
    el("p", { class: "faint" }, time(review_date, `${when(review_date)} UTC`)));
}
