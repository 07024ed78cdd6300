// Elements. Children that are not nodes become text, never HTML: what is shown was scraped.

import { inUtc, when } from "./format.js";

const SVG = "http://www.w3.org/2000/svg";

export const el = (name, props, ...children) => fill(document.createElement(name), props, children);
export const svg = (name, props, ...children) => fill(document.createElementNS(SVG, name), props, children);

/** Set attributes and listeners (`onclick: function`), then append the children; null ones are left out. */
function fill(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  return put(node, children);
}

/** Replace what a node holds; children that are null or false are left out. The focus stays where it was in it. */
export function put(node, ...children) {
  const focused = node !== document.activeElement && node.contains(document.activeElement) && document.activeElement;
  node.replaceChildren(...children.flat(2).filter((child) => child != null && child !== false));
  if (focused) focusLike(node, focused);
  return node;
}

const nameOf = (control) => control.id || control.getAttribute("aria-label") || control.title || control.textContent;

/** Focus what took the place of a control that is gone, else the heading above it. */
function focusLike(node, gone) {
  const alike = [...node.querySelectorAll(gone.localName)].filter((one) => nameOf(one) === nameOf(gone));
  (alike.find((one) => one.href === gone.href) ?? alike[0])?.focus({ preventScroll: true });
  if (!node.contains(document.activeElement)) focusHeading(node);
}

/** Focus the heading above a node that is gone or hidden. */
export const focusHeading = (node) => node.closest(".outputs, dialog, main")?.querySelector("h1[tabindex], h2[tabindex]")?.focus();

/** Return a link to an address elsewhere, or its text alone where it is not plain http or https. */
export function outside(address, text = address) {
  return isWebAddress(address)
    ? el("a", { href: address, rel: "noopener noreferrer", target: "_blank", class: "outside" }, text)
    : el("span", null, text);
}

export function isWebAddress(text) {
  if (typeof text !== "string" || !/^https?:\/\/[^\s]+$/i.test(text)) return false;
  const url = URL.parse ? URL.parse(text) : tryParse(text);
  return url !== null && (url.protocol === "http:" || url.protocol === "https:");
}

function tryParse(text) {
  try {
    return new URL(text);
  } catch {
    return null;
  }
}

/** Return a date and time as text in local time, in UTC when pointed at. */
export const time = (text, shown = when(text)) => el("time", { datetime: text, title: inUtc(text) }, shown);

export const chip = (text, kind = "") => el("span", { class: `chip ${kind}` }, text);
export const faint = (text) => el("span", { class: "faint" }, text);
export const fact = (name, ...value) => el("div", null, el("dt", null, name), el("dd", null, ...value));

/** Return what is shown until something is read. */
export const loading = () => el("div", { class: "panel loading", "aria-hidden": "true" });

/** Return a bar that is filled to a share from 0 to 1. */
export const meter = (share, kind = "done") => svg("svg", { class: "meter", viewBox: "0 0 64 6", width: 64, height: 6, "aria-hidden": "true" },
  svg("rect", { class: "none", width: 64, height: 6, rx: 3 }), svg("rect", { class: kind, width: 64 * share, height: 6, rx: 3 }));

/** Return a table whose rows become cards on a phone: `head` is the names, a name in an array is a number's. */
export function table(kind, head, rows) {
  // The roles keep it a table for those who listen, also where the style makes cards of it.
  return el("table", { class: `${kind} cards`, role: "table" },
    el("thead", { role: "rowgroup" }, el("tr", { role: "row" }, head.map((name) =>
      el("th", { scope: "col", role: "columnheader", class: Array.isArray(name) && "number" }, ...[name].flat())))),
    rows instanceof Node ? rows : el("tbody", { role: "rowgroup" }, rows));
}

/** Return a table that scrolls in its own frame. */
export const scrolling = (label, shown) => el("div", { class: "scroll", role: "region", tabindex: 0, "aria-label": label }, shown);

/** Hide the rows whose name does not contain `name`; show the note that says so where none is left. */
export function filterRows(place, name) {
  const rows = [...place.querySelectorAll("tr[data-name]")];
  for (const one of rows) one.hidden = !one.dataset.name.includes(name.toLowerCase());
  const note = place.querySelector(".none-found");
  if (note) note.hidden = rows.some((one) => !one.hidden);
}

export const row = (props, ...cells) => el("tr", { role: "row", ...props }, ...cells);
export const rowHead = (props, ...children) => el("th", { scope: "row", role: "rowheader", ...props }, ...children);
export const cell = (label, kind, ...children) => el("td", { role: "cell", "data-label": label, class: kind || false }, ...children);

/** Return where messages go: beside an open dialog nothing is heard, and nothing can be clicked. */
export const front = () => [...document.querySelectorAll("dialog[open]")].at(-1) ?? document.body;

const status = document.getElementById("status");
const SAY_MS = 100; // a status that has just been moved or emptied is not heard at once

/** Tell people who listen instead of look; the same text twice is said twice. */
export function announce(text) {
  if (status.parentElement !== front()) front().append(status);
  status.textContent = "";
  clearTimeout(announce.timer);
  announce.timer = setTimeout(() => (status.textContent = text), SAY_MS);
}

/** Return a button of the class `kind`; `props` are its other attributes. */
export const button = (text, onclick, kind = "", props = null) => el("button", { type: "button", class: kind || false, onclick, ...props }, text);

/** Return a button that copies what `text()` gives, or nothing where the browser has no clipboard for us. */
export function copyButton(label, text, kind = "quiet", props = null) {
  if (!navigator.clipboard) return null;
  const copy = button(label, async () => {
    try {
      await navigator.clipboard.writeText(text());
      copy.textContent = "Copied";
    } catch {
      copy.textContent = "Not allowed";
    }
    announce(copy.textContent);
    setTimeout(() => (copy.textContent = label), 1500);
  }, kind, props);
  return copy;
}
