// The webhooks of a group: who is told when a crawl is finished or something changes, and whether it arrived.

import { get, post, remove, sentenceOf } from "../base/api.js";
import { askInDialog, checkbox, closeButton, confirm, field, say } from "../base/dialogs.js";
import { button, cell, chip, copyButton, el, faint, put, row, rowHead, scrolling, table, time } from "../base/dom.js";
import { many, shorten, since } from "../base/format.js";
import { may } from "../base/session.js";

const EVENTS = { "job.finished": "A crawl is finished", "job.failed": "A crawl has failed", "group.changed": "Items changed", "group.silent": "Nothing was written for long", "session.needs_login": "A session needs a login", "session.blocked": "A session is blocked", "pool.empty": "A pool has no session" };
const FORMATS = { standard: "A program (signed JSON)", slack: "Slack", discord: "Discord", teams: "Microsoft Teams" };
// What people want to be told; a program follows everything.
const FOR_PEOPLE = ["job.failed", "group.silent"];
const HOSTS = [["slack", /(^|\.)slack\.com$/], ["discord", /(^|\.)discord(app)?\.com$/], ["teams", /\.(office|office365|powerautomate|powerplatform|azure)\.com$/]];

/** Return a panel with the webhooks of a group and of the whole organization, or null where one may not see them. */
export async function webhooksPanel(group, signal) {
  const holder = el("section", { class: "panel" });
  const show = async (given) => {
    const found = await get(["webhooks"], {}, given);
    const own = found.filter(({ group_id }) => group_id == null || group_id === group);
    put(holder,
      el("div", { class: "heading tools" }, el("h2", null, "Webhooks"), may("write") && button("Add a webhook", () => add(group, show))),
      own.length
        ? scrolling("Webhooks", table("webhooks", ["Address", "Events", "Last result", "Actions"], own.map((hook) => line(hook, show))))
        : el("p", { class: "none-found" }, "Nobody is told. A webhook calls an address of yours when a crawl is finished or items change."));
    return holder;
  };
  return may("write") ? show(signal) : null;
}

function line(hook, again) {
  const name = shorten(hook.label || hook.url, 60);
  const action = (text, onclick, kind = "quiet") => button(text, onclick, kind, { "aria-label": `${text}: ${name}` });
  return row(null,
    rowHead(null, hook.label && el("strong", null, shorten(hook.label, 60), " "), el("span", { class: "text" }, shorten(hook.url, 120)), (hook.format !== "standard" || hook.group_id == null) && el("div", { class: "faint" }, [hook.format !== "standard" && FORMATS[hook.format], hook.group_id == null && "For all groups"].filter(Boolean).join(" · "))),
    cell("Events", "", el("span", { class: "chips" }, hook.events.map((event) => chip(EVENTS[event] ?? event)))),
    cell("Last result", "", result(hook)),
    cell("Actions", "tools-cell", may("write") && el("span", { class: "actions" },
      action("Deliveries", () => showDeliveries(hook, name)),
      action("Test", () => test(hook, again)),
      action("Delete", () => confirm(`Delete ${name}?`, "It is not called any more.", "Delete", async () => {
        await remove(["webhooks", hook.webhook_id]);
        await again();
        say("The webhook is deleted");
      }), "quiet danger-text"))));
}

/** Return what became of the last call. */
const result = ({ active, last_result: last }) => el("div", null, !active && [chip("switched off", "bad"), " "], last ? outcome(last, last.date) : faint("not called yet"),
  last?.error && el("div", { class: "faint text" }, shorten(last.error, 160)));

/** Return what an attempt came to, and when. */
function outcome({ status, error, state, delivered }, date) {
  const text = status ? String(status) : state === "pending" ? "waiting" : error ? "not delivered" : "no response";
  const kind = delivered || state === "delivered" ? "good" : state === "pending" ? "open" : "bad";
  return el("span", null, chip(text, kind), " ", date && time(date, since(date)));
}

