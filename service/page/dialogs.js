// Dialogs: one that asks before something is deleted, and the frame that all of them share.

import { el, put } from "./dom.js";

export const closeButton = (dialog) =>
  el("button", { type: "button", class: "quiet close", "aria-label": "Close", onclick: () => dialog.close() }, "✕");

/** Show a form in a dialog; it is gone when closed. `onsubmit` gets the form's data and returns false to stay open. */
export function askInDialog(kind, title, body, foot, onsubmit) {
  const dialog = el("dialog", {
    class: kind, "aria-labelledby": "dialog-title",
    onclick: (event) => event.target === dialog && dialog.close(),
    onclose: () => {
      removeEventListener("hashchange", leave);
      dialog.remove();
    },
  });
  const leave = () => dialog.close();
  addEventListener("hashchange", leave);
  put(dialog, el("form", {
    onsubmit: async (event) => {
      event.preventDefault();
      if ((await onsubmit(new FormData(event.target), event.submitter)) !== false) dialog.close();
    },
  },
    el("div", { class: "dialog-head" }, el("h2", { id: "dialog-title" }, title), closeButton(dialog)),
    el("div", { class: "dialog-body" }, body),
    el("div", { class: "dialog-foot" }, foot)));
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

/** Ask before something that cannot be undone; `work` does it, and what it throws is said in the dialog. */
export function confirm(title, text, verb, work) {
  const problem = el("p", { class: "problem", role: "alert" });
  const dialog = askInDialog("small", title, [el("p", null, text), problem], [
    el("button", { type: "button", class: "quiet", autofocus: true, onclick: () => dialog.close() }, "Keep"),
    el("button", { class: "danger" }, verb),
  ], async () => {
    try {
      await work();
    } catch (error) {
      problem.textContent = error.sentence ?? "Something went wrong.";
      return false;
    }
  });
}

/** Show a sentence at the edge of the screen until the next one, or for some seconds. */
export function say(text, kind = "") {
  const notice = document.getElementById("notice");
  clearTimeout(say.timer);
  put(notice, text);
  notice.className = kind;
  notice.hidden = false;
  say.timer = setTimeout(() => (notice.hidden = true), kind === "bad" ? 15_000 : 5_000);
}
