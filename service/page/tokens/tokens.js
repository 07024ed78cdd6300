// The tokens of the organization, for a token with the scope admin: listed, made (and shown once), revoked.

import { get, post, remove } from "../base/api.js";
import { askInDialog, checkbox, closeButton, confirm, field, say } from "../base/dialogs.js";
import { announce, button, cell, chip, copyButton, el, faint, loading, put, row, rowHead, scrolling, table, time } from "../base/dom.js";
import { many, shorten, since } from "../base/format.js";
import { may, who } from "../base/session.js";

const SCOPES = { read: "read: look and sync", write: "write: scrape, approve, change", delete: "delete", state: "state: cookies, local storage and sessions" };
const HEAD = ["Label", "Scopes", "Made", "Last used", "Expires", "Actions"];

export async function show(main, place, signal, stay) {
  document.title = "Tokens · Scraping Data Service";
  if (!stay) return;
  put(main, el("h1", { tabindex: -1 }, "Tokens"), loading());
  if (!may("admin")) {
    return put(main, el("section", { class: "panel empty" }, el("h1", { tabindex: -1 }, "Tokens"), el("p", null, "To manage tokens needs the scope admin. Whoever runs the service makes such a token with ", el("code", null, "scraping-data-service token create --organization 1 --scope admin --scope read"), ".")));
  }
  const list = el("div");
  const load = async (given) => {
    const tokens = await get(["tokens"], {}, given);
    put(list, el("section", { class: "panel" }, scrolling("Tokens", table("tokens", HEAD, tokens.map((token) => line(token, load))))));
    announce(many(tokens.length, "token"));
  };
  await load(signal);
  put(main, el("div", { class: "heading" },
    el("div", null, el("h1", { tabindex: -1 }, "Tokens"), el("p", { class: "lead" }, "Who may use the data of your organization. A token is shown once, when it is made.")),
    el("div", { class: "actions" }, button("Make a token", () => make(load), "primary", { "aria-haspopup": "dialog" }))), list);
}

const isOver = ({ revoked, expires }) => Boolean(revoked) || (expires && Date.parse(expires) <= Date.now());

function line(token, again) {
  const name = shorten(token.label || token.token_id, 60);
  const isOwn = token.token_id === who().id;
  return row(null,
    rowHead(null, token.label ? el("span", { class: "text" }, name) : faint("no label"), isOwn && [" ", chip("yours", "good")], token.revoked && [" ", chip("revoked", "bad")], el("div", { class: "faint" }, el("code", null, token.token_id))),
    cell("Scopes", "", el("span", { class: "chips" }, token.scopes.map((scope) => chip(scope)))),
    cell("Made", "", time(token.create_date)),
    cell("Last used", "", token.last_used ? time(token.last_used, since(token.last_used)) : faint("never")),
    cell("Expires", "", token.expires ? time(token.expires) : faint("never")),
    cell("Actions", "tools-cell", !isOver(token) && !isOwn && button("Revoke", () => confirm(`Revoke ${name}?`, "Whoever uses it is refused within 5 seconds. This cannot be undone.", "Revoke", async () => {
      await remove(["tokens", token.token_id]);
      await again();
      say(`${name} is revoked`);
    }), "quiet danger-text", { "aria-label": `Revoke ${name}` })));
}

function make(again) {
  const scope = ([value, text]) => checkbox(text, el("input", { type: "checkbox", id: `scope-${value}`, name: "scopes", value, checked: value === "read" }));
  const dialog = askInDialog("small", "Make a token", [
    field("Who uses it", el("input", { id: "token-label", name: "label", required: true, maxlength: 256, autocomplete: "off", autofocus: true })),
    el("fieldset", null, el("legend", null, "What it may do"), Object.entries(SCOPES).map(scope)),
    field("Last day (empty: never expires)", el("input", { id: "token-expires", name: "expires", type: "date" })),
  ], [closeButton("Cancel"), el("button", { class: "primary" }, "Make")], async (data) => {
    const day = data.get("expires");
    const made = await post(["tokens"], { label: data.get("label").trim(), scopes: data.getAll("scopes"), ...(day && { expires: `${day}T23:59:59Z` }) });
    dialog.close();
    showSecret(made);
    await again();
  });
}

function showSecret({ label, token }) {
  const dialog = askInDialog("small", "The new token", [
    el("p", null, `It is shown only now: give it to ${shorten(label, 60)}, and keep it secret.`),
    el("p", null, el("code", { class: "text secret-text" }, token), " ", copyButton("Copy", () => token)),
  ]);
  dialog.dataset.stays = "yes"; // a click beside it would lose the token
}