async function test(hook, again) {
  try {
    const { state, status, error } = await post(["webhooks", hook.webhook_id, "test"]);
    say(status ? `The address responded with ${status}.` : `The address did not respond: ${error}`, state === "delivered" ? "" : "bad");
    await again();
  } catch (error) {
    say(sentenceOf(error), "bad");
  }
}

const delivery = (one) => el("li", null,
  outcome(one, one.last_attempt ?? one.create_date), ` ${EVENTS[one.type] ?? one.type}`, one.group_id && ` in ${shorten(one.group_id, 60)}`,
  one.attempts > 1 && `, ${many(one.attempts, "attempt")}`, one.next_attempt && `, again ${since(one.next_attempt)}`,
  (one.error || one.response) && el("p", { class: "faint text" }, shorten(one.error || one.response, 200)));

async function showDeliveries(hook, name) {
  try {
    const deliveries = await get(["webhooks", hook.webhook_id, "deliveries"]);
    askInDialog("columns", `Deliveries to ${name}`, deliveries.length
      ? el("ul", { class: "drops" }, deliveries.map(delivery))
      : el("p", null, "It was not called yet."));
  } catch (error) {
    say(sentenceOf(error), "bad");
  }
}

function add(group, again) {
  const url = el("input", { id: "hook-url", name: "url", type: "url", required: true, placeholder: "https://", autofocus: true, oninput: () => formatOf(url.value) !== "standard" && choose(formatOf(url.value)) });
  const format = el("select", { id: "hook-format", name: "format", onchange: () => choose(format.value) }, Object.entries(FORMATS).map(([value, title]) => el("option", { value }, title)));
  // Each format has the events that its readers want, until another one is chosen.
  const choose = (value) => {
    if (format.dataset.chosen === value) return;
    format.value = format.dataset.chosen = value;
    for (const box of dialog.querySelectorAll("input[name=events]")) box.checked = value === "standard" ? box.value === "job.finished" : FOR_PEOPLE.includes(box.value);
  };
  const check = ([event, title]) => checkbox(title, el("input", { type: "checkbox", id: `hook-${event}`, name: "events", value: event, checked: event === "job.finished" }));
  const dialog = askInDialog("small", "Add a webhook", [
    field("Address", url),
    field("For", format, el("p", { class: "hint" }, "The address of an incoming webhook of Slack, Discord or Teams (Workflows) is recognized.")),
    field("Label", el("input", { id: "hook-label", name: "label", maxlength: 200 })),
    el("fieldset", null, el("legend", null, "Events"), Object.entries(EVENTS).map(check),
      el("p", { class: "hint" }, "Silence needs the hours after which it is told, among the settings of the group.")),
    checkbox("For all groups of the organization", el("input", { type: "checkbox", id: "hook-all", name: "all" })),
  ], [closeButton("Cancel"), el("button", { class: "primary" }, "Add")], async (data) => {
    const made = await post(["webhooks"], {
      url: data.get("url").trim(), events: data.getAll("events"), group_id: data.has("all") ? null : group, label: data.get("label").trim(), format: data.get("format"),
    });
    dialog.close();
    if (made.format === "standard") showSecret(made.secret);
    await again();
    if (made.format !== "standard") say("The webhook is added.", "", ["Send a test", () => test(made, again)]);
  });
}

/** Return the format that an address is for. */
function formatOf(address) {
  const host = URL.canParse(address) ? new URL(address).hostname : "";
  return HOSTS.find(([, pattern]) => pattern.test(host))?.[0] ?? "standard";
}

function showSecret(secret) {
  const dialog = askInDialog("small", "The webhook's secret", [
    el("p", null, "It is shown only now. With it you check that a call comes from this service (Standard Webhooks)."),
    el("p", null, el("code", { class: "text" }, secret), " ", copyButton("Copy", () => secret)),
  ]);
  dialog.dataset.stays = "yes"; // a click beside it would lose the secret
}
