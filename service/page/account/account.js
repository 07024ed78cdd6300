// The person at the page: signing in, signing in again in place, who one is.

import { Failure, get } from "../base/api.js";
import { askInDialog, checkbox, closeButton } from "../base/dialogs.js";
import { button, chip, el, fact, put, time } from "../base/dom.js";
import { since } from "../base/format.js";
import { know, token, who } from "../base/session.js";

const SOON_MS = 3 * 86_400_000; // a token that expires within three days is pointed out
const NEEDS = "This page needs a token with the scope read.";

/** Return the fields for a token, and `check`, which tries the token and keeps it; it throws what is wrong. */
function tokenFields() {
  const input = el("input", {
    id: "token", type: "password", required: true, autocomplete: "off", spellcheck: "false", placeholder: "sds_…", "aria-describedby": "token-help", autofocus: true,
  });
  const show = button("Show", () => {
    input.type = input.type === "password" ? "text" : "password";
    show.setAttribute("aria-pressed", input.type === "text");
  }, "quiet", { "aria-pressed": "false" });
  const remember = el("input", { id: "remember", type: "checkbox", checked: token.isRemembered() });
  const fields = [
    el("label", { for: "token" }, "Access token"),
    el("div", { class: "joined" }, input, show),
    checkbox("Remember on this computer", remember),
  ];

  async function check(organizationId) {
    const text = input.value.trim().replace(/^bearer\s+/i, "");
    input.focus();
    if (!/^[\x21-\x7e]+$/.test(text)) throw new Failure(401, [{ msg: "This is not a token." }]);
    const description = await get(["token"], {}, undefined, { as: text });
    if (!description.scopes.includes("read")) throw new Failure(403, [{ msg: NEEDS }]);
    if (organizationId && description.organization_id !== organizationId) {
      throw new Failure(403, [{ msg: "It belongs to another organization. Sign out first to change to that one." }]);
    }
    token.forget();
    token.set(text, remember.checked);
    know(description);
  }
  return { fields, input, check };
}

/** Show the form in `main`; call `signedIn` when the service has accepted a token. */
export function askForToken(main, problemText, signedIn) {
  document.title = "Scraping Data Service";
  const { fields, input, check } = tokenFields();
  const problem = el("p", { class: "problem", role: "alert" }, problemText);
  const submit = el("button", { class: "primary" }, "Open");
  const onsubmit = async (event) => {
    event.preventDefault();
    submit.disabled = true;
    try {
      await check();
      signedIn();
    } catch (error) {
      if (!(error instanceof Failure)) throw error;
      problem.textContent = error.sentence;
    } finally {
      submit.disabled = false;
    }
  };
  put(main, el("section", { class: "panel sign-in" },
    el("h1", { tabindex: -1 }, "Look at your data"),
    el("p", { class: "lead" }, "Groups, outputs, reviews, cookies and local storage of your organization."),
    el("form", { onsubmit }, fields, problem, submit),
    el("p", { id: "token-help", class: "hint" },
      "Unless remembered, the token stays in this browser session and is gone when its tabs are closed. Whoever runs the service makes one with ",
      el("code", null, "scraping-data-service token create --organization 1 --scope read"), ".")));
  input.focus();
}

let asking = null;

/** Ask for another token over what is on the screen. Throws `failure` when the person closes the dialog. */
export function askAgain(failure, text = "The token does not work any more: it has expired or was revoked. Nothing is lost; what waits is sent when you have signed in.") {
  asking ??= new Promise((resolve, reject) => {
    const { fields, check } = tokenFields();
    let accepted = false;
    const dialog = askInDialog("small", "Sign in again", [
      el("p", { id: "token-help", role: "alert" }, text),
      el("div", { class: "token-fields" }, fields),
    ], [closeButton("Not now"), el("button", { class: "primary" }, "Sign in")], async () => {
      await check(who().organization_id);
      accepted = true;
    });
    dialog.addEventListener("close", () => {
      asking = null;
      if (accepted) resolve();
      else reject(failure);
    });
  });
  return asking;
}

/** Return what the button that leads to the account says. */
export const accountName = () => who().label || `Organization ${who().organization_id ?? ""}`;

/** Return whether the token expires soon. */
export const expiresSoon = () => Boolean(who().expires) && Date.parse(who().expires) - Date.now() < SOON_MS;

/** Show who one is: organization, label, scopes and expiry of the token. */
export function showAccount(signOut) {
  const { organization_id, label, scopes, expires } = who();
  const meaning = { read: "look", write: "approve, reject and change", delete: "delete", state: "cookies and local storage", admin: "manage tokens" };
  const dialog = askInDialog("small", "Your token", el("dl", { class: "facts" },
    fact("Organization", String(organization_id)),
    fact("Label", label || "none"),
    fact("Scopes", el("span", { class: "chips" }, scopes.map((scope) => chip(meaning[scope] ? `${scope}: ${meaning[scope]}` : scope)))),
    fact("Expires", expires ? [time(expires), ` (${since(expires)})`] : "never"),
    fact("Kept", token.isRemembered() ? "on this computer" : "until the tabs of this session are closed")), [
    button("Sign out", () => { dialog.close(); signOut(); }, "quiet"),
    closeButton("Close", "primary", { autofocus: true }),
  ]);
}
