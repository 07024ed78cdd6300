// Browser state: cookies and local storage, by domain. Values stay hidden until asked for.

import { get, post, remove, sentenceOf, toJson } from "../base/api.js";
import { askInDialog, checkbox, closeButton, confirm, field, say } from "../base/dialogs.js";
import { announce, button, cell, chip, copyButton, el, faint, filterRows, loading, put, row, rowHead, scrolling, table, time } from "../base/dom.js";
import { count, many, shorten, since, when } from "../base/format.js";
import { link, replace } from "../base/place.js";
import { may } from "../base/session.js";
import { saveAs } from "../items/downloads.js";
import { readState } from "./formats.js";

const ROWS = 200;
const MOST = 1000; // records of one body
const MASK = "••••••••";
const SHORT = 80; // of a value when all are shown
const SOON_MS = 3 * 86_400_000;

const KINDS = {
  cookies: {
    title: "Cookies", one: "cookie", named: "name", until: ({ expires }) => (expires < 0 ? null : expires * 1000), never: "session",
    more: ["Flags", (cookie) => el("span", { class: "chips" }, cookie.secure && chip("Secure"), cookie.http_only && chip("HttpOnly"))],
  },
  "local-storage": {
    title: "Local storage", one: "entry", named: "key", until: ({ expires }) => (expires === null ? null : Date.parse(expires)), never: "never",
    more: ["Updated", (entry) => time(entry.update_date)],
  },
};
const NAMES = Object.keys(KINDS);

/** Return the site of a domain: `.shop.example` and `shop.example` are one. */
const siteOf = (domain) => domain.replace(/^\./, "");
const isExpired = (until) => until !== null && until < Date.now();

/** Return when something expires, in words, with a colour for what is over or near. */
function expiry(until, never) {
  if (until === null) return faint(never);
  const date = new Date(until).toISOString();
  if (isExpired(until)) return time(date, chip(`expired ${since(date)}`, "bad"));
  return time(date, until - Date.now() < SOON_MS ? chip(since(date), "open") : until - Date.now() > 400 * 86_400_000 ? when(date) : since(date));
}

export async function show(main, { path, params }, signal, stay) {
  document.title = "Browser state · Scraping Data Service";
  const wanted = JSON.stringify([path, params.sort]);
  if (stay) put(main, el("h1", { tabindex: -1 }, "Browser state"), loading());
  else if (read === wanted) return filterRows(main, params.name ?? "");
  read = "";
  await (path[1] === undefined ? showDomains(main, params, signal) : showDomain(main, path[1], params, signal));
  read = wanted;
}

let read = ""; // what of the address is on the screen as it is stored

function again() {
  read = "";
  dispatchEvent(new HashChangeEvent("hashchange"));
}

/** Do something with stored state, say what became of it, and show what is there now. */
async function act(work, done) {
  const result = await work();
  say(done(result));
  again();
}

function frame(main, site, lead, tools, ...content) {
  put(main,
    el("div", { class: site ? "heading group-heading" : "heading" },
      el("div", null,
        site && el("nav", { class: "crumbs", "aria-label": "Where you are" }, el("a", { href: "#/state" }, "Browser state"), el("span", { "aria-hidden": "true" }, "/")),
        el("h1", { tabindex: -1 }, site ?? "Browser state"), !site && el("p", { class: "lead" }, lead)),
      site && el("p", { class: "lead" }, lead),
      el("div", { class: "actions" }, tools)),
    ...content);
  announce(lead);
}

function tools(site, hasExpired, isEmpty) {
  return [
    may("write") && button("Add cookie", () => edit("cookies", { domain: site ?? "" })),
    may("write") && button("Add entry", () => edit("local-storage", { domain: site ?? "" })),
    may("write") && button("Import", askImport),
    !isEmpty && button("storageState", () => saveStorageState(site)),
    may("delete") && hasExpired && button("Delete expired", () => deleteExpired(site), "quiet danger-text"),
    may("delete") && site && !isEmpty && button("Delete domain", () => deleteDomain(site), "quiet danger-text"),
  ];
}

// All domains

