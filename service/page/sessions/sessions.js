// Sessions: pools of browser identities, leased to one worker at a time. Their secrets are never read here.

import { get, getPage, problem, remove, write } from "../base/api.js";
import { askInDialog, closeButton, confirm, field, say } from "../base/dialogs.js";
import { announce, button, cell, chip, el, faint, loading, put, row, rowHead, scrolling, table, time } from "../base/dom.js";
import { count, duration, many, shorten, since } from "../base/format.js";
import { go, link } from "../base/place.js";
import { may } from "../base/session.js";
import { readState } from "../state/formats.js";

const REFRESH_MS = 10_000;
const ROWS = 200; // sessions on the screen
const STATES = {
  ready: ["Ready", "good"], resting: ["Resting", ""], leased: ["Leased", "open"], needs_login: ["Needs login", "bad"], blocked: ["Blocked", "bad"], retired: ["Retired", ""],
};
// What a person may say of a session, and what it means in its pool.
const MARKS = {
  ready: () => "The next worker may take it.",
  needs_login: () => "The site has logged it out: it waits for a new state.",
  blocked: ({ blocked_rest_seconds: seconds }) => (seconds === null ? "The site blocks it: it is retired, as the pool says." : `The site blocks it, or it should pause: it rests for ${duration(1000 * seconds)}, then it is ready, without errors.`),
  retired: () => "It is not used any more.",
};
const SETTINGS = {
  lease_seconds: ["A lease lasts, seconds", { min: 10, max: 3600, required: true }],
  max_lease_seconds: ["It can be renewed for, seconds", { min: 10, max: 604800, required: true }],
  rest_seconds: ["A session rests after each use, seconds", { min: 0, max: 86400, required: true }],
  max_errors: ["Errors until it is blocked", { min: 1, max: 100, required: true }],
  blocked_rest_seconds: ["A blocked session rests, seconds; empty: it is retired", { min: 0 }],
  max_uses: ["Uses until it is retired; empty: never", { min: 1 }],
  max_age_days: ["Days until its state is too old; empty: never", { min: 1 }],
};

let again = () => {};

export async function show(main, { path: [, pool], params }, signal, stay) {
  document.title = `${pool ? `${shorten(pool, 60)} · ` : ""}Sessions · Scraping Data Service`;
  if (stay) {
    put(main, el("h1", { tabindex: -1 }, pool ?? "Sessions"), loading());
    const timer = setInterval(() => document.hidden || document.querySelector("dialog[open]") || again(), REFRESH_MS);
    stay.addEventListener("abort", () => clearInterval(timer));
  }
  const read = (given) => (pool === undefined ? showPools(main, given) : showPool(main, pool, params, given));
  again = () => read(signal).catch((error) => error.name !== "AbortError" && say(error.sentence ?? "The sessions could not be read.", "bad"));
  await read(signal);
}

function frame(main, pool, lead, tools, content) {
  put(main,
    el("div", { class: pool ? "heading group-heading" : "heading" },
      el("div", null,
        pool && el("nav", { class: "crumbs", "aria-label": "Where you are" }, el("a", { href: "#/sessions" }, "Sessions"), el("span", { "aria-hidden": "true" }, "/")),
        el("h1", { tabindex: -1 }, pool ? shorten(pool, 120) : "Sessions"), !pool && el("p", { class: "lead" }, lead)),
      pool && el("p", { class: "lead" }, lead),
      el("div", { class: "actions" }, tools)),
    content);
}

/** Change something, say what became of it, and show what is there now. */
async function change(work, done) {
  await work();
  await again();
  say(done);
}

// All pools

async function showPools(main, signal) {
  const pools = await get(["sessions"], {}, signal);
  const total = pools.reduce((sum, { sessions }) => sum + Object.values(sessions).reduce((a, b) => a + b, 0), 0);
  const lead = `${many(pools.length, "pool")}, ${many(total, "session")}`;
  frame(main, null, lead, may("write") && button("Add a session", () => edit("", "")), pools.length
    ? el("div", { class: "panel" }, scrolling("Pools", table("pools", ["Pool", ...Object.values(STATES).map(([name]) => [name])], pools.map(poolRow))))
    : el("section", { class: "panel empty" }, el("h2", null, "No sessions"), el("p", null,
      "A session is one account on a site: its cookies, local storage and user data. Workers lease one at a time from a pool. Add one here, or with ", el("code", null, "sds sessions put"), ".")));
  announce(lead);
}

