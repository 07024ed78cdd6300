// The jobs of a group: what each crawl did, in numbers that lead to the items, and how it was judged.

import { get } from "../base/api.js";
import { shares } from "../base/chart.js";
import { announce, button, cell, chip, el, fact, faint, loading, put, row, rowHead, scrolling, table, time } from "../base/dom.js";
import { count, duration, many, percent, shorten, since } from "../base/format.js";
import { link } from "../base/place.js";
import { may } from "../base/session.js";
import { changesSection } from "./changes.js";
import { statusChip, writeReview } from "./reviews.js";

const HEAD = ["Job", "What it did", ["Items now"], "Last write", "Review", "Actions"];
export const DROP = 0.1; // a fill rate that falls by more than this is marked
/** What a crawl did with items, as the API's `change` names it. */
export const CHANGES = [["created", "Created"], ["changed", "Changed"], ["unchanged", "Unchanged"], ["missing", "Missing"]];

/** Return the jobs of a group, newest first. */
export const readJobs = (group, signal) => get(["groups", group, "jobs"], {}, signal);

export async function show(view, params, signal, stay) {
  if (stay) put(view.tab, loading());
  const again = () => show(view, params, undefined, null);
  if (view.jobId !== undefined) return showJob(view, params, signal, again);
  const jobs = await readJobs(view.group, signal);
  const series = new Set(jobs.map((job) => job.series ?? ""));
  put(view.tab, jobs.length
    ? el("section", { class: "panel" },
      el("p", { class: "legend" }, CHANGES.map(([name, title]) => el("span", { class: `key ${name}` }, title))),
      scrolling("Jobs", table("jobs", HEAD, jobs.map((job) => line(view, job, series.size > 1, again)))))
    : el("section", { class: "panel empty" }, el("h2", null, "No jobs"), el("p", null, "A job appears here with its first output.")));
  announce(many(jobs.length, "job"));
}

const pathOf = (view, job) => [...view.path, "jobs", job.job_id];

function line(view, job, hasSeries, again) {
  const name = shorten(job.job_id, 80);
  return row({ class: job.verdict === "failed" ? "dropped" : false },
    rowHead(null, el("a", { href: link(pathOf(view, job)) }, name), " ", verdictChip(job), hasSeries && job.series && el("div", { class: "faint series" }, `Series ${shorten(job.series, 64)}`)),
    cell("What it did", "did-cell", did(view, job)),
    cell("Items now", "number", job.items
      ? el("a", { href: link(view.path, { job_id: job.job_id }), "aria-label": `Items of ${name}`, title: "Items of this job" }, count(job.items))
      : el("span", { class: "faint", title: TAKEN_OVER }, "0")),
    cell("Last write", "", job.last_write ? time(job.last_write, since(job.last_write)) : faint("–")),
    cell("Review", "review", job.review
      ? el("span", null, statusChip(job.review.status), " ", el("span", { class: "text" }, shorten(job.review.comment, 80)), " ", whoReviewed(job.review))
      : faint("none")),
    cell("Actions", "tools-cell", el("span", { class: "actions" },
      el("a", { href: link([...view.path, "fields"], { job_id: job.job_id }), "aria-label": `Fields of ${name}` }, "Fields"),
      reviewButton(view, job, again))));
}

const TAKEN_OVER = "Later crawls saw its items again: an item belongs to the newest job that saw it.";

function reviewButton(view, job, again) {
  return may("write") && button("Review", () => writeReview(view.group, job.job_id, again), "quiet small", { "aria-label": `Review ${shorten(job.job_id, 80)}` });
}

/** Return how a job was judged by the rules of its group, else whether it still runs. */
export function verdictChip(job) {
  if (job.verdict === "failed") return chip("failed", "bad");
  if (job.verdict === "passed") return chip("passed", "good");
  if (job.state === "failed") return chip("stopped", "bad");
  return job.state === "running" && isRecent(job.last_write) ? chip("running", "open") : null;
}

// A crawl that was never said to be finished is not running for ever. One that has not written yet has just begun.
const isRecent = (date) => !date || Date.now() - Date.parse(date) < 3_600_000;

/** Return where the items of a number are, or null where no list has them any more. */
function placeOf(view, job, name) {
  if (name === "changed") return link(pathOf(view, job));
  if (name === "missing") return job.deleted ? link([...view.path, "deleted"]) : link(view.path, { job_id: job.job_id, change: name });
  return job.items ? link(view.path, { job_id: job.job_id, change: name }) : null;
}

/** Return a bar and the numbers of what a job did, each with the items behind it. */
function did(view, job) {
  const known = CHANGES.filter(([name]) => Number.isInteger(job[name]));
  const text = known.map(([name, title]) => `${count(job[name])} ${title.toLowerCase()}`).join(", ");
  const one = ([name, title]) => {
    const text = `${count(job[name])} ${title.toLowerCase()}`;
    const to = job[name] ? placeOf(view, job, name) : null;
    return to ? el("a", { href: to }, text) : faint(text);
  };
  return el("div", { class: "did" }, shares(job, known, text), el("span", { class: "numbers" }, known.map(one)),
    !job.items && job.created + job.changed + job.unchanged > 0 && faint("Later crawls saw its items again."));
}

