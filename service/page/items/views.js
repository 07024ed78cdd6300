// Views of a group that a person has saved: a name and the parameters of the address, in this browser only.

import { askInDialog, closeButton, field, say } from "../base/dialogs.js";
import { button, el, put } from "../base/dom.js";
import { shorten } from "../base/format.js";
import { go, link } from "../base/place.js";
import { who } from "../base/session.js";

const MOST = 50;
const PASSING = ["item", "after", "before", "q"]; // of one moment, not of a view

const keyOf = (group) => `views:${who().organization_id}:${group}`;

/** Return the saved views of a group as `[{name, params}]`. */
function saved(group) {
  try {
    const views = JSON.parse(localStorage.getItem(keyOf(group)) ?? "[]");
    return Array.isArray(views) ? views.filter(({ name, params }) => typeof name === "string" && typeof params === "object") : [];
  } catch {
    return [];
  }
}

function store(group, views) {
  try {
    localStorage.setItem(keyOf(group), JSON.stringify(views.slice(-MOST)));
    return true;
  } catch {
    say("This browser keeps no views: its storage is full or switched off.", "bad");
    return false;
  }
}

/** Show the saved views of a group, and a way to save the present one. */
export function showViews(desk) {
  const { group, path } = desk.view;
  const params = Object.fromEntries(Object.entries(desk.params).filter(([name, value]) => value && !PASSING.includes(name)));
  const list = el("ul", { class: "drops" });
  const fill = () => put(list, saved(group).map(({ name, params: of }) => el("li", { class: "heading" },
    el("a", { href: link(path, of) }, shorten(name, 80)),
    button("Remove", () => {
      store(group, saved(group).filter((one) => one.name !== name));
      fill();
    }, "quiet small", { "aria-label": `Remove the view ${name}` }))));
  fill();
  askInDialog("small", "Views", [
    list.children.length ? list : el("p", { class: "hint" }, "No view is saved yet. A view is the filters, columns and order of this list, kept in this browser. To share one, copy the address."),
    field("Save this view as", el("input", { id: "view-name", name: "name", maxlength: 80, required: true, autocomplete: "off", autofocus: true })),
  ], [closeButton("Close"), el("button", { class: "primary" }, "Save")], (data) => {
    const name = data.get("name").trim();
    if (!name) return false;
    if (store(group, [...saved(group).filter((one) => one.name !== name), { name, params }])) say(`The view ${shorten(name, 60)} is saved`, "", ["Open", () => go(path, params)]);
  });
}