const poolRow = ({ pool, sessions }) => row(null,
  rowHead(null, el("a", { href: link(["sessions", pool]) }, shorten(pool, 120))),
  Object.entries(STATES).map(([state, [name]]) => cell(name, "number", sessions[state] ? el("a", { href: link(["sessions", pool], { state }) }, count(sessions[state])) : faint("0"))));

// One pool

async function showPool(main, pool, { state, after }, signal) {
  const [pools, { items: sessions, next }] = await Promise.all([get(["sessions"], {}, signal), getPage(["sessions", pool], { state, limit: ROWS, cursor: after }, signal)]);
  const settings = pools.find((one) => one.pool === pool);
  const numbers = settings?.sessions ?? {};
  const lead = state ? `${many(numbers[state] ?? sessions.length, "session")} in the state ${STATES[state]?.[0] ?? state}` : many(Object.values(numbers).reduce((a, b) => a + b, 0), "session");
  const filter = el("select", { id: "session-state", "aria-label": "Show sessions in the state", onchange: () => go(["sessions", pool], { state: filter.value }) },
    el("option", { value: "" }, "All states"), Object.entries(STATES).map(([value, [name]]) => el("option", { value, selected: value === state }, name)));
  frame(main, pool, lead, [
    filter,
    may("write") && button("Add a session", () => edit(pool, "")),
    may("write") && settings && button("Settings", () => askSettings(settings)),
    may("delete") && button("Delete pool", () => confirm(`Delete ${shorten(pool, 60)}?`, "All its sessions and their secrets are deleted, and their leases end.", "Delete", async () => {
      await remove(["sessions", pool]);
      go(["sessions"]);
      say("The pool is deleted");
    }, pool), "quiet danger-text"),
  ], sessions.length
    ? el("div", { class: "panel" }, scrolling("Sessions", table("sessions", ["Session", "State", ["Uses"], ["Errors"], "Last used", "Holder", "Actions"], sessions.map((one) => sessionRow(pool, one, settings)))),
      (after || next) && el("nav", { class: "pager", "aria-label": "Pages" }, el("p", { class: "faint" }, `${many(sessions.length, "session")}, by name`), el("div", { class: "actions" },
        after && el("a", { class: "button", href: link(["sessions", pool], { state }) }, "First"),
        next && el("a", { class: "button", rel: "next", href: link(["sessions", pool], { state, after: next }) }, "Next"))))
    : el("section", { class: "panel empty" }, el("h2", null, state ? "No session is in this state" : "This pool has no sessions")));
  announce(lead);
}

function sessionRow(pool, one, settings) {
  const name = shorten(one.name, 60);
  const [word, kind] = STATES[one.state] ?? [one.state, ""];
  const until = one.state === "leased" ? one.lease_expires : one.rest_until;
  const action = (text, onclick, style = "quiet") => button(text, onclick, style, { "aria-label": `${text}: ${name}` });
  return row(null,
    rowHead(null, el("strong", null, shorten(one.name, 120)), one.note && el("div", { class: "faint text" }, shorten(one.note, 300))),
    cell("State", "", el("span", null, chip(word, kind), until && el("div", { class: "faint" }, "ends ", time(until, since(until))))),
    cell("Uses", "number", count(one.uses)),
    cell("Errors", "number", count(one.errors)),
    cell("Last used", "", one.last_used ? time(one.last_used, since(one.last_used)) : faint("never")),
    cell("Holder", "", one.owner ? el("span", { class: "text" }, shorten(one.owner, 120)) : faint(one.state === "leased" ? "not named" : "nobody")),
    cell("Actions", "tools-cell", el("span", { class: "actions" },
      may("write") && action("New state", () => edit(pool, one.name)),
      may("write") && settings && action("Mark", () => mark(settings, one)),
      may("delete") && action("Delete", () => confirm(`Delete ${name}?`, "Its state and user data are deleted, and its lease ends.", "Delete",
        () => change(() => remove(["sessions", pool, one.name]), "The session is deleted")), "quiet danger-text"))));
}

