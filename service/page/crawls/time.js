// A group over time: items by day and items held, what each crawl did and how long it took, how well a field was filled, reviews.

import { get } from "../base/api.js";
import { chart, dayCharts } from "../base/chart.js";
import { el, loading, put } from "../base/dom.js";
import { duration, many, percent, shortDay, shorten } from "../base/format.js";
import { link } from "../base/place.js";
import { CHANGES, fillRates, readJobs, whoReviewed } from "./jobs.js";
import { statusChip } from "./reviews.js";

const CRAWLS = 60; // the newest ones; more bars are too thin to read
const REVIEWS = "60"; // a comment may be 64 KB, and every crawl may have one

export async function show(view, _params, signal, stay) {
  if (!stay) return;
  put(view.tab, loading());
  const [stats, reviews, jobs] = await Promise.all([
    get(["groups", view.group, "stats"], {}, signal), get(["reviews", view.group], { limit: REVIEWS, history: "true" }, signal), readJobs(view.group, signal)]);
  const crawls = jobs.slice(0, CRAWLS).reverse();
  const [byDay, held] = dayCharts(stats.days, (date) => link(view.path, { day: date }));
  const panel = (title, ...content) => el("section", { class: "panel" }, el("h2", null, title), ...content);
  put(view.tab, el("div", { class: "side-by-side" },
    el("div", null,
      panel("Items by day", byDay),
      panel("Items held", held),
      crawls.length > 0 && panel("What each crawl did", crawlChart(view, "What each crawl did", crawls, CHANGES, {}, (job) => job)),
      crawls.some(took) && panel("How long each crawl took", crawlChart(view, "How long each crawl took", crawls, [["took", "First to last write"]], { format: duration, most: longest(crawls) },
        (job) => ({ took: took(job) }))),
      fieldOverTime(view, crawls)),
    panel("Latest reviews", reviews.length
      ? el("ul", { class: "reviews" }, reviews.map((review) => entry(view, review)))
      : el("p", { class: "none-found" }, "No job of this group has been reviewed."))));
}

const took = ({ first_write, last_write }) => (first_write && last_write ? Date.parse(last_write) - Date.parse(first_write) : 0);
const longest = (crawls) => Math.max(2000, ...crawls.map(took));

function crawlChart(view, title, crawls, series, options, values) {
  const bars = crawls.map((job) => ({
    label: shorten(job.job_id, 60), tick: job.last_write ? shortDay(Date.parse(job.last_write)) : "", href: link([...view.path, "jobs", job.job_id]), ...values(job),
  }));
  return chart(title, bars, series, { summary: many(crawls.length, "crawl"), ...options });
}

/** Return how well one field was filled from crawl to crawl, where crawls were taken stock of. */
function fieldOverTime(view, crawls) {
  const finished = crawls.map((job) => [job, fillRates(job)]).filter(([, rates]) => Object.keys(rates).length);
  if (!finished.length) return null;
  const paths = Object.keys(finished.at(-1)[1]);
  // The field that moved most is the one to look at first.
  const moved = (path) => Math.max(...finished.map(([, rates]) => rates[path] ?? 0)) - Math.min(...finished.map(([, rates]) => rates[path] ?? 0));
  const [first] = [...paths].sort((a, b) => moved(b) - moved(a));
  const holder = el("div");
  const draw = (path) => put(holder, crawlChart(view, `How well ${path} was filled`, finished.map(([job]) => job), [["filled", "Filled"]],
    { format: percent, most: 1 }, (job) => ({ filled: fillRates(job)[path] ?? 0 })));
  const select = el("select", { id: "field-over-time", onchange: () => draw(select.value) }, paths.map((path) => el("option", { selected: path === first }, path)));
  draw(first);
  return el("section", { class: "panel" },
    el("div", { class: "heading tools" }, el("h2", null, "How well a field was filled"), el("div", { class: "field" }, el("label", { class: "unseen", for: "field-over-time" }, "Field"), select)), holder);
}

function entry(view, { job_id, status, comment, ...review }) {
  return el("li", null,
    el("div", null, statusChip(status), " ", el("a", { href: link([...view.path, "jobs", job_id]), title: "This job" }, shorten(job_id, 60))),
    comment && el("p", { class: "text" }, shorten(comment, 600)),
    el("p", null, whoReviewed(review)));
}
