// The shell: which view, with which token, and what to say when something goes wrong.

import { Failure, get } from "./api.js";
import { announce, el, put } from "./dom.js";
import { showGroup } from "./group.js";
import { showGroups } from "./groups.js";
import { here } from "./place.js";
import { askForToken } from "./sign_in.js";
import { askOtherTabs, joinTabs, know, signOut, takeFromLink, token } from "./session.js";
import { showState } from "./state.js";

const main = document.getElementById("main");
const nav = document.getElementById("nav");
const forget = document.getElementById("forget");
const VIEWS = { groups: showGroups, cookies: showState, "local-storage": showState };
const TABS = ["jobs", "fields", "activity"];

let running = new AbortController(); // what is being read for the address of now
let staying = new AbortController(); // what goes on as long as one stays in a view
let known = ""; // the token whose scopes are known
let shown = ""; // what is on the screen, whole
let last = ""; // where one was or wanted to be

function viewOf([name, group, tab, ...rest]) {
  if (rest.length) return null;
  if (name === "groups" && group !== undefined) return tab === undefined || TABS.includes(tab) ? showGroup : null;
  return group === undefined && Object.hasOwn(VIEWS, name) ? VIEWS[name] : null;
}

/** Show the view of the address. A view gets the signal `stay` when it is to be made anew, null when it is there. */
async function render() {
  running.abort();
  running = new AbortController();
  const { signal } = running;
  const place = here();
  nav.hidden = forget.hidden = !token.get();
  for (const a of nav.querySelectorAll("a")) {
    if (a.getAttribute("href") === `#/${place.path[0]}`) a.setAttribute("aria-current", "page");
    else a.removeAttribute("aria-current");
  }
  if (!token.get()) return signIn();
  const now = JSON.stringify(place.path);
  const fresh = shown !== now;
  const moved = last !== "" && last !== now;
  last = now;
  shown = "";
  if (fresh) {
    staying.abort();
    staying = new AbortController();
  }
  try {
    if (known !== token.get()) {
      know(await get(["token"], {}, signal));
      known = token.get();
    }
    const view = viewOf(place.path);
    if (!view) throw new Failure(404, [{ msg: "This address leads to no view." }]);
    await view(main, place, signal, fresh ? staying.signal : null);
    shown = now;
    // Another view: a person with a keyboard or a screen reader begins at its heading.
    if (moved) main.querySelector("h1")?.focus();
  } catch (error) {
    if (signal.aborted) return;
    if (!(error instanceof Failure)) throw error;
    if (error.status === 401) return signIn(error);
    document.title = error.message;
    put(main, trouble(error));
  }
}

/** Return what to show instead of what could not be read. */
function trouble(error) {
  announce(error.message);
  return el("section", { class: "panel empty", role: "alert" },
    el("h1", { tabindex: -1 }, error.message),
    error.details.map((text) => el("p", null, text)),
    el("p", { class: "actions" },
      error.status !== 404 && el("button", { type: "button", class: "primary", onclick: render }, "Try again"),
      el("a", { class: "button", href: "#/groups" }, "All groups")));
}

function signIn(error) {
  token.forget();
  staying.abort();
  shown = last = known = "";
  nav.hidden = forget.hidden = true;
  askForToken(main, error?.sentence, async () => {
    known = token.get();
    await render();
    main.querySelector("h1")?.focus(); // the form is gone, and with it what had the focus
  });
}

forget.addEventListener("click", () => {
  signOut();
  render();
  announce("The token is forgotten");
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address is the view
  main.focus();
});
addEventListener("hashchange", () => {
  takeFromLink();
  render();
});
joinTabs(render);
takeFromLink();
await askOtherTabs();
render();
