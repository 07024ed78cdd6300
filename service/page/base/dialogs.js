// Dialogs and messages: the frame that all dialogs share, one that asks before something is deleted, and short notes.

import { sentenceOf } from "./api.js";
import { announce, button, el, front, put } from "./dom.js";

/** Return a button that closes the dialog around it. */
export const closeButton = (text, kind = "quiet", props = null) => button(text, ({ target }) => target.closest("dialog").close(), kind, props);

/** Return the cross in the corner of a dialog. */
export const cross = () => closeButton("✕", "quiet close", { "aria-label": "Close" });

/** Return a labelled control of a form. */
export const field = (title, control, ...more) => el("div", { class: "field" }, el("label", { for: control.id }, title), control, ...more);

/** Return a checkbox, or a radio button, with its label. */
export const checkbox = (title, control, ...more) => el("div", { class: "check" }, control, el("label", { for: control.id }, title), ...more);

const AGAIN = "Press Esc again to drop what you typed.";

/**
 * Show a form in a dialog; it is gone when closed. `onsubmit` gets the form's data, and returns false to stay open.
 * What it throws is said in the dialog, which stays open with everything that was typed. Without the last two it only
 * shows something, and has a button to close it.
 */
export function askInDialog(kind, title, body, foot = closeButton("Close", "primary", { autofocus: true }), onsubmit = () => {}) {
  const problem = el("p", { class: "problem", role: "alert" });
  const dialog = el("dialog", {
    class: kind, "aria-label": title,
    onmousedown: (event) => isBeside(dialog, event) && !isTyped(dialog) && !dialog.dataset.stays && dialog.close(),
    oncancel: (event) => { // Esc, or a file that was not chosen
      if (event.target !== dialog || !isTyped(dialog, "textarea") || problem.textContent === AGAIN) return;
      event.preventDefault();
      problem.textContent = AGAIN;
    },
    onclose: () => {
      removeEventListener("hashchange", leave);
      keepNotice(dialog);
      dialog.remove();
    },
  });
  const leave = () => dialog.close();
  addEventListener("hashchange", leave);
  put(dialog, el("form", {
    onsubmit: async (event) => {
      event.preventDefault();
      const buttons = [...dialog.querySelectorAll(".dialog-foot button")].filter(({ disabled }) => !disabled);
      problem.textContent = "";
      try {
        const working = onsubmit(new FormData(event.target));
        for (const one of buttons) one.disabled = one === event.submitter;
        if ((await working) !== false) dialog.close();
      } catch (error) {
        if (error.name === "AbortError") return;
        problem.textContent = sentenceOf(error);
        if (!error.sentence) throw error;
      } finally {
        for (const one of buttons) one.disabled = false;
      }
    },
  },
    el("div", { class: "dialog-head" }, el("h2", null, title), cross()),
    el("div", { class: "dialog-body" }, body, problem),
    el("div", { class: "dialog-foot" }, foot)));
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** Return whether the mouse is beside a dialog: its scrollbar is a part of it. */
export function isBeside(dialog, { target, clientX: x, clientY: y }) {
  const { left, right, top, bottom } = dialog.getBoundingClientRect();
  return target === dialog && (x < left || x > right || y < top || y > bottom);
}

/** Return whether something was typed or chosen that would be lost if the dialog closed. */
const isTyped = (dialog, inputs = "input:not([type=search]), textarea") => [...dialog.querySelectorAll(inputs)].some((input) => (["checkbox", "radio"].includes(input.type) ? input.checked !== input.defaultChecked : input.value !== input.defaultValue));

/** Ask before something that cannot be undone; `work` does it. With `typed`, that text must be typed first. */
export function confirm(title, text, verb, work, typed = "") {
  const input = typed && el("input", { id: "confirm-typed", name: "typed", autocomplete: "off", spellcheck: "false", oninput: () => (submit.disabled = input.value.trim() !== typed) });
  const submit = el("button", { class: "danger", disabled: Boolean(typed) }, verb);
  askInDialog("small", title, [el("p", null, text), typed && field(`Type ${typed} to confirm`, input)],
    [closeButton("Keep", "quiet", { autofocus: true }), submit], work);
}

const notice = document.getElementById("notice");
notice.addEventListener("mouseenter", () => clearTimeout(say.timer));
notice.addEventListener("focusin", ({ relatedTarget }) => {
  clearTimeout(say.timer);
  if (!notice.contains(relatedTarget)) cameFrom = relatedTarget;
});
notice.addEventListener("mouseleave", () => hideNotice(5_000));

const LONG_MS = 15_000;
let cameFrom = null; // what had the focus before the message
let problem = { text: "", until: 0 };

/**
 * Show a sentence at the edge of the screen until the next one, or for some seconds; `action` is `[text, work]`.
 * A bad one stays above the good ones that follow.
 */
export function say(text, kind = "", action = null) {
  if (notice.hidden) problem = { text: "", until: 0 };
  const earlier = kind !== "bad" && problem.until > Date.now() && problem.text;
  if (kind === "bad") problem = { text, until: Date.now() + LONG_MS };
  put(notice, earlier && el("p", null, earlier), el("span", null, text), action && button(action[0], () => {
    notice.hidden = true;
    cameFrom?.focus();
    action[1]();
  }));
  notice.className = earlier ? "bad" : kind;
  front().append(notice);
  notice.hidden = false;
  announce(text);
  hideNotice(notice.className === "bad" || action ? LONG_MS : 5_000);
}

function hideNotice(after) {
  clearTimeout(say.timer);
  say.timer = setTimeout(() => (notice.hidden = true), after);
}

/** Take the messages out of a dialog that closes. */
export function keepNotice(dialog) {
  document.body.append(...dialog.querySelectorAll("#notice, #status"));
}
