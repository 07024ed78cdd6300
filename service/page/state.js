// Cookies and local storage: tables whose values stay hidden until asked for.

import { get } from "./api.js";
import { announce, el, put } from "./dom.js";
import { count, many, shorten, when } from "./format.js";
import { go } from "./place.js";

const ROWS = 200;
const MASK = "••••••••";

const KINDS = {
  cookies: {
    title: "Cookies", one: "cookie", named: "name",
    expired: ({ expires }) => expires >= 0 && expires * 1000 < Date.now(),
    until: ({ expires }) => (expires < 0 ? "session" : when(expires * 1000)),
    more: [["Flags", (cookie) => el("span", { class: "chips" }, cookie.secure && chip("Secure"), cookie.http_only && chip("HttpOnly"))]],
  },
  "local-storage": {
    title: "Local storage", one: "entry", many: "entries", named: "key",
    expired: ({ expires }) => expires !== null && Date.parse(expires) < Date.now(),
    until: ({ expires }) => (expires === null ? "never" : when(expires)),
    more: [["Updated", (entry) => el("time", { datetime: entry.update_date, title: entry.update_date }, when(entry.update_date))]],
  },
};

const chip = (text, kind = "") => el("span", { class: `chip ${kind}` }, text);

export async function showState(main, { path, params }, signal) {
  const kind = KINDS[path[0]];
  document.title = `${kind.title} · Scraping Data Service`;
  if (!main.querySelector(`[data-view="${path[0]}"]`)) {
    put(main, el("h1", { tabindex: -1 }, kind.title), el("div", { class: "panel loading", "aria-hidden": "true" }));
  }
  const records = await get([path[0]], { domain: params.domain, active: params.active }, signal);
  const found = many(records.length, kind.one, kind.many);
  const focused = main.contains(document.activeElement) ? document.activeElement.id : "";
  put(main,
    el("div", { class: "heading", "data-view": path[0] },
      el("div", null, el("h1", { tabindex: -1 }, kind.title), el("p", { class: "lead" }, found))),
    filters(path, params),
    records.length ? table(kind, records) : el("section", { class: "panel empty" },
      el("h2", null, `No ${kind.title.toLowerCase()}`),
      el("p", null, params.domain || params.active ? "Nothing matches these filters." : "Scrapers store it with ", !(params.domain || params.active) && el("code", null, `POST /v1/${path[0]}`))));
  if (focused) document.getElementById(focused)?.focus();
  announce(found);
}

function filters(path, params) {
  const domain = el("input", { id: "domain", value: params.domain ?? "", placeholder: ".shop.example", autocapitalize: "none", spellcheck: "false" });
  const active = el("input", { id: "active", type: "checkbox", checked: params.active === "true" });
  return el("form", {
    class: "filters panel",
    onsubmit: (event) => {
      event.preventDefault();
      go(path, { domain: domain.value.trim(), active: active.checked && "true" });
    },
  },
    el("div", { class: "field wide" }, el("label", { for: "domain" }, "Domain, exactly"), domain),
    el("div", { class: "check" }, active, el("label", { for: "active" }, "Not expired only")),
    el("button", { id: "apply", class: "primary" }, "Apply"));
}

function table(kind, records) {
  let open = false;
  const head = ["Domain", kind.named === "name" ? "Name" : "Key", "Value", "Path", "Expires", ...kind.more.map(([title]) => title)];
  const body = el("tbody", { role: "rowgroup" });
  const secrets = [];
  const more = el("button", { type: "button", onclick: () => add() });
  const all = el("button", {
    type: "button", "aria-pressed": "false", onclick: () => {
      open = !open;
      secrets.forEach((set) => set(open));
      all.setAttribute("aria-pressed", open);
      all.textContent = open ? "Hide all values" : "Show all values";
    },
  }, "Show all values");

  function add() {
    const from = body.children.length;
    body.append(...records.slice(from, from + ROWS).map(row));
    const left = records.length - body.children.length;
    more.hidden = left === 0;
    more.textContent = `Show ${count(Math.min(left, ROWS))} of ${count(left)} more`;
  }

  function row(record) {
    const name = record[kind.named];
    const value = el("code", { class: "secret" });
    const toggle = el("button", { type: "button", class: "quiet", onclick: () => set(toggle.getAttribute("aria-pressed") !== "true") });
    const set = (visible) => {
      // The text is in the document only while it is asked for.
      value.textContent = visible ? record.value || "(empty)" : MASK;
      toggle.textContent = visible ? "Hide" : "Show";
      toggle.setAttribute("aria-pressed", visible);
      toggle.setAttribute("aria-label", `${visible ? "Hide" : "Show"} the value of ${shorten(name, 80)}`);
    };
    set(open);
    secrets.push(set);
    const cell = (i, ...children) => el("td", { role: "cell", "data-label": head[i] }, ...children);
    return el("tr", { role: "row" },
      el("th", { scope: "row", role: "rowheader" }, shorten(record.domain, 120)),
      cell(1, el("span", { class: "text" }, shorten(name, 120))),
      cell(2, el("span", { class: "masked" }, value, toggle)),
      cell(3, el("span", { class: "text" }, shorten(record.path, 120) || "/")),
      cell(4, el("span", null, kind.until(record), " ", kind.expired(record) && chip("expired", "bad"))),
      kind.more.map(([, show], i) => cell(5 + i, show(record))));
  }

  add();
  return el("div", { class: "panel" },
    el("div", { class: "heading tools" }, el("h2", null, "Stored"), all),
    el("div", { class: "scroll", role: "region", tabindex: 0, "aria-label": kind.title },
      el("table", { class: "cards", role: "table" },
        el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, head.map((name) => el("th", { scope: "col", role: "columnheader" }, name)))),
        body)),
    el("p", { class: "actions" }, more));
}
