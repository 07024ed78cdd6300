// The settings of a group: retention, history, ignored fields, rules for its crawls, webhooks, and its end.

import { get, remove, sentenceOf, write } from "../base/api.js";
import { confirm, field, say } from "../base/dialogs.js";
import { announce, button, el, loading, put } from "../base/dom.js";
import { many, percent, shorten } from "../base/format.js";
import { go } from "../base/place.js";
import { may } from "../base/session.js";
import { drafts } from "../items/judging.js";
import { readJobs } from "./jobs.js";
import { isGood } from "./reviews.js";
import { webhooksPanel } from "./webhooks.js";

// What a rule checks: its name in the API, in words, whether it names a field, and how its value is written.
const CHECKS = {
  min_fill: ["is filled in at least", true, "share"],
  max_drop: ["is filled less than before by at most", true, "share"],
  type: ["has the type", true, "type"],
  min: ["is at least", true, "number"],
  max: ["is at most", true, "number"],
  min_items: ["Items: at least", false, "number"],
  max_missing: ["Missing items: at most", false, "share"],
  max_changed: ["Changed items: at most", false, "share"],
};
const TYPES = ["string", "number", "integer", "boolean", "array", "object"];
const USUALLY_FILLED = 0.5; // fields that are rarer get no rule
const MARGIN = 0.9; // of what the last good crawl reached

/** Return the counts and settings of a group. */
export const readSettings = (group, signal) => get(["groups", group], {}, signal);

/** Let two items that differ only in this field be the same. */
export async function ignoreField(group, path) {
  try {
    const { ignore } = await readSettings(group);
    if (!ignore.includes(path)) await write(["groups", group], { ignore: [...ignore, path] });
    say(`${shorten(path, 80)} is ignored: items that differ only there are unchanged.`, "", ["Undo", () => write(["groups", group], { ignore }).then(() => say("It counts again."), (error) => say(sentenceOf(error), "bad"))]);
  } catch (error) {
    say(sentenceOf(error), "bad");
  }
}

export async function show(view, params, signal, stay) {
  if (!stay) return;
  put(view.tab, loading());
  const kept = drafts.has(view.group);
  const [settings, webhooks] = await Promise.all([kept || readSettings(view.group, signal), webhooksPanel(view.group, signal)]);
  if (!kept) drafts.set(view.group, settingsForm(view, settings));
  const { section, note } = drafts.get(view.group);
  put(note, kept && ["Not saved yet ", button("Discard changes", () => drafts.delete(view.group) && show(view, params, undefined, stay), "quiet")]);
  put(view.tab, el("div", { class: "settings" }, section, webhooks, may("delete") && deletion(view)));
  stay.addEventListener("abort", () => {
    if (!drafts.get(view.group)?.isChanged()) return drafts.delete(view.group);
    say(`The changed settings of ${shorten(view.group, 60)} are not saved. They are kept until you close the page.`, "bad", ["Go back", () => go([...view.path, "settings"])]);
  });
  announce("Settings");
}

/** Return the form as `section`, `note` for what to say beside its button, and `isChanged`, which tells whether to save. */
function settingsForm(view, settings) {
  const number = (name, title, hint, max) => field(title,
    el("input", { id: `settings-${name}`, name, type: "number", min: name === "history_days" ? 0 : 1, max, value: settings[name] ?? "", "aria-describedby": `hint-${name}`, disabled: !may("write") }),
    el("p", { id: `hint-${name}`, class: "hint" }, hint));
  const ignore = el("textarea", { id: "settings-ignore", name: "ignore", rows: Math.max(2, settings.ignore.length + 1), spellcheck: "false", "aria-describedby": "hint-ignore", disabled: !may("write") }, settings.ignore.join("\n"));
  const rules = el("ul", { class: "rules" }, settings.rules.map(ruleLine));
  const problem = el("p", { class: "problem", role: "alert" });
  const note = el("span", { class: "faint" });
  const save = el("button", { class: "primary" }, "Save settings");
  const onsubmit = async (event) => {
    event.preventDefault();
    problem.textContent = "";
    save.disabled = true;
    try {
      const wanted = changes();
      await write(["groups", view.group], wanted);
      Object.assign(saved, wanted);
      put(note);
      say("The settings are saved");
    } catch (error) {
      problem.textContent = sentenceOf(error);
    } finally {
      save.disabled = false;
    }
  };
  const form = el("form", { class: "padded", onsubmit },
    el("div", { class: "two" },
      number("retention_days", "Delete items not scraped for (days)", "Without a number, items are kept for good.", 3650),
      number("history_days", "Keep earlier versions for (days)", "0 keeps none. With history, an item shows what changed.", 365),
      number("silent_hours", "Tell webhooks of silence after (hours)", "Nothing was written for so long. Without a number, it is no event.", 8760)),
    field("Ignored fields, one per line", ignore, el("p", { id: "hint-ignore", class: "hint" }, "Items that differ only there are unchanged and keep their approval: scraped_at, rank, …")),
    el("div", null, el("h3", null, "Rules"), el("p", { class: "hint" }, "A crawl that is finished is held against them. One that fails never deletes what it did not see."),
      rules,
      may("write") && el("p", { class: "actions" },
        button("Add a rule", () => rules.append(ruleLine({ path: "", min_fill: 0.9 }))),
        button("Propose from the last good crawl", () => propose(view, rules, lines(ignore.value)).catch((error) => (problem.textContent = sentenceOf(error)))))),
    problem,
    may("write") && el("p", { class: "actions" }, save, note));
  const days = (name) => (form.elements[name].value === "" ? null : Number(form.elements[name].value));
  const read = () => ({
    retention_days: days("retention_days"), history_days: days("history_days") ?? 0, silent_hours: days("silent_hours"), ignore: lines(ignore.value), rules: [...rules.children].map(readRule),
  });
  const saved = read();
  // Only what was changed here is sent: a token that may not delete may change the rest, and so may somebody else meanwhile.
  const changes = () => Object.fromEntries(Object.entries(read()).filter(([name, value]) => JSON.stringify(value) !== JSON.stringify(saved[name])));
  return { section: el("section", { class: "panel" }, el("h2", null, "Settings"), form), note, isChanged: () => Object.keys(changes()).length > 0 };
}

