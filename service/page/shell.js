// The shell: which view, with which token, whether the service responds, and what to say when something goes wrong.

import { accountName, askAgain, askForToken, expiresSoon, showAccount } from "./account/account.js";
import { Failure, get, loaded, shell } from "./base/api.js";
import { confirm } from "./base/dialogs.js";
import { announce, button, el, put } from "./base/dom.js";
import { here } from "./base/place.js";
import { askOtherTabs, joinTabs, know, may, signOut, takeFromLink, token } from "./base/session.js";
import { drafts, forgetUnsaved, isUnsaved, saveAgain } from "./items/judging.js";

const main = document.getElementById("main");
const nav = document.getElementById("nav");
const person = document.getElementById("person");
const account = document.getElementById("account");
const connection = document.getElementById("connection");
const TABS = ["jobs", "fields", "time", "deleted", "settings"];
// Loaded after the first view is there, so that the others open at once and while the service is away.
const LATER = [
  "./groups/groups.js", "./groups/group.js", "./items/items.js", "./items/versions.js", "./crawls/jobs.js", "./crawls/fields.js", "./crawls/time.js", "./crawls/settings.js",
  "./deleted/deleted.js", "./state/state.js", "./sessions/sessions.js", "./tokens/tokens.js",
];
const LISTEN_MS = 10_000; // without any response for so long, ask for one
const RETRY_MS = 2_500;

let running = new AbortController(); // what is being read for the address of now
let staying = new AbortController(); // what goes on as long as one stays in a view
let known = ""; // the token whose scopes are known
let shown = ""; // what is on the screen, whole
let isBroken = false; // whether a module could not be loaded
let last = ""; // where one was or wanted to be

/** Return the module of the view that a path leads to, being loaded; null where it leads to none. */
function viewOf([name, first, second, third, ...rest]) {
  if (rest.length || (third !== undefined && (name !== "groups" || second !== "jobs"))) return null;
  if (name === "state" && second === undefined) return import("./state/state.js");
  if (name === "sessions" && second === undefined) return import("./sessions/sessions.js");
  if (name === "tokens" && second === undefined) return import("./tokens/tokens.js");
  if (name !== "groups") return null;
  if (first === undefined) return import("./groups/groups.js");
  return second === undefined || TABS.includes(second) ? import("./groups/group.js") : null;
}

/** Show the view of the address. A view gets the signal `stay` when it is to be made anew, null when it is there. */
async function render() {
  running.abort();
  running = new AbortController();
  const { signal } = running;
  const place = here();
  if (!token.get()) return signIn();
  for (const a of nav.querySelectorAll("a")) {
    if (a.getAttribute("href") === `#/${place.path[0]}`) a.setAttribute("aria-current", "page");
    else a.removeAttribute("aria-current");
  }
  const now = JSON.stringify(place.path);
  const fresh = shown !== now;
  const moved = last !== "" && last !== now;
  last = now;
  if (fresh) {
    shown = ""; // one that stays is there all the time: letters typed meanwhile must not make it anew
    staying.abort();
    staying = new AbortController();
  }
  const view = viewOf(place.path); // is loaded while the token is asked about
  view?.catch(() => {}); // said below
  try {
    if (known !== token.get()) {
      know(await get(["token"], {}, signal, { quiet: !known }));
      known = token.get();
    }
    showPerson();
    if (!view) throw new Failure(404, [{ msg: "This address leads to no view." }]);
    const { show } = await loaded(view);
    if (signal.aborted) return;
    await show(main, place, signal, fresh ? staying.signal : null);
    shown = now;
    for (const module of LATER.splice(0)) import(module).catch(() => {});
    // Another view: a person with a keyboard or a screen reader begins at its heading.
    if (moved) main.querySelector("h1")?.focus();
  } catch (error) {
    if (signal.aborted) return;
    shown = "";
    staying.abort(); // no key decides about rows that are gone
    if (!(error instanceof Failure)) throw error;
    if (error.status === 401 && !known) return signIn(error);
    document.title = error.message;
    isBroken = error.status < 0;
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
      error.status < 0 && button("Reload", () => location.reload(), "primary"),
      error.status >= 0 && error.status !== 404 && button(error.status === 401 ? "Sign in again" : "Try again", render, "primary"),
      el("a", { class: "button", href: "#/groups" }, "All groups")));
}

function showPerson() {
  nav.hidden = person.hidden = false;
  for (const name of ["state", "sessions"]) nav.querySelector(`[href="#/${name}"]`).hidden = !may("state");
  nav.querySelector('[href="#/tokens"]').hidden = !may("admin");
  account.textContent = accountName();
  account.classList.toggle("danger-text", expiresSoon());
}

function signIn(error) {
  token.forget();
  forgetUnsaved();
  drafts.clear();
  staying.abort();
  shown = last = known = "";
  nav.hidden = person.hidden = true;
  askForToken(main, error?.sentence, async () => {
    known = token.get();
    await render();
    main.querySelector("h1")?.focus(); // the form is gone, and with it what had the focus
  });
}

function leave() {
  const out = () => {
    signOut();
    render();
    announce("You are signed out");
  };
  if (!isUnsaved()) return out();
  confirm("Sign out?", "Some of your changes are not saved yet. Signing out drops them.", "Sign out", out);
}

// The connection: every response counts; where nothing is heard for a while, the shell asks.
let heardAt = 0;
let state = "";

shell.askAgain = askAgain;
shell.heard = (status) => {
  heardAt = Date.now();
  const now = status === 0 || status === 503 ? "lost" : status === 401 ? "refused" : "live";
  if (now === state) return;
  const before = state;
  state = now;
  connection.className = now;
  put(connection, { live: "Live", lost: "Connection lost, retrying", refused: "The token does not work" }[now],
    now === "refused" && button("Sign in", () => get(["token"]).catch(() => {}), "small"));
  // First what waits is saved: a view that is read again then shows it.
  if (now === "live" && before) saveAgain().finally(() => dispatchEvent(new Event("connected")));
};

async function listen() {
  for (;;) {
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    const due = state === "lost" || (state === "live" && Date.now() - heardAt >= LISTEN_MS);
    if (due && token.get() && !document.hidden) await get(["token"], {}, AbortSignal.timeout(LISTEN_MS), { quiet: true }).catch((error) => error.name === "TimeoutError" && shell.heard(0));
  }
}

addEventListener("connected", () => {
  if (shown || !known || document.querySelector("dialog[open]")) return;
  // What failed is tried again; a browser does not ask twice for a module that it could not load.
  if (isBroken && !isUnsaved()) location.reload();
  else render();
});
addEventListener("beforeunload", (event) => isUnsaved() && event.preventDefault());
document.getElementById("sign-out").addEventListener("click", leave);
account.addEventListener("click", () => showAccount(leave));
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address is the view
  main.focus();
});
addEventListener("hashchange", async () => {
  await takeFromLink();
  render();
});
joinTabs(() => (isUnsaved() ? askAgain(null, "You signed out in another tab. Sign in again to save your changes here; otherwise they are dropped.").catch(() => {}).then(render) : render()));
await takeFromLink();
await askOtherTabs();
render();
listen();