async function showDomains(main, params, signal) {
  const stored = await Promise.all(NAMES.map((name) => get([name], {}, signal)));
  const sites = new Map();
  stored.forEach((records, kind) => {
    for (const record of records) {
      const site = siteOf(record.domain);
      if (!sites.has(site)) sites.set(site, { site, counts: [0, 0], expired: 0, next: null });
      const one = sites.get(site);
      const until = KINDS[NAMES[kind]].until(record);
      one.counts[kind] += 1;
      if (isExpired(until)) one.expired += 1;
      else if (until !== null && (one.next === null || until < one.next)) one.next = until;
    }
  });
  const found = [...sites.values()].sort(params.sort === "expires" ? (a, b) => (a.next ?? Infinity) - (b.next ?? Infinity) : (a, b) => a.site.localeCompare(b.site));
  const lead = `${many(found.length, "domain")}, ${many(stored[0].length, "cookie")}, ${many(stored[1].length, "entry", "entries")}`;
  const search = el("input", { type: "search", id: "domain-name", value: params.name ?? "", placeholder: "Part of a domain", "aria-label": "Find a domain", oninput: () => replace(["state"], { ...params, name: search.value }) });
  const sort = (name, text) => {
    const target = () => link(["state"], { ...params, name: search.value, sort: params.sort === name ? "" : name });
    const keepSearch = ({ currentTarget }) => (currentTarget.href = target());
    return el("a", { href: target(), title: "Sort", onclick: keepSearch }, text, params.sort === name && el("span", { "aria-hidden": "true" }, " ↑"));
  };
  frame(main, null, lead, [found.length > 1 && search, ...tools(null, found.some(({ expired }) => expired), !found.length)],
    found.length
      ? el("div", { class: "panel" }, table("state-domains", ["Domain", ["Cookies"], ["Local storage"], sort("expires", "Next expiry"), "Expired"], found.map(domainRow)),
        el("p", { class: "none-found", hidden: true }, "No domain has this in its name."))
      : el("section", { class: "panel empty" }, el("h2", null, "No browser state"), el("p", null,
        "Scrapers store cookies and local storage with ", el("code", null, "POST /v1/storage-state"), ". You can add some here, or import what a browser has exported.")));
  filterRows(main, params.name ?? "");
}

const domainRow = ({ site, counts, expired, next }) => row({ "data-name": site.toLowerCase() },
  rowHead(null, el("a", { href: link(["state", site]) }, shorten(site, 120) || "(no domain)")),
  cell("Cookies", "number", count(counts[0])), cell("Local storage", "number", count(counts[1])),
  cell("Next expiry", "", expiry(next, "none")), cell("Expired", "", expired ? chip(many(expired, "record"), "bad") : faint("none")));

// One domain

async function showDomain(main, site, params, signal) {
  const domains = [site, `.${site}`];
  const stored = await Promise.all(NAMES.map(async (name) => (await Promise.all(domains.map((domain) => get([name], { domain }, signal)))).flat()));
  const lead = `${many(stored[0].length, "cookie")}, ${many(stored[1].length, "entry", "entries")}`;
  const isEmpty = stored.every((records) => !records.length);
  const hasExpired = stored.some((records, kind) => records.some((record) => isExpired(KINDS[NAMES[kind]].until(record))));
  frame(main, site, lead, tools(site, hasExpired, false),
    isEmpty && el("section", { class: "panel empty" }, el("h2", null, "No cookies and no local storage"), el("p", null, "IndexedDB is not listed here; Delete domain deletes it too.")),
    ...NAMES.map((name, kind) => stored[kind].length > 0 && list(name, sorted(stored[kind], KINDS[name], params.sort), site, params)));
}

function sorted(records, kind, sort) {
  if (!sort) return records;
  const sign = sort === "-expires" ? -1 : 1;
  const until = (record) => kind.until(record) ?? Infinity;
  return [...records].sort((a, b) => (until(a) === until(b) ? 0 : sign * (until(a) < until(b) ? -1 : 1)));
}

