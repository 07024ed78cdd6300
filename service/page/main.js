// The shell: which view, with which token, and what to say when something goes wrong.

import { Failure, get, token } from "./api.js";
import { announce, el, put } from "./dom.js";
import { showGroup } from "./group.js";
import { showGroups } from "./groups.js";
import { here } from "./place.js";
import { showState } from "./state.js";

const main = document.getElementById("main");
const nav = document.getElementById("nav");
const forget = document.getElementById("forget");

const VIEWS = { groups: showGroups, group: showGroup, cookies: showState, "local-storage": showState };

let running = new AbortController();
let shown = ""; // what is on the screen, whole
let last = ""; // where one was or wanted to be

function viewOf([name, group, ...rest]) {
  if (rest.length) return null;
  if (name === "groups" && group !== undefined) return "group";
  return group === undefined && Object.hasOwn(VIEWS, name) && name !== "group" ? name : null;
}

async function render() {
  running.abort();
  running = new AbortController();
  const { signal } = running;
  const place = here();
  const signedIn = Boolean(token.get());
  nav.hidden = forget.hidden = !signedIn;
  for (const a of nav.querySelectorAll("a")) {
    if (a.getAttribute("href") === `#/${place.path[0]}`) a.setAttribute("aria-current", "page");
    else a.removeAttribute("aria-current");
  }
  if (!signedIn) return signIn();
  const view = viewOf(place.path);
  const now = JSON.stringify(place.path);
  const fresh = shown !== now;
  const moved = last !== "" && last !== now;
  last = now;
  shown = "";
  try {
    if (!view) throw new Failure(404, [{ msg: "This address leads to no view." }]);
    await VIEWS[view](main, place, signal, fresh);
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
  shown = last = "";
  nav.hidden = forget.hidden = true;
  document.title = "Scraping Data Service";
  const input = el("input", { id: "token", type: "password", required: true, autocomplete: "off", spellcheck: "false", placeholder: "sds_…", "aria-describedby": "token-help token-error" });
  const show = el("button", {
    type: "button", class: "quiet", "aria-pressed": "false", onclick: () => {
      input.type = input.type === "password" ? "text" : "password";
      show.setAttribute("aria-pressed", input.type === "text");
    },
  }, "Show");
  const problem = el("p", { id: "token-error", class: "problem", role: "alert" }, error && sentence(error));
  const submit = el("button", { class: "primary" }, "Open");
  const form = el("form", {
    onsubmit: async (event) => {
      event.preventDefault();
      const text = input.value.trim().replace(/^bearer\s+/i, "");
      if (!/^[\x21-\x7e]+$/.test(text)) return void (problem.textContent = "This is not a token.");
      submit.disabled = true;
      token.set(text);
      try {
        await get(["groups"]);
        render();
      } catch (failure) {
        token.forget();
        problem.textContent = failure instanceof Failure ? sentence(failure) : "Something went wrong.";
        input.focus();
      } finally {
        submit.disabled = false;
      }
    },
  },
    el("label", { for: "token" }, "Access token"),
    el("div", { class: "joined" }, input, show),
    problem,
    submit);
  put(main, el("section", { class: "panel sign-in" },
    el("h1", { tabindex: -1 }, "Look at your data"),
    el("p", { class: "lead" }, "Groups, outputs, reviews, cookies and local storage of your organization."),
    form,
    el("p", { id: "token-help", class: "hint" },
      "The token stays in this tab: it is gone when you close it, and never part of the address. Whoever runs the service makes one with ",
      el("code", null, "python -m service token create --organization 1 --scope read"), ".")));
  input.focus();
}

const sentence = (failure) => `${failure.message}. ${failure.details.join(" ")}`;

forget.addEventListener("click", () => {
  token.forget();
  render();
  announce("The token is forgotten");
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the address is the view
  main.focus();
});
addEventListener("hashchange", render);
render();
