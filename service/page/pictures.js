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
  const shown = /^image\//i.test(file.file_type) ? (url) => isInline(url) || isWebAddress(url) : isPicture;
  return addresses.find(shown);
}

/** Return the address of an item's picture, of its files or its data; one that is inside comes first. */
export function pictureOf(item) {
  const found = [...(item.files ?? []).map(pictureOfFile), ...Object.values(item.data ?? {}).filter(isPicture)].filter(Boolean);
  return found.find(isInline) ?? found[0];
}

/** Return whether any of these items has a picture that may be shown. */
export const anyPicture = (items) => items.some((item) => mayShow(pictureOf(item)));

const mayShow = (address) => isInline(address) || (wanted() && isWebAddress(address));

/** Return a small picture, or null where there is none or it was not asked for. */
export function thumbnail(address, kind = "") {
  if (!mayShow(address)) return null;
  return el("img", { class: `thumbnail ${kind}`, src: address, alt: "", loading: "lazy", decoding: "async", referrerpolicy: "no-referrer" });
}