function list(name, records, site, params) {
  const kind = KINDS[name];
  const [moreTitle, moreCell] = kind.more;
  const order = { expires: "ascending", "-expires": "descending" }[params.sort];
  const sort = el("a", { href: link(["state", site], { sort: { ascending: "-expires", descending: "" }[order] ?? "expires" }), title: "Sort by expiry" },
    "Expires", order && el("span", { "aria-hidden": "true" }, order === "ascending" ? " ↑" : " ↓"));
  const head = [kind.named === "name" ? "Name" : "Key", "Value", "Domain", "Path", sort, moreTitle, "Actions"];
  const body = el("tbody", { role: "rowgroup" });
  const secrets = [];
  let open = false;
  const more = button("", () => add());
  const all = button("Show all values", () => {
    open = !open;
    secrets.forEach((set) => set(open, SHORT));
    all.setAttribute("aria-pressed", open);
    all.textContent = open ? "Hide all values" : "Show all values";
  }, "", { "aria-pressed": "false" });

  function add() {
    const from = body.children.length;
    body.append(...records.slice(from, from + ROWS).map(line));
    const left = records.length - body.children.length;
    more.hidden = left === 0;
    more.textContent = `Show ${count(Math.min(left, ROWS))} of ${count(left)} more`;
  }

  function line(record) {
    const title = shorten(record[kind.named], 80);
    const value = el("code", { class: "secret" });
    const toggle = button("", () => set(toggle.getAttribute("aria-pressed") !== "true"), "quiet");
    const set = (visible, longest = Infinity) => {
      // The text is in the document only while it is asked for.
      value.textContent = visible ? shorten(record.value, longest) || "(empty)" : MASK;
      toggle.textContent = visible ? "Hide" : "Show";
      toggle.setAttribute("aria-pressed", visible);
      toggle.setAttribute("aria-label", `${visible ? "Hide" : "Show"} the value of ${title}`);
    };
    set(open, SHORT);
    secrets.push(set);
    const named = (text) => ({ "aria-label": `${text} ${title}` });
    return row(null,
      rowHead(null, el("span", { class: "text" }, shorten(record[kind.named], 120))),
      cell("Value", "", el("span", { class: "masked" }, value, toggle)),
      cell("Domain", "", shorten(record.domain, 120)),
      cell("Path", "", el("span", { class: "text" }, shorten(record.path, 120) || "/")),
      cell("Expires", "", expiry(kind.until(record), kind.never)),
      cell(moreTitle, "", moreCell(record)),
      cell("Actions", "tools-cell", el("span", { class: "actions" },
        copyButton("Copy", () => toJson(record), "quiet", named("Copy")),
        may("write") && button("Edit", () => edit(name, record, true), "quiet", named("Edit")),
        may("delete") && button("Delete", () => deleteRecord(name, record), "quiet danger-text", named("Delete")))));
  }

  add();
  return el("section", { class: "panel" },
    el("div", { class: "heading tools" }, el("h2", null, kind.title), all),
    scrolling(kind.title, table("state", head, body)),
    el("p", { class: "actions" }, more));
}

// Changing

/** Ask for a cookie or an entry, and store it. */
function edit(name, record, isKnown = false) {
  const kind = KINDS[name];
  const until = isKnown ? kind.until(record) : null;
  const text = (id, title, value, props) => field(title, el("input", {
    id: `state-${id}`, name: id, value: value ?? "", autocapitalize: "none", autocomplete: "off", spellcheck: "false", ...props,
  }));
  // Another domain, path or name is another record.
  const fixed = isKnown ? { readonly: true } : { required: true };
  const check = (id, title) => checkbox(title, el("input", { type: "checkbox", id: `state-${id}`, name: id, checked: record[id] === true }));
  askInDialog("small", isKnown ? `Edit ${shorten(record[kind.named], 60)}` : `Add ${name === "cookies" ? "a cookie" : "an entry"}`, [
    text("domain", "Domain", record.domain, { ...fixed, placeholder: name === "cookies" ? ".shop.example" : "shop.example" }),
    text(kind.named, kind.named === "name" ? "Name" : "Key", record[kind.named], { ...fixed, autofocus: !isKnown }),
    field("Value", el("textarea", { id: "state-value", name: "value", rows: 3, spellcheck: "false", autofocus: isKnown }, record.value ?? "")),
    text("path", "Path", record.path ?? "/", isKnown ? { readonly: true } : {}),
    text("expires", `Expires (UTC); without a date: ${kind.never}`, until === null ? "" : new Date(until).toISOString().slice(0, 19), { type: "datetime-local", step: 1 }),
    name === "cookies" && el("div", { class: "actions" }, check("secure", "Secure"), check("http_only", "HttpOnly")),
  ], [closeButton("Cancel"), el("button", { class: "primary" }, "Save")], (data) => {
    const identity = ["domain", kind.named, "path"].map((one) => [one, isKnown ? record[one] : data.get(one).trim()]);
    const stored = { ...Object.fromEntries(identity), value: data.get("value") };
    const date = data.get("expires");
    stored.expires = date ? `${date}${date.length === 16 ? ":00" : ""}Z` : null;
    if (name === "cookies") Object.assign(stored, { secure: data.has("secure"), http_only: data.has("http_only") });
    const isEdited = isKnown && name === "cookies";
    return act(() => (isEdited ? storeCookie(stored) : post([name], [stored])), () => `${shorten(stored[kind.named], 80)} is saved`);
  });
}

