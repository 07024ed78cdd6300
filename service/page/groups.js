// All groups of the organization.

import { get } from "./api.js";
import { spark } from "./chart.js";
import { announce, el, put, svg } from "./dom.js";
import { count, many, since, when } from "./format.js";
import { link, replace } from "./place.js";

export async function showGroups(main, { path, params }, signal, fresh) {
  document.title = "Groups · Scraping Data Service";
  if (!fresh) return filter(main, params.name ?? "");
  put(main, el("h1", { tabindex: -1 }, "Groups"), el("div", { class: "panel loading", "aria-hidden": "true" }));
  const groups = await get(["groups"], {}, signal);
  const search = el("input", {
    type: "search", id: "name", value: params.name ?? "", placeholder: "Part of a name",
    oninput: () => replace(path, { name: search.value }),
  });
  put(main,
    el("div", { class: "heading" },
      el("div", null, el("h1", { tabindex: -1 }, "Groups"), el("p", { class: "lead" }, summary(groups))),
      groups.length > 1 && el("div", { class: "field" }, el("label", { for: "name" }, "Find a group"), search)),
    groups.length ? list(groups) : nothing());
  announce(many(groups.length, "group"));
  filter(main, params.name ?? "");
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

function list(groups) {
  const head = ["Group", "Last 30 days", "Items", "Jobs", "Approved", "Last change"];
  return el("div", { class: "panel" },
    el("table", { class: "groups cards", role: "table" },
      el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, head.map((name, i) => el("th", { scope: "col", role: "columnheader", class: (i === 2 || i === 3) && "number" }, name)))),
      el("tbody", { role: "rowgroup" }, groups.map(row))),
    el("p", { class: "none-found", hidden: true }, "No group has this in its name."));
}

function row(group) {
  const share = group.items ? Math.round((100 * group.approved) / group.items) : 0;
  const cell = (label, kind, ...children) => el("td", { role: "cell", "data-label": label, class: kind }, ...children);
  return el("tr", { role: "row", "data-name": group.group_id.toLowerCase() },
    el("th", { scope: "row", role: "rowheader" }, el("a", { href: link(["groups", group.group_id]) }, group.group_id)),
    cell("Last 30 days", "picture", spark(group.days)),
    cell("Items", "number", count(group.items)),
    cell("Jobs", "number", count(group.jobs)),
    cell("Approved", "approved", el("span", { class: "share" }, `${share} %`, bar(share))),
    cell("Last change", "", group.last_change ? el("time", { datetime: group.last_change, title: `${when(group.last_change)} UTC` }, since(group.last_change)) : "never"));
}

const bar = (share) => svg("svg", { viewBox: "0 0 64 6", width: 64, height: 6, "aria-hidden": "true" },
  svg("rect", { class: "none", width: 64, height: 6, rx: 3 }), svg("rect", { class: "done", width: 0.64 * share, height: 6, rx: 3 }));

function filter(main, name) {
  const rows = [...main.querySelectorAll("tr[data-name]")];
  for (const one of rows) one.hidden = !one.dataset.name.includes(name.toLowerCase());
  const note = main.querySelector(".none-found");
  if (note) note.hidden = rows.some((one) => !one.hidden);
}
