// Bars over time: stacked series with a legend, a table of the same numbers, and one stop for the Tab key.

import { el, put, svg } from "./dom.js";
import { compact, count, day, many, shortDay } from "./format.js";

const DAY = 86_400_000;
const HEIGHT = 196;
const LABEL = 64; // the width of a day under a bar

/** What a bar is made of, from the bottom: the class of its colour and its name. */
const CREATED_AND_CHANGED = [["created", "Created"], ["changed", "Changed"]];

const today = () => Math.floor(Date.now() / DAY) * DAY;
const total = (bar, series) => series.reduce((sum, [name]) => sum + (bar[name] ?? 0), 0);

/** Return one bar a day from `from` to today, without gaps; weeks or months where days would be too many. */
function toBars(days, from, linkTo) {
  const span = (today() - from) / DAY;
  const start = span <= 92 ? (t) => t : span <= 800 ? weekStart : monthStart;
  const unit = span <= 92 ? "" : span <= 800 ? "week of " : "month from ";
  const counts = new Map(days.map((one) => [Date.parse(one.date), one]));
  const bars = new Map();
  let held = 0;
  for (let t = from; t <= today(); t += DAY) {
    const at = start(t);
    if (!bars.has(at)) bars.set(at, { label: unit + day(at), tick: shortDay(at), href: unit ? null : linkTo?.(new Date(at).toISOString().slice(0, 10)), created: 0, changed: 0 });
    const bar = bars.get(at);
    const { created = 0, changed = 0, net = 0 } = counts.get(t) ?? {};
    bar.created += created;
    bar.changed += changed;
    bar.held = held += net;
  }
  return [...bars.values()];
}

const weekStart = (t) => t - ((Math.floor(t / DAY) + 3) % 7) * DAY; // 1 January 1970 was a Thursday
const monthStart = (t) => Date.UTC(new Date(t).getUTCFullYear(), new Date(t).getUTCMonth());

/** Return a small picture of the last 30 days. */
export function spark(days) {
  const bars = toBars(days, today() - 29 * DAY);
  const top = Math.max(1, ...bars.map((bar) => total(bar, CREATED_AND_CHANGED)));
  const picture = svg("svg", {
    class: "spark", preserveAspectRatio: "xMinYMid", viewBox: "0 0 180 36", width: 180, height: 36, role: "img", "aria-label": `Last 30 days: ${sumOf(bars, CREATED_AND_CHANGED, count)}`,
  });
  bars.forEach((bar, i) => picture.append(...stack(bar, CREATED_AND_CHANGED, i * 6, 4, 35, 34 / top)));
  return picture;
}

/** Return a bar that lies: the parts of one whole, as shares of its width. */
export function shares(values, series, text) {
  const whole = total(values, series);
  const picture = svg("svg", { class: "shares", viewBox: "0 0 200 10", preserveAspectRatio: "none", role: "img", "aria-label": text });
  let x = 0;
  for (const [name] of series) {
    const width = whole ? (200 * (values[name] ?? 0)) / whole : 0;
    if (width) picture.append(svg("rect", { class: name, x, y: 0, width: Math.max(width, 1.5), height: 10 }));
    x += width;
  }
  if (!whole) picture.append(svg("rect", { class: "none", x: 0, y: 0, width: 200, height: 10 }));
  return picture;
}

const words = (bar, series, format) => series.map(([name, title]) => (series.length > 1 ? `${format(bar[name] ?? 0)} ${title.toLowerCase()}` : format(bar[name] ?? 0))).join(", ");
const sumOf = (bars, series, format) => words(Object.fromEntries(series.map(([name]) => [name, bars.reduce((sum, bar) => sum + (bar[name] ?? 0), 0)])), series, format);

/** Return the rectangles of one bar that stands on `bottom`; a bar without anything gets a dot of a line. */
function stack(bar, series, x, width, bottom, scale) {
  const parts = [];
  let y = bottom;
  for (const [name] of series) {
    if (!bar[name]) continue;
    const height = Math.max(1.5, bar[name] * scale);
    y -= height;
    parts.push(svg("rect", { class: name, x, y, width, height }));
  }
  return parts.length ? parts : [svg("rect", { class: "none", x, y: bottom - 1, width, height: 1 })];
}

/** Return a chart of what each day changed, whose bars lead to `linkTo(date)` if they are days, and one of what was held at its end. */
export function dayCharts(days, linkTo) {
  const first = days.length ? Date.parse(days[0].date) : today();
  const bars = toBars(days, Math.min(first, today() - 29 * DAY), linkTo);
  const [unit] = bars[0].label.match(/^(week|month)/) ?? ["day"];
  return [
    chart("Items by day", bars, CREATED_AND_CHANGED, { summary: `${sumOf(bars, CREATED_AND_CHANGED, count)} since ${bars[0].label}`, head: "Day" }),
    chart("Items held", bars.map((bar) => ({ ...bar, href: null })), [["held", `Held at the end of the ${unit}`]], { summary: `${many(bars.at(-1).held, "item")} today`, head: "Day" }),
  ];
}

