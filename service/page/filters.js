// The filters of the API as a form, with suggestions from what exists, and the given ones as chips.

import { get } from "./api.js";
import { el, put } from "./dom.js";
import { shorten } from "./format.js";
import { endOfDay } from "./paging.js";
import { go, link } from "./place.js";

const LABELS = {
  job_id: "Job", country: "Country", region: "Region", is_approved: "Approved", created_after: "Changed since", url: "Source URL", key_hash: "Key", day: "Day",
};
export const FILTERS = Object.keys(LABELS);
const SUGGESTED_FROM = "1000"; // newest items whose tags are read for suggestions

/** Return the parameters without what points at one page or one item of the old filters. */
export const fresh = (params, changes = {}) => ({ ...params, after: "", before: "", item: "", ...changes });

/** Return the API's own filters for what the address asks for; a day ends where the next one's ids begin. */
export async function filtersOf(group, { day, ...params }, signal) {
  const given = Object.fromEntries(FILTERS.filter((name) => name !== "day").map((name) => [name, params[name] ?? ""]));
  if (day) Object.assign(given, { created_after: day, until: await endOfDay(group, day, signal) });
  return given;
}

/** Fill `place` with the form and the given filters. */
export function showFilters(place, view, params) {
  const input = (name, props = {}) => el("input", {
    id: `filter-${name}`, name, value: params[name] ?? "", autocapitalize: "none", autocomplete: "off", spellcheck: "false", ...props,
  });
  const field = (name, control, kind = "") => el("div", { class: `field ${kind}` }, el("label", { for: `filter-${name}` }, LABELS[name]), control);
  // A date with a time of day, from a link, does not fit the date picker.
  const isDay = /^(\d{4}-\d\d-\d\d)?$/.test(params.created_after ?? "");
  const given = FILTERS.filter((name) => params[name]);
  const focused = document.activeElement?.id;
  const approved = [["", "Any"], ["true", "Yes"], ["false", "No"]];
  put(place,
    el("details", { class: "filter-box", open: innerWidth > 640 },
      el("summary", null, given.length ? `Filters (${given.length})` : "Filters"),
      el("form", { class: "filters", onsubmit: (event) => apply(event, view, params), onfocusin: () => suggest(view, place) },
        field("job_id", input("job_id", { placeholder: "All jobs", list: "jobs-known" })),
        field("country", input("country", { placeholder: "Germany", list: "countries-known" })),
        field("region", input("region", { placeholder: "DE-BE", list: "regions-known" })),
        field("is_approved", el("select", { id: "filter-is_approved", name: "is_approved" },
          approved.map(([value, text]) => el("option", { value, selected: value === (params.is_approved ?? "") }, text))), "narrow"),
        field("created_after", input("created_after", isDay ? { type: "date" } : {})),
        field("url", input("url", { placeholder: "https://… exactly", inputmode: "url" }), "wide"),
        field("key_hash", input("key_hash", { placeholder: "Exactly" })),
        ["jobs-known", "countries-known", "regions-known"].map((id) => el("datalist", { id })),
        el("button", { id: "filter-apply", class: "primary" }, "Apply"))),
    given.length > 0 && el("p", { class: "given" }, given.map((name) =>
      el("a", { class: "chip", href: link(view.path, fresh(params, { [name]: "" })), "aria-label": `Remove the filter ${LABELS[name]}: ${shown(name, params)}` },
        `${LABELS[name]}: ${shown(name, params)}`, el("span", { "aria-hidden": "true" }, " ✕"))),
      el("a", { href: link(view.path, fresh(params, Object.fromEntries(FILTERS.map((name) => [name, ""])))) }, "Remove all")));
  if (focused?.startsWith("filter-")) document.getElementById(focused)?.focus();
  if (view.suggestions) fillSuggestions(view, place);
}

const shown = (name, params) => (name === "is_approved" ? { true: "yes", false: "no" }[params[name]] ?? params[name] : shorten(params[name], 60));

function apply(event, view, params) {
  event.preventDefault();
  const given = Object.fromEntries([...new FormData(event.target)].map(([name, value]) => [name, value.trim()]));
  go(view.path, fresh(params, given));
}

/** Read once, when a person goes to the form, what jobs, countries and regions there are. */
async function suggest(view, place) {
  if (view.suggestions) return;
  view.suggestions = {};
  try {
    const [jobs, page] = await Promise.all([
      get(["groups", view.group, "jobs"]),
      get(["outputs", view.group], { order: "desc", limit: SUGGESTED_FROM, fields: "tags.country,tags.region" }),
    ]);
    const tags = (name) => [...new Set(page.items.map(({ tags }) => tags?.[name]).filter((value) => typeof value === "string"))].sort();
    view.suggestions = { "jobs-known": jobs.map(({ job_id }) => job_id), "countries-known": tags("country"), "regions-known": tags("region") };
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
