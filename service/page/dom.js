// Elements. Children that are not nodes become text, never HTML: what is shown was scraped.

const SVG = "http://www.w3.org/2000/svg";

export const el = (name, props, ...children) => fill(document.createElement(name), props, children);
export const svg = (name, props, ...children) => fill(document.createElementNS(SVG, name), props, children);

/** Set attributes and listeners (`onclick: function`), then append the children; null ones are left out. */
function fill(node, props, children) {
  for (const [name, value] of Object.entries(props ?? {})) {
    if (typeof value === "function") node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value != null) node.setAttribute(name, value);
  }
  return put(node, children);
}

/** Replace what a node holds; children that are null or false are left out. */
export function put(node, ...children) {
  node.replaceChildren(...children.flat(2).filter((child) => child != null && child !== false));
  return node;
}

/** Return a link to an address elsewhere, or its text alone where it is not plain http or https. */
export function outside(address, text = address) {
  return isWebAddress(address)
    ? el("a", { href: address, rel: "noopener noreferrer", target: "_blank", class: "outside" }, text)
    : el("span", null, text);
}

export function isWebAddress(text) {
  if (typeof text !== "string" || !/^https?:\/\/[^\s]+$/i.test(text)) return false;
  const url = URL.parse ? URL.parse(text) : tryParse(text);
  return url !== null && (url.protocol === "http:" || url.protocol === "https:");
}

function tryParse(text) {
  try {
    return new URL(text);
  } catch {
    return null;
  }
}

/** Tell people who listen instead of look. */
export function announce(text) {
  document.getElementById("status").textContent = text;
}

/** Return a button that copies what `text()` gives, or nothing where the browser has no clipboard for us. */
export function copyButton(label, text) {
  if (!navigator.clipboard) return null;
  const button = el("button", { type: "button", class: "quiet" }, label);
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(text());
      button.textContent = "Copied";
    } catch {
      button.textContent = "Not allowed";
    }
    announce(button.textContent);
    setTimeout(() => (button.textContent = label), 1500);
  });
  return button;
}
