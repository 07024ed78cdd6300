// Cookies and local storage: values stay hidden until asked for; one record can be copied or deleted.

import { get, remove, toJson } from "./api.js";
import { confirm, say } from "./dialogs.js";
import { announce, cell, chip, copyButton, el, put, row, rowHead, table, time } from "./dom.js";
import { saveAs } from "./downloads.js";
import { count, many, shorten, when } from "./format.js";
import { go } from "./place.js";
import { may } from "./session.js";

const ROWS = 200;
const MASK = "••••••••";
const SHORT = 80; // of a value when all are shown

const KINDS = {
  cookies: {
    title: "Cookies", one: "cookie", named: "name", empty: "No cookies",
    expired: ({ expires }) => expires >= 0 && expires * 1000 < Date.now(),
    until: ({ expires }) => (expires < 0 ? "session" : when(expires * 1000)),
    more: [["Flags", (cookie) => el("span", { class: "chips" }, cookie.secure && chip("Secure"), cookie.http_only && chip("HttpOnly"))]],
    stored: "Scrapers store cookies with ",
  },
  "local-storage": {
    title: "Local storage", one: "entry", many: "entries", named: "key", empty: "No local storage",
    expired: ({ expires }) => expires !== null && Date.parse(expires) < Date.now(),
    until: ({ expires }) => (expires === null ? "never" : when(expires)),
    more: [["Updated", (entry) => time(entry.update_date)]],
    stored: "Scrapers store entries with ",
  },
};

export async function showState(main, { path, params }, signal) {
  const kind = KINDS[path[0]];
  document.title = `${kind.title} · Scraping Data Service`;
  if (!main.querySelector(`[data-view="${path[0]}"]`)) {
    put(main, el("h1", { tabindex: -1 }, kind.title), el("div", { class: "panel loading", "aria-hidden": "true" }));
  }
  const records = await get([path[0]], { domain: params.domain, active: params.active }, signal);
  const found = many(records.length, kind.one, kind.many);
  const focused = main.contains(document.activeElement) ? document.activeElement.id : "";
  const again = () => dispatchEvent(new HashChangeEvent("hashchange"));
  put(main,
    el("div", { class: "heading", "data-view": path[0] },
      el("div", null, el("h1", { tabindex: -1 }, kind.title), el("p", { class: "lead" }, found)),
      records.length > 0 && el("button", { type: "button", onclick: () => saveStorageState(params.domain) },
        params.domain ? `storageState of ${shorten(params.domain, 40)}` : "storageState of all domains")),
    filters(path, params, records),
    records.length ? list(path[0], records, again) : nothing(kind, path[0], params));
  if (focused) document.getElementById(focused)?.focus();
  announce(found);
}

function nothing(kind, name, params) {
  const filtered = params.domain || params.active;
  return el("section", { class: "panel empty" }, el("h2", null, kind.empty), filtered
    ? el("p", null, "Nothing matches these filters.")
    : el("p", null, kind.stored, el("code", null, `POST /v1/${name}`), "."));
}

/** Download cookies and local storage as Playwright loads them. */
async function saveStorageState(domain) {
  try {
    const state = await get(["storage-state"], { domain: domain?.replace(/^\./, "") });
    saveAs(new Blob([toJson(state)], { type: "application/json" }), `storage-state${domain ? `-${domain.replace(/[^\w.-]+/g, "_").replace(/^\./, "")}` : ""}.json`);
  } catch (error) {
    say(error.sentence ?? "Something went wrong.", "bad");
  }
}

function filters(path, params, records) {
  const domains = [...new Set(records.map(({ domain }) => domain))].slice(0, 200);
  const domain = el("input", { id: "domain", value: params.domain ?? "", placeholder: ".shop.example", list: "domains", autocapitalize: "none", autocomplete: "off", spellcheck: "false" });
  const active = el("input", { id: "active", type: "checkbox", checked: params.active === "true" });
  return el("form", {
    class: "filters panel",
    onsubmit: (event) => {
      event.preventDefault();
      go(path, { domain: domain.value.trim(), active: active.checked && "true" });
    },
  },
    el("div", { class: "field wide" }, el("label", { for: "domain" }, "Domain, exactly"), domain, el("datalist", { id: "domains" }, domains.map((value) => el("option", { value })))),
    el("div", { class: "check" }, active, el("label", { for: "active" }, "Not expired only")),
    el("button", { id: "apply", class: "primary" }, "Apply"));
}

function list(name, records, again) {
  const kind = KINDS[name];
  let open = false;
  const head = ["Domain", kind.named === "name" ? "Name" : "Key", "Value", "Path", "Expires", ...kind.more.map(([title]) => title), ""];
  const body = el("tbody", { role: "rowgroup" });
  const secrets = [];
  const more = el("button", { type: "button", onclick: () => add() });
  const all = el("button", {
    type: "button", "aria-pressed": "false", onclick: () => {
      open = !open;
      secrets.forEach((set) => set(open, SHORT));
      all.setAttribute("aria-pressed", open);
      all.textContent = open ? "Hide all values" : "Show all values";
    },
  }, "Show all values");

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
    const toggle = el("button", { type: "button", class: "quiet", onclick: () => set(toggle.getAttribute("aria-pressed") !== "true") });
    const set = (visible, longest = Infinity) => {
      // The text is in the document only while it is asked for.
      value.textContent = visible ? shorten(record.value, longest) || "(empty)" : MASK;
      toggle.textContent = visible ? "Hide" : "Show";
      toggle.setAttribute("aria-pressed", visible);
      toggle.setAttribute("aria-label", `${visible ? "Hide" : "Show"} the value of ${title}`);
    };
    set(open, SHORT);
    secrets.push(set);
    const copy = copyButton("Copy", () => toJson(record));
    copy?.setAttribute("aria-label", `Copy ${title}`);
    return row(null,
      rowHead(null, shorten(record.domain, 120)),
      cell(head[1], "", el("span", { class: "text" }, shorten(record[kind.named], 120))),
      cell("Value", "", el("span", { class: "masked" }, value, toggle)),
      cell("Path", "", el("span", { class: "text" }, shorten(record.path, 120) || "/")),
      cell("Expires", "", el("span", null, kind.until(record), " ", kind.expired(record) && chip("expired", "bad"))),
      kind.more.map(([label, show]) => cell(label, "", show(record))),
      cell("", "tools-cell", el("span", { class: "actions" }, copy,
        may("delete") && el("button", { type: "button", class: "quiet danger-text", "aria-label": `Delete ${title}`, onclick: () => deleteRecord(name, record, again) }, "Delete"))));
  }

  add();
  return el("div", { class: "panel" },
    el("div", { class: "heading tools" }, el("h2", null, "Stored"), all),
    el("div", { class: "scroll", role: "region", tabindex: 0, "aria-label": kind.title }, table("state", head, body)),
    el("p", { class: "actions" }, more));
}

function deleteRecord(name, record, again) {
  const kind = KINDS[name];
  const title = shorten(record[kind.named], 80);
  confirm(`Delete ${title}?`, `The ${kind.one} of ${shorten(record.domain, 120)} is deleted for all scrapers of your organization.`, "Delete", async () => {
    await remove([name], { domain: record.domain, path: record.path || "/", [kind.named]: record[kind.named] });
    say(`${title} is deleted`);
    again();
  });
}