const lines = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);

/** Return a number without the error of a product: a share that is shown in percent is read as it was. */
const exact = (value) => Number(value.toPrecision(12));

/** Return a rule as a line of controls. */
function ruleLine(rule) {
  const name = Object.keys(CHECKS).find((check) => rule[check] !== undefined) ?? "min_fill";
  const item = el("li", { class: "rule" });
  const remove = () => {
    const next = (item.nextElementSibling ?? item.previousElementSibling ?? item.parentElement.nextElementSibling).querySelector("button");
    item.remove();
    next.focus();
  };
  const fill = (check, path, value) => {
    const [, hasPath, kind] = CHECKS[check];
    const select = el("select", { "aria-label": "Check", onchange: () => fill(select.value, item.querySelector("[data-path]")?.value ?? path, "") },
      Object.entries(CHECKS).map(([key, [text]]) => el("option", { value: key, selected: key === check }, text)));
    const input = kind === "type"
      ? el("select", { "data-value": "type", "aria-label": "Type" }, TYPES.map((type) => el("option", { selected: type === value }, type)))
      : el("input", { "data-value": kind, type: "number", step: "any", min: kind === "share" ? 0 : null, max: kind === "share" ? 100 : null, required: true, "aria-label": kind === "share" ? "Percent" : "Value", value: value === "" ? "" : kind === "share" ? exact(value * 100) : value });
    put(item,
      hasPath && el("input", { "data-path": "", required: true, "aria-label": "Field", placeholder: "price.amount", value: path, spellcheck: "false" }),
      select, el("span", { class: "joined" }, input, kind === "share" && el("span", { class: "unit" }, "%")),
      may("write") && button("✕", remove, "quiet danger-text", { "aria-label": "Remove this rule" }));
    item.dataset.check = check;
  };
  fill(name, rule.path ?? "", rule[name]);
  return item;
}

/** Return the rule that a line says. */
function readRule(item) {
  const { check } = item.dataset;
  const input = item.querySelector("[data-value]");
  const path = item.querySelector("[data-path]")?.value.trim();
  const value = { share: () => exact(Number(input.value) / 100), number: () => Number(input.value), type: () => input.value }[CHECKS[check][2]]();
  return { ...(path !== undefined && { path }), [check]: value };
}

/** Add rules that the last good crawl would have passed with a margin, for what has none yet. */
async function propose(view, rules, ignored) {
  const jobs = await readJobs(view.group);
  const isProven = ({ items, verdict, review }) => items > 0 && (verdict === "passed" || isGood(review?.status ?? ""));
  const job = jobs.find(isProven) ?? jobs.find(({ items, verdict }) => items > 0 && verdict !== "failed") ?? jobs[0];
  if (!job) return say("There is no crawl to learn from yet.", "bad");
  const { fields } = await get(["groups", view.group, "fields"], { job_id: job.job_id });
  const known = new Set([...rules.children].map((item) => `${item.dataset.check} ${item.querySelector("[data-path]")?.value ?? ""}`));
  const proposed = [
    { min_items: Math.floor(job.items * MARGIN) }, { max_missing: 0.2 },
    ...fields.filter(({ fill_rate, types }) => fill_rate >= USUALLY_FILLED && Object.keys(types).join() !== "object")
      .filter(({ path }) => !ignored.some((one) => isWithin(path, one.replace(/^data\./, "")))).slice(0, 90)
      .map(({ path, fill_rate }) => ({ path, min_fill: Math.floor(fill_rate * MARGIN * 100) / 100 })),
  ].filter((rule) => !known.has(`${Object.keys(rule).find((key) => key !== "path")} ${rule.path ?? ""}`));
  rules.append(...proposed.map(ruleLine));
  say(`${many(proposed.length, "rule")} proposed from ${shorten(job.job_id, 60)}, with ${percent(1 - MARGIN)} to spare. Save to use them.`);
}

const isWithin = (path, above) => path === above || path.startsWith(`${above}.`);

function deletion(view) {
  const ask = () => confirm(`Delete ${shorten(view.group, 60)}?`, "All its outputs, reviews and jobs are deleted. This cannot be undone.", "Delete the group", async () => {
    let more = true;
    while (more) ({ more } = await remove(["groups", view.group]));
    drafts.delete(view.group);
    say(`${shorten(view.group, 60)} is deleted`);
    go(["groups"]);
  }, view.group);
  return el("section", { class: "panel" }, el("h2", null, "Delete the group"),
    el("div", { class: "padded" }, el("p", null, "All outputs, reviews and jobs of this group go. Readers learn that its items were deleted."),
      el("p", { class: "actions" }, button("Delete this group", ask, "danger"))));
}