/** Return who wrote a review, and when. */
export const whoReviewed = ({ author, review_date }) => el("span", { class: "faint" }, author ? `${shorten(author, 60)}, ` : "", time(review_date));

// One job

async function showJob(view, params, signal, again) {
  const jobs = await readJobs(view.group, signal);
  const job = jobs.find(({ job_id }) => job_id === view.jobId) ?? (await readJob(view, signal));
  if (!job) {
    return put(view.tab, el("section", { class: "panel empty" }, el("h2", null, "No such job"), el("p", null, "No crawl of this group has this id.")));
  }
  const before = jobs.slice(jobs.indexOf(job) + 1 || jobs.length).find((other) => (other.series ?? null) === (job.series ?? null) && other.state === "finished");
  const took = job.first_write && job.last_write ? Date.parse(job.last_write) - Date.parse(job.first_write) : null;
  put(view.tab,
    el("section", { class: "panel job" },
      el("div", { class: "heading tools" }, el("h2", null, shorten(job.job_id, 120), " ", verdictChip(job)), el("div", { class: "actions" },
        job.items > 0 && el("a", { class: "button", href: link(view.path, { job_id: job.job_id }) }, `Items (${count(job.items)})`),
        el("a", { class: "button", href: link([...view.path, "fields"], { job_id: job.job_id, with: before?.job_id }) }, "Fields"),
        reviewButton(view, job, again))),
      el("div", { class: "padded" }, did(view, job),
        job.problems?.length > 0 && el("div", { class: "problems" }, el("h3", null, many(job.problems.length, "problem")), el("ul", null, job.problems.map((problem) => el("li", null, problemText(view, job, problem))))),
        job.verdict === null && job.state === "finished" && el("p", { class: "faint" }, "No rules are set: nothing judged this crawl. ", el("a", { href: link([...view.path, "settings"]) }, "Set rules")),
        el("dl", { class: "facts" },
          fact("State", job.state, job.finish_date && [" ", time(job.finish_date)]),
          job.series && fact("Series", shorten(job.series, 64)),
          fact("First write", job.first_write ? time(job.first_write) : "none"),
          fact("Last write", job.last_write ? time(job.last_write) : "none"),
          took !== null && fact("Took", duration(took)),
          job.deleted > 0 && fact("Deleted", el("a", { href: link([...view.path, "deleted"]) }, many(job.deleted, "missing item"))),
          before && fact("Crawl before", el("a", { href: link(pathOf(view, before)) }, shorten(before.job_id, 80))),
          fact("Review", job.review ? el("span", null, statusChip(job.review.status), " ", el("span", { class: "text" }, shorten(job.review.comment, 600)), " ", whoReviewed(job.review)) : "none")))),
    drops(view, job, before),
    job.changed > 0 && changesSection(view, job, params));
  announce(`Job ${shorten(job.job_id, 80)}`);
}

/** Return a job that is older than those of the list; undefined where there is none. */
async function readJob(view, signal) {
  try {
    return await get(["groups", view.group, "jobs", view.jobId], {}, signal);
  } catch (error) {
    if (error.status !== 404) throw error;
  }
}

const withoutIt = (view, job, path) => el("a", { href: link(view.path, { job_id: job.job_id, missing: path }) }, "Show the items without it");

/** Return what a rule found, with a way to the items behind it. */
function problemText(view, job, { rule, msg }) {
  const isOfFilling = rule.min_fill !== undefined || rule.max_drop !== undefined;
  return [msg, " ", isOfFilling && withoutIt(view, job, rule.path)];
}

/** Return the fill rates that a job was taken stock of: `{path: rate}`. An object is described by the fields inside it. */
export function fillRates(job) {
  const fields = job?.fields ?? [];
  const above = new Set(fields.flatMap(({ path }) => [...path.matchAll(/\./g)].map(({ index }) => path.slice(0, index))));
  return Object.fromEntries(fields.filter(({ path }) => !above.has(path)).map(({ path, fill_rate }) => [path, fill_rate]));
}

/** Return the fields that are filled less than in the crawl before, with the items that lack them. */
function drops(view, job, before) {
  const now = fillRates(job), then = fillRates(before);
  const lost = Object.keys(then).map((path) => [path, then[path], now[path] ?? 0]).filter(([, a, b]) => a - b > DROP).sort((x, y) => (y[1] - y[2]) - (x[1] - x[2]));
  if (!lost.length) return null;
  return el("section", { class: "panel" }, el("h2", null, "Filled less than in the crawl before"),
    el("ul", { class: "drops" }, lost.slice(0, 50).map(([path, a, b]) => el("li", null,
      el("strong", null, shorten(path, 120)), ` ${percent(a)} → `, el("span", { class: "bad-text" }, percent(b)), " ",
      withoutIt(view, job, path)))));
}
