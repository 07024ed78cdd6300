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

/** Return the address of a file's picture, or undefined; a media type counts more than a name. */
export function pictureOfFile({ file_type: type, file_url, blob_url }) {
  if (/^image\//i.test(type)) return [file_url, blob_url].find((url) => isInline(url) || isWebAddress(url));
  return type.includes("/") ? undefined : [file_url, blob_url].find(isPicture);
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