/** Store a cookie with the members that it has besides these, such as sameSite: only a storage state has them. */
async function storeCookie({ http_only: httpOnly, expires, ...stored }) {
  const { cookies } = await get(["storage-state"], { domain: siteOf(stored.domain) });
  const path = stored.path || "/";
  const before = cookies.find((one) => one.domain === stored.domain && one.name === stored.name && one.path === path);
  const seconds = expires === null ? -1 : Date.parse(expires) / 1000;
  await post(["storage-state"], { cookies: [{ ...before, ...stored, path, httpOnly, expires: seconds }], origins: [] });
}

/** Ask for a file or a text with browser state, and store what is in it. */
function askImport() {
  const text = el("textarea", { id: "import-text", name: "text", rows: 8, spellcheck: "false", placeholder: '{"cookies": [ … ]}', autofocus: true });
  const file = el("input", { id: "import-file", type: "file", accept: ".json,.txt,application/json,text/plain", onchange: async () => (text.value = (await file.files[0]?.text()) ?? "") });
  askInDialog("small", "Import browser state", [
    el("p", { class: "hint" }, "Playwright's storageState, cookies.txt, and cookies as JSON from EditThisCookie, Cookie-Editor, Puppeteer or the DevTools protocol. What is stored under the same name is replaced."),
    field("File", file),
    field("Or paste it", text),
  ], [closeButton("Cancel"), el("button", { class: "primary" }, "Import")], (data) => {
    const state = readState(data.get("text"));
    const entries = state.origins.reduce((sum, { localStorage }) => sum + (localStorage?.length ?? 0), 0);
    return act(() => store(state), () => `${many(state.cookies.length, "cookie")} and ${many(entries, "entry", "entries")} imported`);
  });
}

/** Store a state in bodies that the service takes. */
async function store({ cookies, origins }) {
  for (let from = 0; from === 0 || from < cookies.length; from += MOST) {
    await post(["storage-state"], { cookies: cookies.slice(from, from + MOST), origins: from === 0 ? origins : [] });
  }
}

/** Download cookies and local storage as Playwright loads them. */
async function saveStorageState(site) {
  try {
    const state = await get(["storage-state"], { domain: site });
    saveAs(new Blob([toJson(state)], { type: "application/json" }), `storage-state${site ? `-${site.replace(/[^\w.-]+/g, "_")}` : ""}.json`);
  } catch (error) {
    say(sentenceOf(error), "bad");
  }
}

function deleteRecord(name, record) {
  const kind = KINDS[name];
  if (record[kind.named] === "") return say(`${kind.one === "cookie" ? "A cookie" : "An entry"} without a name can only be deleted with its whole domain.`, "bad");
  const title = shorten(record[kind.named], 80);
  confirm(`Delete ${title}?`, `The ${kind.one} of ${shorten(record.domain, 120)} is deleted for all scrapers of your organization.`, "Delete",
    () => act(() => remove([name], { domain: record.domain, path: record.path || "/", [kind.named]: record[kind.named] }), () => `${title} is deleted`));
}

/** Delete from both kinds, for a domain with and without its leading dot; return how many records went. */
async function removeFrom(site, params) {
  const domains = site ? [site, `.${site}`] : [""];
  const calls = NAMES.flatMap((name) => domains.map((domain) => remove([name], { ...params, domain })));
  return (await Promise.all(calls)).reduce((sum, { deleted }) => sum + deleted, 0);
}

const gone = (number) => `${many(number, "record")} deleted`;

function deleteExpired(site) {
  confirm("Delete what has expired?", `Expired cookies and entries ${site ? `of ${shorten(site, 120)}` : "of all domains"} are deleted for all scrapers of your organization.`, "Delete",
    () => act(() => removeFrom(site, { expired: "true" }), gone));
}

function deleteDomain(site) {
  confirm(`Delete ${shorten(site, 80)}?`, "All its cookies and local storage are deleted for all scrapers of your organization.", "Delete",
    () => act(() => removeFrom(site, {}), gone));
}
