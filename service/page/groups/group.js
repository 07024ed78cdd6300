// One group: its heading and counts, and the tabs below them.

import { get, loaded } from "../base/api.js";
import { spark } from "../base/chart.js";
import { el, put, time } from "../base/dom.js";
import { count, many, percent, shorten, since } from "../base/format.js";
import { link } from "../base/place.js";
import * as items from "../items/items.js";

// The other tabs are loaded when they are looked at.
const TABS = {
  items: ["Items", async () => items],
  jobs: ["Jobs", () => import("../crawls/jobs.js")],
  fields: ["Fields", () => import("../crawls/fields.js")],
  time: ["Over time", () => import("../crawls/time.js")],
  deleted: ["Deleted", () => import("../deleted/deleted.js")],
  settings: ["Settings", () => import("../crawls/settings.js")],
};

let view = null; // the group on the screen

export async function show(main, { path, params }, signal, stay) {
  const [, group, tab = "items", jobId] = path;
  document.title = `${shorten(group, 60)} · Scraping Data Service`;
  if (stay) {
    view = { group, path: path.slice(0, 2), stats: null, lead: el("p", { class: "lead" }, "…"), spark: el("a"), tab: el("div", { class: "tab" }) };
    view.refresh = (given) => refresh(view, given);
    put(main, heading(view, tab), view.tab);
  }
  view.jobId = jobId;
  const shown = loaded(TABS[tab][1]()).then((module) => module.show(view, params, signal, stay));
  await Promise.all([stay && view.refresh(signal), shown]);
}

function heading({ group, path, lead, spark: picture }, tab) {
  picture.className = "activity-link";
  picture.hidden = true; // until its days are known
  picture.href = link([...path, "time"]);
  return [
    el("div", { class: "heading group-heading" },
      el("div", null,
        el("nav", { class: "crumbs", "aria-label": "Where you are" }, el("a", { href: "#/groups" }, "Groups"), el("span", { "aria-hidden": "true" }, "/")),
        el("h1", { tabindex: -1 }, group)),
      lead, picture),
    el("nav", { class: "tabs", "aria-label": "Views of this group" }, Object.entries(TABS).map(([name, [title]]) =>
      el("a", { href: link(name === "items" ? path : [...path, name]), "aria-current": name === tab && "page" }, title))),
  ];
}

/** Read the counts of the group again and show them. */
async function refresh(view, signal) {
  const stats = await get(["groups", view.group, "stats"], {}, signal);
  view.stats = stats;
  put(view.lead, stats.items
    ? `${many(stats.items, "item")} from ${many(stats.jobs, "job")} · ${count(stats.approved)} approved (${percent(stats.approved / stats.items)}) · last change `
    : stats.last_id > 0 ? `All items of this group were deleted${stats.last_change ? " · last change " : ""}` : "Nothing has been written to this group, or it belongs to another organization.",
  stats.last_change && stats.last_id > 0 ? time(stats.last_change, since(stats.last_change)) : "");
  view.spark.hidden = !stats.items;
  put(view.spark, spark(stats.days));
  return stats;
}
