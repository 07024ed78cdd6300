// All groups of the organization; their counts move while one looks.

import { get, sentenceOf } from "../base/api.js";
import { spark } from "../base/chart.js";
import { field, say } from "../base/dialogs.js";
import { announce, button, cell, el, faint, filterRows, loading, meter, put, row, rowHead, table, time } from "../base/dom.js";
import { count, many, percent, shorten, since } from "../base/format.js";
import { link, replace } from "../base/place.js";
import { verdictChip } from "../crawls/jobs.js";

const HEAD = ["Group", "Last 30 days", ["Items"], ["Jobs"], "Approved", "Newest crawl", "Last change"];
const REFRESH_MS = 15_000;

export async function show(main, { path, params }, signal, stay) {
  document.title = "Groups · Scraping Data Service";
  if (!stay) return filterRows(main, params.name ?? "");
  put(main, el("h1", { tabindex: -1 }, "Groups"), loading());
  const lead = el("p", { class: "lead" });
  const list = el("div");
  const search = el("input", {
    type: "search", id: "name", value: params.name ?? "", placeholder: "Part of a name",
    oninput: () => replace(path, { name: search.value }),
  });
  const finder = field("Find a group", search);
  const load = async (given) => {
    const groups = await get(["groups"], {}, given, { quiet: given === stay });
    lead.textContent = summary(groups);
    finder.hidden = groups.length < 2;
    put(list, groups.length ? panel(groups) : nothing());
    filterRows(list, search.value);
    return groups;
  };
  const groups = await load(signal);
  const reload = () => load(undefined).then((now) => announce(summary(now)), (error) => say(sentenceOf(error), "bad"));
  put(main,
    el("div", { class: "heading" },
      el("div", null, el("h1", { tabindex: -1 }, "Groups"), lead),
      el("div", { class: "actions" }, finder, button("Reload", reload))),
    list);
  const timer = setInterval(() => document.hidden || load(stay).catch(() => {}), REFRESH_MS);
  stay.addEventListener("abort", () => clearInterval(timer));
  addEventListener("connected", () => load(stay).catch(() => {}), { signal: stay });
  announce(many(groups.length, "group"));
}

function summary(groups) {
  const items = groups.reduce((total, group) => total + group.items, 0);
  return `${many(groups.length, "group")}, ${many(items, "item")}`;
}

function nothing() {
  return el("section", { class: "panel empty" },
    el("h2", null, "No group yet"),
    el("p", null, "A group appears here when a scraper writes its first output with ", el("code", null, "POST /v1/outputs/{group_id}"), "."),
    el("p", { class: "actions" }, el("a", { class: "button", href: "docs" }, "API description")));
}

function panel(groups) {
  return el("div", { class: "panel" }, table("groups", HEAD, groups.map(line)),
    el("p", { class: "none-found", hidden: true }, "No group has this in its name."));
}

function line(group) {
  const share = group.items ? group.approved / group.items : 0;
  const path = ["groups", group.group_id];
  return row({ "data-name": group.group_id.toLowerCase() },
    rowHead(null, el("a", { href: link(path) }, group.group_id)),
    cell("Last 30 days", "picture", spark(group.days)),
    cell("Items", "number", count(group.items)),
    cell("Jobs", "number", el("a", { href: link([...path, "jobs"]), "aria-label": `${many(group.jobs, "job")} of ${group.group_id}` }, count(group.jobs))),
    cell("Approved", "approved", el("span", { class: "share" }, percent(share), meter(share))),
    cell("Newest crawl", "", newestCrawl(group)),
    cell("Last change", "", group.last_change ? time(group.last_change, since(group.last_change)) : "never"));
}

/** Return how the newest finished crawl was judged and which fields it filled less than before, with a way to each. */
function newestCrawl({ group_id, verdict, dropped }) {
  return el("div", { class: "newest" },
    verdict ? el("a", { href: link(["groups", group_id, "jobs"]), "aria-label": `The newest crawl of ${group_id} ${verdict}` }, verdictChip({ verdict })) : faint("not judged"),
    dropped.length > 0 && el("a", { class: "bad-text", href: link(["groups", group_id, "fields"]) }, `${shorten(dropped.join(", "), 60)} filled less`));
}
