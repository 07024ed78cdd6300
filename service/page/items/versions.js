// Before and after: an item beside one of its earlier versions, with what changed.

import { get, post, sentenceOf, toJson } from "../base/api.js";
import { field, say } from "../base/dialogs.js";
import { button, cell, el, faint, put, row, rowHead, table, time } from "../base/dom.js";
import { actor, isObject, joinPath, many, shorten, when } from "../base/format.js";
import { link } from "../base/place.js";
import { may } from "../base/session.js";
import { ignoreField, readSettings } from "../crawls/settings.js";

const VERSIONS = "20";
const MOST = 400; // fields that are compared
const LONGEST = 300;

/** Fill `holder` with an item beside its earlier versions, or with why there are none. */
export async function showVersions(view, item, holder) {
  const { items: versions } = await get(["outputs", view.group, item.output_id, "versions"], { limit: VERSIONS });
  if (versions.length) return compare(view, item, versions, holder);
  const settings = await readSettings(view.group);
  put(holder, settings.history_days
    ? el("p", { class: "faint" }, `No earlier version within ${many(settings.history_days, "day")}.`)
    : el("p", { class: "faint" }, "This group keeps no history. ", el("a", { href: link([...view.path, "settings"]) }, "Switch it on in its settings"), ": earlier versions are kept from then on."));
}

function compare(view, item, versions, holder) {
  const below = el("div");
  const show = (index) => {
    const { id, by, replaced_date } = versions[index];
    put(below,
      el("p", { class: "faint" }, `Replaced by ${actor(by)}, `, time(replaced_date), " ",
        may("write") && button("Restore this version", () => restoreVersion(view, item, id), "quiet small")),
      difference(view, versions[index], index ? versions[index - 1] : item));
  };
  const name = ({ update_date, root_job_id }) => `${when(update_date)}, job ${shorten(root_job_id, 60)}`;
  const select = el("select", { id: "version", onchange: () => show(Number(select.value)) }, versions.map((version, i) => el("option", { value: i }, name(version))));
  put(holder, field(`Before (${many(versions.length, "earlier version")})`, select), below);
  show(0);
}

async function restoreVersion(view, item, id) {
  try {
    await post(["outputs", view.group, item.output_id, "restore"], { id });
    say("The version is restored: it is the newest change of the item.");
    view.reload?.();
  } catch (error) {
    say(sentenceOf(error), "bad");
  }
}

function difference(view, before, after) {
  const then = leaves(before), now = leaves(after);
  const changed = [...new Set([...then.keys(), ...now.keys()])].filter((path) => then.get(path) !== now.get(path));
  const same = now.size - changed.filter((path) => now.has(path)).length;
  const value = (text, kind) => (text === undefined ? faint("–") : el("span", { class: `value ${kind}` }, shorten(text, LONGEST)));
  if (!changed.length) return el("p", { class: "faint" }, "Nothing in data, tags or approval differs.");
  return el("div", null,
    table("versions", ["Field", "Before", "After"], changed.map((path) => row(null,
      rowHead(null, el("span", { class: "text" }, shorten(path.replace(/^data\./, ""), 120)),
        path.startsWith("data.") && may("write") && button("Ignore this field", () => ignoreField(view.group, path.slice(5)), "quiet small", { title: "Items that differ only here are unchanged" })),
      cell("Before", "", value(then.get(path), "old")), cell("After", "", value(now.get(path), "new"))))),
    el("p", { class: "faint" }, `${many(changed.length, "field")} changed, ${same} the same.`));
}

/** Return what of an item can change, as path -> text. */
function leaves(item) {
  const found = new Map();
  const visit = (value, keys) => {
    if (found.size >= MOST) return;
    if (isObject(value) && Object.keys(value).length) for (const key of Object.keys(value)) visit(value[key], [...keys, key]);
    else found.set(joinPath(keys), typeof value === "string" ? value : toJson(value, 0) ?? "");
  };
  visit(item.data ?? {}, ["data"]);
  visit(item.tags ?? {}, ["tags"]);
  visit(item.source_url, ["source_url"]);
  visit(item.is_approved, ["is_approved"]);
  return found;
}