// Changing

/** Ask for the browser state of a session, pasted, dropped or chosen, and store it. */
function edit(pool, name) {
  const text = el("textarea", { id: "session-text", name: "text", rows: 6, spellcheck: "false", placeholder: '{"cookies": [ … ], "origins": [ … ]}', autofocus: Boolean(name) });
  const take = async (file) => file && (text.value = await file.text());
  const file = el("input", { id: "session-file", type: "file", accept: ".json,.txt,application/json,text/plain", onchange: () => take(file.files[0]) });
  const input = (id, title, value, props) => field(title, el("input", { id: `session-${id}`, name: id, value, autocapitalize: "none", autocomplete: "off", spellcheck: "false", ...props }));
  const dialog = askInDialog("small", name ? `A new state for ${shorten(name, 60)}` : "Add a session", [
    !name && input("pool", "Pool: the site, or site and country", pool, { required: true, maxlength: 128, autofocus: !pool }),
    !name && input("name", "Name: the account", "", { required: true, maxlength: 128, autofocus: Boolean(pool) }),
    !name && input("note", "Note", "", { maxlength: 1000 }),
    el("p", { class: "hint" }, "Playwright's storageState, cookies.txt, or cookies as JSON from EditThisCookie, Cookie-Editor, Puppeteer or the DevTools protocol. Drop a file on the text, choose one, or paste it. It is never shown again."),
    field("File", file),
    field(name ? "State" : "State; without one, the account waits for a login", text),
  ], [closeButton("Cancel"), el("button", { class: "primary" }, "Save")], (data) => {
    const given = data.get("text").trim();
    if (name && !given) throw problem("Paste the new state, or choose a file.");
    const target = ["sessions", name ? pool : data.get("pool").trim(), name || data.get("name").trim()];
    const body = { ...(given ? { storage_state: readState(given) } : { state: "needs_login" }), ...(!name && data.get("note") && { note: data.get("note") }), ...(!name && { if_version: 0 }) };
    return change(() => write(target, body), `${shorten(target[2], 60)} is saved`);
  });
  text.addEventListener("dragover", (event) => event.preventDefault());
  text.addEventListener("drop", (event) => {
    if (!event.dataTransfer.files.length) return; // a text, which the browser puts where it was dropped
    event.preventDefault();
    take(event.dataTransfer.files[0]);
  });
  return dialog;
}

function mark(settings, one) {
  const choice = ([state, meaning]) => el("div", { class: "check choice" },
    el("input", { type: "radio", id: `mark-${state}`, name: "state", value: state, required: true, checked: state === one.state, "aria-describedby": `mean-${state}` }),
    el("div", null, el("label", { for: `mark-${state}` }, STATES[state][0]), el("div", { id: `mean-${state}`, class: "faint" }, meaning(settings))));
  askInDialog("small", `Mark ${shorten(one.name, 60)}`, [
    one.state === "leased" && el("p", { class: "hint" }, "It is leased: the worker goes on, and what it saves later is dropped."),
    el("fieldset", null, el("legend", null, "State"), Object.entries(MARKS).map(choice)),
    field("Note", el("input", { id: "mark-note", name: "note", value: one.note, maxlength: 1000 })),
  ], [closeButton("Cancel"), el("button", { class: "primary" }, "Save")],
    (data) => change(() => write(["sessions", settings.pool, one.name], { state: data.get("state"), note: data.get("note") }), `${shorten(one.name, 60)} is marked`));
}

function askSettings(settings) {
  const number = ([name, [title, props]]) => field(title, el("input", { id: `pool-${name}`, name, type: "number", step: 1, value: settings[name] ?? "", ...props }));
  askInDialog("small", `Settings of ${shorten(settings.pool, 60)}`, Object.entries(SETTINGS).map(number),
    [closeButton("Cancel"), el("button", { class: "primary" }, "Save")],
    (data) => change(() => write(["sessions", settings.pool], Object.fromEntries(Object.keys(SETTINGS).map((name) => [name, data.get(name) === "" ? null : Number(data.get(name))]))), "The settings are saved"));
}
