// The filters of the API: one line to add one, with suggestions from what exists, and the given ones as chips.

import { get } from "../base/api.js";
import { el, put } from "../base/dom.js";
import { shorten } from "../base/format.js";
import { conditionsOf, go, joinConditions, link } from "../base/place.js";
import { endOfDay, fresh } from "./paging.js";

// Parameters of the API, and `day`, which becomes two of them.
const LABELS = {
  job_id: "Job", change: "In that job", is_approved: "Approved", rejected: "Rejected", country: "Country", region: "Region", where: "Field", missing: "Without",
  created_after: "Changed since", url: "Source URL", key_hash: "Key", day: "Day",
};
export const FILTERS = Object.keys(LABELS);
/** What `DELETE /v1/outputs/{group_id}` takes as well. */
export const DELETABLE = ["job_id", "url", "country", "region", "is_approved", "rejected", "where", "missing", "change"];

const SUGGESTED_FROM = "1000"; // newest items whose tags are read for suggestions
const YES_NO = [["true", "yes"], ["false", "no"]];
// What can be chosen to filter by, with its control.
const KINDS = {
  job_id: { control: "text", placeholder: "Id of a job" },
  is_approved: { control: "choice", choices: YES_NO },
  rejected: { control: "choice", choices: YES_NO },
  where: { control: "field", placeholder: "Value" },
  missing: { control: "text", placeholder: "price.amount" },
  country: { control: "text", placeholder: "Germany" },
  region: { control: "text", placeholder: "DE-BE" },
  created_after: { control: "date" },
  url: { control: "text", placeholder: "https://… the whole URL" },
  key_hash: { control: "text", placeholder: "The whole key" },
};
const TITLES = { where: "Field", missing: "Field is empty" };
// The operators of `where`, in words; longer ones first, as the first one in a text counts.
const OPERATORS = [[":", "equals"], ["!=", "is not"], ["~", "contains"], [">", "is greater than"], [">=", "is at least"], ["<", "is less than"], ["<=", "is at most"]];
const CONDITION = /^(.*?)(!=|>=|<=|[:><~])(.*)$/s;

/** Return path, operator and value of a condition. */
const partsOf = (condition) => condition.match(CONDITION)?.slice(1) ?? [condition, ":", ""];

/** Return the columns of the fields that are filtered by. */
export const filteredColumns = ({ where, missing }) => [...conditionsOf(where).map((one) => partsOf(one)[0]), ...(missing ? [missing] : [])]
  .filter(Boolean).map((path) => (path.startsWith("data.") ? path : `data.${path}`));

/** Return the API's own filters for what the address asks for; a day ends where the next one's ids begin. */
export async function filtersOf(group, { day, ...params }, signal) {
  const given = Object.fromEntries(FILTERS.filter((name) => name !== "day").map((name) => [name, params[name] ?? ""]));
  if (day) Object.assign(given, { created_after: day, until: await endOfDay(group, day, signal) });
  return given;
}

/** Fill `place` with the given filters and the line that adds one. */
export function showFilters(place, view, params) {
  const given = FILTERS.filter((name) => params[name]);
  const chips = given.flatMap((name) => (name === "where"
    ? conditionsOf(params.where).map((one, at, all) => [inWords(one), { where: joinConditions(all.toSpliced(at, 1)) }])
    : [[`${LABELS[name]}: ${shown(name, params[name])}`, without(name)]]));
  view.filterBy ??= "job_id";
  const value = el("span", { class: "filter-value" });
  const name = el("select", {
    id: "filter-name", name: "name", "aria-label": "Filter by", onchange: () => {
      view.filterBy = name.value;
      fillValue(value, view, params);
    },
  }, Object.keys(KINDS).map((kind) => el("option", { value: kind, selected: kind === view.filterBy }, TITLES[kind] ?? LABELS[kind])));
  fillValue(value, view, params);
  put(place, el("div", { class: "filters" },
    el("form", { class: "filter-form", onsubmit: (event) => apply(event, view, params), onfocusin: () => suggest(view, place) },
      name, value, el("button", { id: "filter-add" }, "Filter"), LISTS.map((id) => el("datalist", { id }))),
    chips.map(([text, rest]) => el("a", { class: "chip", href: link(view.path, fresh(params, rest)), "aria-label": `Remove the filter ${text}` },
      text, el("span", { "aria-hidden": "true" }, " ✕"))),
    chips.length > 1 && el("a", { class: "remove-all", href: link(view.path, fresh(params, Object.fromEntries(FILTERS.map((one) => [one, ""])))) }, "Remove all")));
  if (view.suggestions) fillSuggestions(view, place);
}

