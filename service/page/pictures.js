// Pictures of items. Those inside the data are shown at once; others only when asked for, because loading one
// tells its server that somebody looks.

import { el, isWebAddress } from "./dom.js";

const KEY = "pictures";
const INLINE = /^data:image\/(png|jpeg|gif|webp|avif|svg\+xml)[;,]/i;
const NAMED = /\.(png|jpe?g|gif|webp|avif|svg)([?#]|$)/i;

export const wanted = () => localStorage.getItem(KEY) === "yes";
export const want = (yes) => (yes ? localStorage.setItem(KEY, "yes") : localStorage.removeItem(KEY));

export const isInline = (text) => typeof text === "string" && INLINE.test(text);
const isPicture = (text) => isInline(text) || (isWebAddress(text) && NAMED.test(text));

/** Return the address of a file's picture, or undefined. */
export function pictureOfFile(file) {
  const addresses = [file.file_url, file.blob_url];
  if (/^image\//i.test(file.file_type)) return addresses.find((url) => isInline(url) || isWebAddress(url));
  return addresses.find(isPicture);
}

/** Return the address of an item's first picture: of its files, else of its data. */
export function pictureOf(item) {
  for (const file of item.files ?? []) {
    const found = pictureOfFile(file);
    if (found) return found;
  }
  return Object.values(item.data ?? {}).find(isPicture);
}

/** Return whether any of these items has a picture that may be shown. */
export const anyPicture = (items) => items.some((item) => mayShow(pictureOf(item)));

const mayShow = (address) => isInline(address) || (wanted() && isWebAddress(address));

/** Return a small picture, or null where there is none or it was not asked for. */
export function thumbnail(address, kind = "") {
  if (!mayShow(address)) return null;
  return el("img", { class: `thumbnail ${kind}`, src: address, alt: "", loading: "lazy", decoding: "async", referrerpolicy: "no-referrer" });
}
