// Items by day, as bars: created below, changed on top.

import { el, put, svg } from "./dom.js";
import { compact, count, day, shortDay } from "./format.js";

const DAY = 86_400_000;

const today = () => Math.floor(Date.now() / DAY) * DAY;
const words = ({ created, changed }) => `${count(created)} created, ${count(changed)} changed`;
const sum = (bars) => bars.reduce((a, b) => ({ created: a.created + b.created, changed: a.changed + b.changed }), { created: 0, changed: 0 });

/** Return one bar a day from `from` to today, without gaps; weeks or months where days would be too many. */
function toBars(days, from) {
  const span = (today() - from) / DAY;
  const start = span <= 92 ? (t) => t : span <= 800 ? weekStart : monthStart;
  const bars = new Map();
  for (let t = from; t <= today(); t += DAY) bars.set(start(t), { start: start(t), created: 0, changed: 0 });
  for (const { date, created, changed } of days) {
    const bar = bars.get(start(Date.parse(date)));
    if (bar) {
      bar.created += created;
      bar.changed += changed;
    }
  }
  const unit = span <= 92 ? "" : span <= 800 ? "week of " : "month from ";
  return [...bars.values()].map((bar) => ({ ...bar, label: unit + day(bar.start) }));
}

const weekStart = (t) => t - ((Math.floor(t / DAY) + 3) % 7) * DAY; // 1 January 1970 was a Thursday
const monthStart = (t) => Date.UTC(new Date(t).getUTCFullYear(), new Date(t).getUTCMonth());

/** Return a small picture of the last 30 days. */
export function spark(days) {
  const bars = toBars(days, today() - 29 * DAY);
  const top = Math.max(1, ...bars.map((bar) => bar.created + bar.changed));
  const picture = svg("svg", {
    class: "spark", preserveAspectRatio: "xMinYMid", viewBox: "0 0 180 36", width: 180, height: 36, role: "img", "aria-label": `Last 30 days: ${words(sum(bars))}`,
  });
  bars.forEach((bar, i) => picture.append(...stack(bar, i * 6, 4, 35, 34 / top)));
  return picture;
}

/** Return the rectangles of one bar that stands on `bottom`; a day without anything gets a dot of a line. */
function stack({ created, changed }, x, width, bottom, scale) {
  if (!created && !changed) return [svg("rect", { class: "none", x, y: bottom - 1, width, height: 1 })];
  const low = created && Math.max(1.5, created * scale);
  const high = changed && Math.max(1.5, changed * scale);
  return [
    created && svg("rect", { class: "created", x, y: bottom - low, width, height: low }),
    changed && svg("rect", { class: "changed", x, y: bottom - low - high, width, height: high }),
  ].filter(Boolean);
}

/** Return a chart of all days; `linkTo(date)` is where a bar leads. */
export function dayChart(days, linkTo) {
  const first = days.length ? Date.parse(days[0].date) : today();
  const bars = toBars(days, Math.min(first, today() - 29 * DAY));
  const total = `${words(sum(bars))} since ${bars[0].label}`;
  const readout = el("p", { class: "readout" }, total);
  const holder = el("div", { class: "plot" });
  const draw = () => put(holder, plot(bars, holder.clientWidth || 600, linkTo, (bar) => {
    readout.textContent = bar ? `${bar.label}: ${words(bar)}` : total;
  }));
  let width = 0;
  new ResizeObserver(() => {
    if (holder.clientWidth !== width) {
      width = holder.clientWidth;
      draw();
    }
  }).observe(holder);
  return el("div", { class: "chart" },
    el("div", { class: "legend" },
      el("span", { class: "key created" }, "Created"), el("span", { class: "key changed" }, "Changed"), readout),
    holder,
    el("details", { class: "as-table" }, el("summary", null, "As a table"), asTable(bars)));
}

function plot(bars, width, linkTo, show) {
  const height = 196, left = 40, right = 4, top = 10, bottom = height - 24;
  const most = niceTop(Math.max(...bars.map((bar) => bar.created + bar.changed)));
  const step = (width - left - right) / bars.length;
  const thick = Math.max(1, Math.min(28, step * 0.72));
  const y = (value) => bottom - (value / most) * (bottom - top);
  const picture = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group", "aria-label": "Items by day. Arrow keys move between bars." });
  for (const value of [0, most / 2, most]) {
    if (Number.isInteger(value)) {
      picture.append(
        svg("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
        svg("text", { class: "tick", x: left - 8, y: y(value) + 4, "text-anchor": "end" }, compact(value)));
    }
  }
  const every = Math.ceil(bars.length / Math.max(2, Math.floor((width - left) / 90)));
  bars.forEach((bar, i) => {
    const x = left + i * step;
    const fromEnd = bars.length - 1 - i;
    if (fromEnd % every === 0) {
      const anchor = fromEnd === 0 ? "end" : "middle";
      picture.append(svg("text", { class: "tick", x: fromEnd === 0 ? width - right : x + step / 2, y: height - 6, "text-anchor": anchor }, shortDay(bar.start)));
    }
    const date = new Date(bar.start).toISOString().slice(0, 10);
    const link = svg("a", {
      href: linkTo(date), tabindex: fromEnd === 0 ? 0 : -1, "aria-label": `${bar.label}: ${words(bar)}. Show its items.`,
      onfocus: () => show(bar), onblur: () => show(null), onmouseenter: () => show(bar), onmouseleave: () => show(null),
    },
      svg("rect", { class: "hit", x, y: top, width: step, height: bottom - top }),
      stack(bar, x + (step - thick) / 2, thick, bottom, (bottom - top) / most));
    picture.append(link);
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

/** Return the next of 2, 4, 6, 8, 10, 20, 40, … at or over a value: its half is a round number too. */
function niceTop(value) {
  const power = 10 ** Math.floor(Math.log10(Math.max(2, value)));
  return [1, 2, 4, 6, 8, 10].map((n) => n * power).find((n) => n >= value && n > 1);
}

function asTable(bars) {
  const rows = bars.filter((bar) => bar.created || bar.changed).reverse();
  if (!rows.length) return el("p", null, "No changes yet.");
  return el("table", null,
    el("thead", null, el("tr", null, ["Day", "Created", "Changed"].map((name) => el("th", { scope: "col" }, name)))),
    el("tbody", null, rows.map((bar) =>
      el("tr", null, el("th", { scope: "row" }, bar.label), el("td", { class: "number" }, count(bar.created)), el("td", { class: "number" }, count(bar.changed))))));
}

