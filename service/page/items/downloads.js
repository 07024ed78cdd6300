// Takes a view away as a file: everything that its filters match, with progress.

import { call } from "../base/api.js";
import { askInDialog, closeButton, field, say } from "../base/dialogs.js";
import { el, put } from "../base/dom.js";
import { count, many, shorten, size } from "../base/format.js";
import { orderOf } from "./paging.js";

const FORMATS = {
  csv: { title: "CSV", type: "text/csv" },
  // A text that begins with = is a formula to a spreadsheet, and scraped: an apostrophe before it disarms it.
  sheet: { title: "CSV for spreadsheets, without formulas", type: "text/csv", params: { format: "csv", safe: "true" } },
  ndjson: { title: "NDJSON, one item per line", type: "application/x-ndjson" },
  json: { title: "JSON", type: "application/json" },
};

const FOLDED = 1000; // pieces of up to 64 KB

/** Ask for format and columns, then read the export and hand it to the browser. */
export function offerDownload(desk) {
  const stop = new AbortController();
  const progress = el("p", { class: "progress", role: "status" });
  const start = el("button", { class: "primary" }, "Download");
  const filtered = Object.values(desk.filters).some(Boolean);
  const dialog = askInDialog("small", "Download", [
    el("p", null, filtered ? "Every item that matches the filters, on all pages." : `All ${many(desk.view.stats?.items ?? 0, "item")} of this group.`),
    field("Format",
      el("select", { id: "download-format", name: "format", autofocus: true }, Object.entries(FORMATS).map(([value, { title }]) => el("option", { value }, title)))),
    field("Columns",
      el("select", { id: "download-fields", name: "fields" }, el("option", { value: "shown" }, `Those of the table (${desk.columns.length})`), el("option", { value: "all" }, "All"))),
    progress,
  ], [closeButton("Cancel"), start], async (data) => {
    start.disabled = true;
    try {
      const { type, params } = FORMATS[data.get("format")];
      const query = { format: data.get("format"), ...params };
      const blob = await read(desk, query, type, data.get("fields") === "shown", progress, stop.signal, filtered ? 0 : desk.view.stats?.items);
      saveAs(blob, `${desk.view.group.replace(/[^\w.-]+/g, "_").slice(0, 80) || "items"}.${query.format}`);
    } catch (error) {
      if (stop.signal.aborted) return;
      start.disabled = false;
      put(progress, el("span", { class: "problem" }, error.sentence ?? "The download stopped half-way. Try again."));
      return false;
    }
  });
  dialog.addEventListener("close", () => stop.abort());
}

async function read(desk, query, type, onlyShown, progress, signal, total) {
  const { until, ...filters } = desk.filters;
  const order = orderOf(desk.params) === "desc" || until ? "desc" : "";
  // A path with a dot or comma inside a name cannot be asked for: then everything comes.
  const plain = !desk.columns.some((path) => path.includes("\\"));
  const fields = onlyShown && plain ? ["id", ...desk.columns].join(",") : "";
  const response = await call("GET", ["outputs", desk.view.group, "export"], { params: { ...filters, ...query, order, cursor: until, fields }, signal, isExport: true });
  const parts = [];
  const hasLines = query.format !== "json";
  let bytes = 0, lines = 0;
  const bar = el("progress", total ? { max: total, value: 0, "aria-label": "Items read" } : { "aria-label": "Reading" });
  const text = el("span");
  put(progress, bar, text);
  for (const reader = response.body.getReader(); ;) {
    const { done, value } = await reader.read();
    if (done) break;
    parts.push(value);
    if (parts.length === FOLDED) parts.splice(0, FOLDED, new Blob(parts)); // which the browser can keep on disk
    bytes += value.length;
    for (let i = value.indexOf(10); i >= 0; i = value.indexOf(10, i + 1)) lines += 1;
    if (total && hasLines) bar.value = Math.min(total, lines);
    text.textContent = hasLines ? `${count(lines)} lines, ${size(bytes)}` : size(bytes);
  }
  return new Blob(parts, { type });
}

/** Hand a file to the browser. */
export function saveAs(blob, name) {
  const url = URL.createObjectURL(blob);
  el("a", { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 60_000);
  say(`${shorten(name, 80)} (${size(blob.size)}) is downloaded`);
}