const without = (name) => (name === "job_id" ? { job_id: "", change: "" } : { [name]: "" });

function fillValue(place, view, params) {
  const kind = view.filterBy;
  const { control, placeholder, choices } = KINDS[kind];
  const title = TITLES[kind] ?? LABELS[kind];
  const input = (name, props) => el("input", { id: `filter-${name}`, name, autocapitalize: "none", autocomplete: "off", spellcheck: "false", required: true, ...props });
  // A date with a time of day, from a link, does not fit the date picker.
  const isDay = /^(\d{4}-\d\d-\d\d)?$/.test(params.created_after ?? "");
  put(place, {
    text: () => [input("value", { "aria-label": title, placeholder, list: `${kind}-known`, value: params[kind] ?? "" })],
    date: () => [input("value", { "aria-label": title, ...(isDay ? { type: "date" } : {}), value: params[kind] ?? "" })],
    choice: () => [el("select", { id: "filter-value", name: "value", "aria-label": title }, choices.map(([value, text]) => el("option", { value, selected: params[kind] === value }, text)))],
    field: () => [
      input("path", { "aria-label": "Field", placeholder: "price.currency", list: "missing-known", pattern: "[^:!<>~]+" }),
      el("select", { id: "filter-operator", name: "operator", "aria-label": "Operator" }, OPERATORS.map(([operator, text]) => el("option", { value: operator }, text))),
      input("value", { "aria-label": "Value", placeholder, required: false }),
    ],
  }[control]());
}

const shown = (name, value) => (["is_approved", "rejected"].includes(name) ? Object.fromEntries(YES_NO)[value] ?? value : shorten(value, 60));

function inWords(condition) {
  const [path, operator, value] = partsOf(condition);
  return shorten(`${path} ${Object.fromEntries(OPERATORS)[operator]} ${value || "“”"}`, 70);
}

function apply(event, view, params) {
  event.preventDefault();
  const data = new FormData(event.target);
  const name = data.get("name");
  const value = data.get("value").trim();
  if (name !== "where") return go(view.path, fresh(params, { [name]: value }));
  const condition = `${data.get("path").trim()}${data.get("operator")}${value}`;
  go(view.path, fresh(params, { where: joinConditions([...new Set([...conditionsOf(params.where), condition])]) }));
}

const LISTS = ["job_id-known", "country-known", "region-known", "missing-known"];

/** Read once, when a person goes to the form, what jobs, countries, regions and fields there are. */
async function suggest(view, place) {
  if (view.suggestions) return;
  view.suggestions = {};
  try {
    const [jobs, page, { fields }] = await Promise.all([
      get(["groups", view.group, "jobs"]),
      get(["outputs", view.group], { order: "desc", limit: SUGGESTED_FROM, fields: "tags.country,tags.region" }),
      get(["groups", view.group, "fields"], { limit: "100" }),
    ]);
    const tags = (name) => [...new Set(page.items.map(({ tags }) => tags?.[name]).filter((value) => typeof value === "string"))].sort();
    view.suggestions = {
      "job_id-known": jobs.map(({ job_id }) => job_id), "country-known": tags("country"), "region-known": tags("region"), "missing-known": fields.map(({ path }) => path),
    };
  } catch {
    view.suggestions = null; // filters work without suggestions; the next visit tries again
  }
  if (view.suggestions) fillSuggestions(view, place);
}

function fillSuggestions(view, place) {
  for (const [id, values] of Object.entries(view.suggestions)) {
    const list = place.querySelector(`#${id}`);
    if (list) put(list, values.slice(0, 200).map((value) => el("option", { value })));
  }
}
