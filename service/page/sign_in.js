// Asks for the token.

import { Failure, get } from "./api.js";
import { el, put } from "./dom.js";
import { know, may, token } from "./session.js";

/** Show the form in `main`; call `signedIn` when the service has accepted a token. */
export function askForToken(main, problemText, signedIn) {
  document.title = "Scraping Data Service";
  const input = el("input", {
    id: "token", type: "password", required: true, autocomplete: "off", spellcheck: "false", placeholder: "sds_…",
    "aria-describedby": "token-help token-error",
  });
  const show = el("button", {
    type: "button", class: "quiet", "aria-pressed": "false", onclick: () => {
      input.type = input.type === "password" ? "text" : "password";
      show.setAttribute("aria-pressed", input.type === "text");
    },
  }, "Show");
  const remember = el("input", { id: "remember", type: "checkbox" });
  const problem = el("p", { id: "token-error", class: "problem", role: "alert" }, problemText);
  const submit = el("button", { class: "primary" }, "Open");

  async function check(event) {
    event.preventDefault();
    const text = input.value.trim().replace(/^bearer\s+/i, "");
    if (!/^[\x21-\x7e]+$/.test(text)) return void (problem.textContent = "This is not a token.");
    submit.disabled = true;
    token.set(text, remember.checked);
    try {
      know(await get(["token"]));
      if (!may("read")) throw new Failure(403, [{ msg: "This page needs a token with the scope read." }]);
      signedIn();
    } catch (failure) {
      token.forget();
      problem.textContent = failure instanceof Failure ? failure.sentence : "Something went wrong.";
      input.focus();
    } finally {
      submit.disabled = false;
    }
  }

  put(main, el("section", { class: "panel sign-in" },
    el("h1", { tabindex: -1 }, "Look at your data"),
    el("p", { class: "lead" }, "Groups, outputs, reviews, cookies and local storage of your organization."),
    el("form", { onsubmit: check },
      el("label", { for: "token" }, "Access token"),
      el("div", { class: "joined" }, input, show),
      el("div", { class: "check" }, remember, el("label", { for: "remember" }, "Remember on this computer")),
      problem,
      submit),
    el("p", { id: "token-help", class: "hint" },
      "Unless remembered, the token stays in this browser session and is gone when its tabs are closed. Whoever runs the service makes one with ",
      el("code", null, "python -m service token create --organization 1 --scope read"), ".")));
  input.focus();
}
