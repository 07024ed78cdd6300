// Numbers, dates and paths as text.

const number = new Intl.NumberFormat("en");
const shortNumber = new Intl.NumberFormat("en", { notation: "compact", maximumFractionDigits: 1 });
const MOMENT = { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit" };
const moment = new Intl.DateTimeFormat("en-GB", MOMENT);
const utcMoment = new Intl.DateTimeFormat("en-GB", { ...MOMENT, second: "2-digit", timeZone: "UTC" });
const dayAndYear = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", year: "numeric", timeZone: "UTC" });
const dayOnly = new Intl.DateTimeFormat("en-GB", { day: "numeric", month: "short", timeZone: "UTC" });
const ago = new Intl.RelativeTimeFormat("en", { numeric: "auto" });

export const count = (value) => number.format(value);
export const compact = (value) => shortNumber.format(value);
export const many = (value, one, more = `${one}s`) => `${count(value)} ${value === 1 ? one : more}`;

/** Return "41 %"; a few of many are not "0 %", and nearly all are not "100 %". */
export function percent(share) {
  const rounded = Math.round(100 * share);
  if (rounded === 0 && share > 0) return "< 1 %";
  return rounded === 100 && share < 1 ? "> 99 %" : `${rounded} %`;
}

export const day = (date) => dayAndYear.format(date);
export const shortDay = (date) => dayOnly.format(date);

/** Return "15 Nov 2026, 01:48" in the time of the person's own clock, or the text itself where it is no date. */
export const when = (text) => written(moment, text);

/** Return "15 Nov 2026, 00:48:20 UTC". */
export const inUtc = (text) => `${written(utcMoment, text)} UTC`;

function written(format, text) {
  const date = new Date(text);
  return Number.isNaN(date.valueOf()) ? String(text) : format.format(date);
}

/** Return what names an item where its data are not read: its key, or its address where the key is a hash. */
export const keyOf = ({ key_hash, source_url }) => shorten(/^[0-9a-f]{64}$/.test(key_hash) && source_url ? source_url.replace(/^https?:\/\//i, "") : key_hash, 80);

/** Return who acts, by the label of a token: null is the service itself. */
export const actor = (label) => (label === null || label === undefined ? "the service" : label === "" ? "a token without a label" : shorten(label, 60));

/** Return "2 h 5 min" of milliseconds. */
export function duration(ms) {
  const minutes = Math.round(ms / 60_000);
  if (ms < 60_000) return `${Math.round(ms / 1000)} s`;
  return minutes < 60 ? `${minutes} min` : `${Math.floor(minutes / 60)} h${minutes % 60 ? ` ${minutes % 60} min` : ""}`;
}

/** Return "3.4 MB". */
export function size(bytes) {
  for (const [unit, one] of [["MB", 1e6], ["KB", 1e3]]) if (bytes >= one) return `${(bytes / one).toFixed(1)} ${unit}`;
  return `${bytes} bytes`;
}

/** Return "5 minutes ago" or "in 3 days". */
export function since(text) {
  const seconds = (new Date(text) - Date.now()) / 1000;
  for (const [unit, size] of [["day", 86400], ["hour", 3600], ["minute", 60]]) {
    if (Math.abs(seconds) >= size) return ago.format(Math.round(seconds / size), unit);
  }
  return "just now";
}

export function shorten(text, most) {
  return text.length <= most ? text : `${text.slice(0, most).replace(/[\ud800-\udbff]$/, "")}…`;
}

// Paths of columns: "data.price.amount". A dot, comma or backslash inside a key has a backslash before it.
export const joinPath = (keys) => keys.map((key) => key.replace(/[\\.,]/g, "\\$&")).join(".");
export const splitPath = (path) => splitAt(path, ".").map((key) => key.replace(/\\(.)/gs, "$1"));
export const splitPaths = (paths) => splitAt(paths, ",").filter(Boolean);

function splitAt(text, mark) {
  const parts = [""];
  for (let i = 0; i < text.length; i++) {
    if (text[i] === mark) parts.push("");
    else parts[parts.length - 1] += text[i] === "\\" ? text[i] + (text[++i] ?? "") : text[i];
  }
  return parts;
}

/** Return the value at a path's keys; only an object's own fields count, whatever they are called. */
export function at(value, keys) {
  for (const key of keys) {
    if (!isObject(value) || !Object.hasOwn(value, key)) return undefined;
    value = value[key];
  }
  return value;
}

export const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