/**
 * Return a chart of bars `{label, tick, href, [name of a series]: number}`.
 *
 * `format` writes a number, `most` is the top of the scale where it is known, `summary` is said while no bar is looked at.
 */
export function chart(title, bars, series, { format = count, most, summary = "", head = "Job" } = {}) {
  const readout = el("p", { class: "readout" }, summary);
  const holder = el("div", { class: "plot" });
  const show = (bar) => (readout.textContent = bar ? `${bar.label}: ${words(bar, series, format)}` : summary);
  let width = 0;
  new ResizeObserver(() => {
    if (holder.clientWidth === width) return;
    width = holder.clientWidth;
    put(holder, plot(title, bars, series, width || 600, format, most, show));
  }).observe(holder);
  return el("div", { class: "chart" },
    el("div", { class: "legend" }, series.map(([name, text]) => el("span", { class: `key ${name}` }, text)), readout),
    holder,
    el("details", { class: "as-table" }, el("summary", null, "As a table"), asTable(bars, series, format, head)));
}

function plot(title, bars, series, width, format, known, show) {
  const left = 48, right = 4, top = 10, bottom = HEIGHT - 24;
  const most = known ?? niceTop(Math.max(...bars.map((bar) => total(bar, series))));
  const step = (width - left - right) / bars.length;
  const thick = Math.max(1, Math.min(28, step * 0.72));
  const y = (value) => bottom - (value / most) * (bottom - top);
  const picture = svg("svg", { width, height: HEIGHT, viewBox: `0 0 ${width} ${HEIGHT}`, role: "group", "aria-label": `${title}. Arrow keys move between bars.` });
  for (const value of [0, most / 2, most]) {
    if (!known && !Number.isInteger(value)) continue;
    picture.append(
      svg("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
      svg("text", { class: "tick", x: left - 8, y: y(value) + 4, "text-anchor": "end" }, format === count ? compact(value) : format(value)));
  }
  const every = Math.ceil(bars.length / Math.max(2, Math.floor((width - left) / 90)));
  let ticked = ""; // several crawls of one day have one label, under the first
  bars.forEach((bar, i) => {
    const x = left + i * step;
    const fromEnd = bars.length - 1 - i;
    if (fromEnd % every === 0 && bar.tick !== ticked) {
      ticked = bar.tick;
      const isCut = fromEnd === 0 && step < LABEL; // in the middle of a thin last bar it would not fit
      picture.append(svg("text", { class: "tick", x: isCut ? width - right : x + step / 2, y: HEIGHT - 6, "text-anchor": isCut ? "end" : "middle" }, bar.tick));
    }
    picture.append(svg("a", {
      href: bar.href, role: !bar.href && "img", tabindex: fromEnd === 0 ? 0 : -1, "aria-label": `${bar.label}: ${words(bar, series, format)}.${bar.href ? " Show its items." : ""}`,
      onfocus: () => show(bar), onblur: () => show(null), onmouseenter: () => show(bar), onmouseleave: () => show(null),
    },
      svg("rect", { class: "hit", x, y: top, width: step, height: bottom - top }),
      stack(bar, series, x + (step - thick) / 2, thick, bottom, (bottom - top) / most)));
  });
  picture.addEventListener("keydown", (event) => moveFocus(event, [...picture.querySelectorAll("a")]));
  return picture;
}

/** Let the chart be one stop for the Tab key, and the arrows move inside it. */
function moveFocus(event, links) {
  const now = links.indexOf(event.target.closest("a"));
  const next = { ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: links.length - 1 }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  const target = links[Math.min(links.length - 1, Math.max(0, next))];
  links.forEach((link) => link.setAttribute("tabindex", link === target ? 0 : -1));
  target.focus();
}

/** Return the next of 2, 3, 4, 5, 6, 8, 10, 20, 30, … at or over a value. */
function niceTop(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(2, value)));
  return [1, 2, 3, 4, 5, 6, 8, 10].map((n) => n * power).find((n) => n >= value && n > 1);
}

function asTable(bars, series, format, head) {
  const rows = bars.filter((bar) => total(bar, series)).reverse();
  if (!rows.length) return el("p", null, "No changes yet.");
  return el("table", null,
    el("thead", null, el("tr", null, [head, ...series.map(([, title]) => title)].map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", null, rows.map((bar) =>
      el("tr", null, el("th", { scope: "row" }, bar.label), series.map(([name]) => el("td", { class: "number" }, format(bar[name] ?? 0)))))));
}
