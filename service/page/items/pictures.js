// Pictures of items. Those inside the data are shown at once; others only when asked for, because loading one
// tells its server that somebody looks.

import { el, isWebAddress } from "../base/dom.js";

const KEY = "pictures";
const DEEPEST = 3;
const WIDEST = 100; // entries of one object or list that are looked at
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
  if (!pictures.has(item)) {
    const found = [...(item.files ?? []).map(pictureOfFile), ...picturesIn(item.data ?? {})].filter(Boolean);
    pictures.set(item, found.find(isInline) ?? found[0]);
  }
  return pictures.get(item);
}

const pictures = new WeakMap(); // found once per item

/** Return the addresses of pictures in the data, also in lists and in objects: `images: [{url}]`. */
function picturesIn(value, depth = 0) {
  if (typeof value === "string") return isPicture(value) ? [value] : [];
  if (typeof value !== "object" || value === null || depth > DEEPEST) return [];
  return Object.values(value).slice(0, WIDEST).flatMap((inner) => picturesIn(inner, depth + 1));
}

/** Return whether any of these items has a picture that may be shown. */
export const anyPicture = (items) => items.some((item) => mayShow(pictureOf(item)));

const mayShow = (address) => isInline(address) || (wanted() && isWebAddress(address));

/** Return a small picture, or null where there is none or it was not asked for. */
export function thumbnail(address, kind = "") {
  if (!mayShow(address)) return null;
  return el("img", { class: `thumbnail ${kind}`, src: address, alt: "", loading: "lazy", decoding: "async", referrerpolicy: "no-referrer" });
}
