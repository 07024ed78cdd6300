// The token: where it is kept, how it comes in, what it may do.

const KEY = "token";
const ASK_MS = 150; // other tabs on the same machine respond within a few milliseconds
const LATE_MS = 5000; // or, if it is very busy, within this time

// Tabs of the same session give each other the token, so that a new one does not ask for it again.
const tabs = new BroadcastChannel("session");

/** In this tab only, unless a person asks to remember it on this computer. */
export const token = {
  get: () => sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY),
  set: (text, remember = false) => {
    sessionStorage.setItem(KEY, text);
    if (remember) localStorage.setItem(KEY, text);
  },
  isRemembered: () => localStorage.getItem(KEY) !== null,
  forget: () => {
    sessionStorage.clear();
    localStorage.removeItem(KEY);
  },
};

let stopAsking = () => {};

/** Forget the token in every tab. */
export function signOut() {
  stopAsking();
  token.forget();
  tabs.postMessage({ kind: "forget" });
}

/** Call `left` when another tab forgets the token; give the token to tabs that ask. */
export function joinTabs(left) {
  tabs.addEventListener("message", ({ data }) => {
    if (data.kind === "ask" && token.get()) tabs.postMessage({ kind: "token", token: token.get() });
    if (data.kind === "forget") { // a remembered token is gone here already
      stopAsking();
      token.forget();
      left();
    }
  });
}

let linked = null; // the token of a sign-in link that is used

/** Ask before the token of a link replaces another one, also that of another tab. */
const mayUseLink = (other, text) =>
  other === null || other === text || confirm("You are signed in. Sign in with the token of this link instead?");

/**
 * Take the token from a sign-in link (`#token=…`), and remove it from the address bar at once. Ask before it replaces
 * another one: a link from somebody else must not move a person to another organization unseen.
 */
export async function takeFromLink() {
  const [, given, rest] = location.hash.match(/^#token=([\x21-\x25\x27-\x7e]+)(?:&(.*))?$/s) ?? [];
  if (!given) return;
  history.replaceState(null, "", `${location.pathname}${location.search}#${rest ?? "/groups"}`);
  const text = decodeURIComponent(given);
  await askOtherTabs();
  if (mayUseLink(token.get(), text)) token.set((linked = text));
}

/** Take the token from another open tab, if there is one that has it. */
export function askOtherTabs() {
  if (token.get()) return Promise.resolve();
  return new Promise((resolve) => {
    let isLate = false;
    stopAsking = () => tabs.removeEventListener("message", answered);
    const answered = ({ data }) => {
      if (data.kind !== "token") return;
      stopAsking();
      const now = token.get();
      if (now !== null && (now !== linked || mayUseLink(data.token, linked))) return; // somebody has signed in meanwhile
      token.set(data.token);
      if (isLate) location.reload(); // the form is shown already
      resolve();
    };
    setTimeout(() => {
      isLate = true;
      resolve();
    }, ASK_MS);
    setTimeout(() => stopAsking(), LATE_MS);
    tabs.addEventListener("message", answered);
    tabs.postMessage({ kind: "ask" });
  });
}

let description = { scopes: [] };

/** Remember what `GET /v1/token` says of the token. */
export function know(told) {
  description = told;
}

/** Return what is known of the token: organization, label, scopes, expiry. */
export const who = () => description;

/** Return whether the token has a scope: `read`, `write`, `delete` or `state`. */
export const may = (scope) => description.scopes.includes(scope);
