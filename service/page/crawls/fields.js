// How well each field of the data is filled, compared with the job before: a broken selector is seen at once.

import { get, toJson } from "../base/api.js";
import { announce, button, cell, chip, el, faint, loading, meter, put, row, rowHead, scrolling, table } from "../base/dom.js";
import { many, percent, shorten } from "../base/format.js";
import { go, link } from "../base/place.js";
import { may } from "../base/session.js";
import { DROP, fillRates, readJobs } from "./jobs.js";
import { ignoreField, readSettings } from "./settings.js";

const ALL = "*"; // in the address: the items of all jobs
const HEAD = ["Field", "Filled", "Without it", "Types", ["Smallest"], ["Largest"], "Examples"];
// Fields that are another in every crawl by nature: each crawl would count as a change of everything.
const VOLATILE = /(^|[._])(scraped|crawled|fetched|retrieved|downloaded|timestamp|nonce|session|request_id)([._]|$)|_at$/i;

export async function show(view, params, signal, stay) {
  if (stay) put(view.tab, loading());
  const [found, settings] = await Promise.all([readJobs(view.group, signal), readSettings(view.group, signal)]);
  // A job whose items were all seen again by later ones can be looked at only if it was taken stock of.
  const known = new Map(found.filter((job) => job.items > 0 || hasRates(job)).map((job) => [job.job_id, job]));
  const jobs = [...known.keys()];
  const chosen = params.job_id ?? jobs[0] ?? ALL;
  const compared = known.has(chosen) ? params.with ?? jobBefore([...known.values()], known.get(chosen)) : undefined;
  const read = async (id) => {
    const job = known.get(id);
    if (job && !job.items) return { items: job.created + job.changed + job.unchanged, fields: Object.entries(fillRates(job)).map(([path, fill_rate]) => ({ path, fill_rate, types: {}, min: null, max: null, examples: [] })) };
    return get(["groups", view.group, "fields"], { job_id: id === ALL ? "" : id }, signal);
  };
  const [now, then] = await Promise.all([read(chosen), compared && compared !== "-" ? read(compared) : null]);
  // An object is described by the fields inside it.
  const described = (fields) => fields?.filter(({ types }) => Object.keys(types).join() !== "object");
  const lines = compare(described(now.fields), described(then?.fields));
  const broken = lines.filter(({ drop }) => drop > DROP);
  put(view.tab, el("section", { class: "panel fields" },
    choices(view, jobs, chosen, compared),
    el("p", { class: "given" }, summary(now, then, chosen, compared), broken.length > 0 && el("strong", { class: "bad-text" },
      `${many(broken.length, "field")} filled less than before: ${shorten(broken.map(({ path }) => path).join(", "), 120)}`)),
    lines.length
      ? scrolling("Fields", table("fields-table", HEAD, lines.map((one) => line(view, one, chosen, settings, now.items))))
      : el("p", { class: "none-found" }, "There is no data to look at.")));
  announce(`${many(lines.length, "field")}${broken.length ? `, ${broken.length} filled less than before` : ""}`);
}

const hasRates = (job) => Object.keys(fillRates(job)).length > 0;

/** Return the job to compare with: the finished one before of the same series, else the one before of it, else the one before. */
function jobBefore(jobs, chosen) {
  const older = jobs.slice(jobs.indexOf(chosen) + 1);
  const same = older.filter(({ series }) => (series ?? null) === (chosen.series ?? null));
  return (same.find(({ state }) => state === "finished") ?? same[0] ?? older[0])?.job_id;
}

function summary(now, then, chosen, compared) {
  const of = chosen === ALL ? "of all jobs" : `of ${shorten(chosen, 60)}`;
  return `Newest ${many(now.items, "item")} ${of}${then ? `, compared with ${many(then.items, "item")} of ${shorten(compared, 60)}` : ""}.`;
}

/** Return one line per field of either job, those that lost most first, then in the order of the data. */
function compare(now, then) {
  const lines = now.map((field) => ({ ...field }));
  if (!then) return lines;
  const byPath = new Map(lines.map((field) => [field.path, field]));
  for (const old of then) {
    const field = byPath.get(old.path);
    if (field) field.before = old.fill_rate;
    else lines.push({ ...old, count: 0, fill_rate: 0, types: {}, min: null, max: null, examples: [], before: old.fill_rate });
  }
  for (const field of lines) field.drop = (field.before ?? 0) - field.fill_rate;
  const lost = lines.filter(({ drop }) => drop > DROP).sort((a, b) => b.drop - a.drop);
  return [...lost, ...lines.filter((field) => !lost.includes(field))];
}

function choices(view, jobs, chosen, compared) {
  const select = (id, label, value, options, onchange) => el("div", { class: "field" }, el("label", { for: id }, label),
    el("select", { id, onchange }, options.map(([key, text]) => el("option", { value: key, selected: key === value }, shorten(text, 60)))));
  const known = [...new Set([...jobs, ...(chosen === ALL ? [] : [chosen])])];
  const path = [...view.path, "fields"];
  return el("div", { class: "filters" },
    select("fields-job", "Job", chosen, [...known.map((job) => [job, job]), [ALL, "All jobs"]], (event) => go(path, { job_id: event.target.value })),
    compared !== undefined && select("fields-with", "Compared with", compared,
      [...known.filter((job) => job !== chosen).map((job) => [job, job]), ["-", "Nothing"]],
      (event) => go(path, { job_id: chosen, with: event.target.value })));
}

function line(view, field, job, settings, items) {
  const { path, fill_rate: rate, before, drop, types, min, max, examples } = field;
  const changed = before !== undefined && Math.round(100 * before) !== Math.round(100 * rate);
  const column = `data.${path}`;
  const without = Math.round(items * (1 - rate));
  const isIgnored = settings.ignore.includes(path);
  return row({ class: drop > DROP ? "dropped" : false },
    rowHead(null, el("a", { class: "text", href: link(view.path, { job_id: job === ALL ? "" : job, add: column }), title: "Show this column", "aria-label": `Show the column ${path}` }, shorten(path, 80)),
      isIgnored && [" ", chip("ignored")],
      !isIgnored && may("write") && VOLATILE.test(path) && button("Ignore this field", () => ignoreField(view.group, path), "quiet small", { title: "It differs in every crawl: items that differ only here are unchanged", "aria-label": `Ignore ${path}` })),
    cell("Filled", "fill", el("span", { class: "share" }, el("span", { class: drop > DROP && "bad-text" }, changed ? `${percent(before)} → ${percent(rate)}` : percent(rate)), meter(rate, drop > DROP ? "lost" : "done"))),
    cell("Without it", "", without > 0 ? el("a", { href: link(view.path, { job_id: job === ALL ? "" : job, missing: path }), "aria-label": `Items without ${path}` }, many(without, "item")) : faint("none")),
    cell("Types", "", el("span", { class: "chips" }, Object.entries(types).map(([name, n]) => chip(Object.keys(types).length > 1 ? `${name} ${n}` : name)))),
    cell("Smallest", "number", value(min)), cell("Largest", "number", value(max)),
    cell("Examples", "", examples.length ? el("span", { class: "text" }, shorten(examples.map((one) => text(one, 40)).join(" · "), 60)) : faint("–")));
}

const text = (one, longest) => shorten(typeof one === "object" ? toJson(one) : String(one), longest);
const value = (one) => (one === null || one === undefined ? faint("–") : text(one, 20));
