// Browser state in the file formats that the command line reads too, as Playwright's storageState.

import { problem } from "../base/api.js";
import { isObject, shorten } from "../base/format.js";

const HTTP_ONLY = "#HttpOnly_";
const YEAR_10000 = 253402300800;
// Fields that repeat others, or that mean something in one browser only.
const DERIVED = ["size", "session", "hostOnly", "storeId", "id", "expirationDate", "expiry", "url", "sameSite", "partitionKey", "http_only"];
const NO_SAME_SITE = ["", "unspecified", "Unspecified"]; // Chrome's words for a cookie without one
const SAME_SITE = { strict: "Strict", lax: "Lax", none: "None", no_restriction: "None" };

/** Return a text as storageState: `{cookies, origins}`. Throws a problem that names the record. */
export function readState(text) {
  const trimmed = text.replace(/^\ufeff/, "").trim();
  if (!trimmed) throw problem("There is nothing to import.");
  if (!/^[{[]/.test(trimmed)) return { cookies: fromNetscape(trimmed), origins: [] };
  try {
    return fromValue(JSON.parse(trimmed));
  } catch (error) {
    throw error.sentence ? error : problem(`This is not valid JSON: ${error.message}`);
  }
}

function fromValue(value) {
  if (isObject(value?.result)) value = value.result; // a whole message of the DevTools protocol
  let origins = [];
  if (isObject(value)) {
    if (!("cookies" in value || "origins" in value)) throw problem("This is JSON, but neither a storageState nor a list of cookies.");
    if (value.credentials?.length) throw problem("This state has credentials, which cannot be stored. Remove them to import the rest.");
    origins = value.origins ?? [];
    value = value.cookies ?? [];
  }
  if (!Array.isArray(value) || !value.every(isObject)) throw problem("This is JSON, but not a list of cookies.");
  if (!Array.isArray(origins) || !origins.every(isObject)) throw problem("origins must be a list of objects.");
  return { cookies: value.map(toCookie), origins };
}

/** Return a cookie of any JSON dialect in Playwright's form. */
function toCookie(given, index) {
  const where = `Cookie ${index + 1} (${given.name})`;
  for (const name of ["name", "value", "domain"]) if (typeof given[name] !== "string") throw problem(`${where}: ${name} must be a text.`);
  const bare = given.domain.trim().replace(/^\./, "");
  if (!bare) throw problem(`${where}: domain is empty.`);
  const isAddress = /^[\d.]+$|:/.test(bare);
  const sameSite = SAME_SITE[String(given.sameSite ?? "").toLowerCase()];
  if (!sameSite && !NO_SAME_SITE.includes(given.sameSite ?? "")) throw problem(`${where}: sameSite is not Strict, Lax, None or no_restriction.`);
  const partition = given.partitionKey;
  const partitionKey = typeof partition === "string" ? partition : partition?.topLevelSite ?? partition?.sourceOrigin;
  const crossed = partition?.hasCrossSiteAncestor;
  const kept = Object.entries(given).filter(([name, value]) => !DERIVED.includes(name) && value !== null);
  return {
    ...Object.fromEntries(kept),
    name: given.name,
    value: given.value,
    domain: given.hostOnly === undefined ? given.domain.trim() : given.hostOnly || isAddress ? bare : `.${bare}`,
    path: given.path || "/",
    expires: given.session === true ? -1 : toSeconds(given.expires ?? given.expirationDate ?? given.expiry, where),
    httpOnly: flag(given.httpOnly ?? given.http_only, "httpOnly", where),
    secure: flag(given.secure, "secure", where),
    ...(sameSite && { sameSite }),
    ...(partitionKey && { partitionKey }),
    ...(partitionKey && crossed !== undefined && { _crHasCrossSiteAncestor: crossed }),
  };
}

function flag(value, name, where) {
  if (![true, false, null, undefined].includes(value)) throw problem(`${where}: ${name} must be true or false.`);
  return value === true;
}

/** Return Unix seconds; 0 and less are a session. Other units are refused: the cookie would never expire. */
function toSeconds(value, where) {
  if (value === undefined || value === null || value === "") return -1;
  const seconds = Number(value);
  if (!Number.isFinite(seconds)) throw problem(`${where}: its expiry must be a number of seconds since 1970.`);
  if (seconds >= YEAR_10000) throw problem(`${where}: its expiry looks like milliseconds or less; seconds are needed.`);
  return seconds <= 0 ? -1 : seconds;
}

function fromNetscape(text) {
  const cookies = [];
  text.split(/\r?\n/).forEach((line, index) => {
    const httpOnly = line.startsWith(HTTP_ONLY);
    const content = httpOnly ? line.slice(HTTP_ONLY.length) : line;
    if (!content.trim() || (content.startsWith("#") && !httpOnly)) return;
    const fields = content.split("\t");
    if (fields.length === 6) fields.push(""); // an editor that trims lines removed the tab before an empty value
    if (fields.length !== 7) throw problem(`Line ${index + 1} is not one of cookies.txt: it has ${fields.length} fields with tabs between instead of 7.`);
    const [domain, subdomains, path, secure, expires, name, value] = fields;
    const isTrue = (word) => {
      if (!["TRUE", "FALSE"].includes(word.toUpperCase())) throw problem(`Line ${index + 1} is not one of cookies.txt: ${shorten(word, 20)} stands where TRUE or FALSE is needed.`);
      return word.toUpperCase() === "TRUE";
    };
    cookies.push(toCookie({ name, value, domain, path, expires, hostOnly: !isTrue(subdomains) && !domain.startsWith("."), secure: isTrue(secure), httpOnly }, index));
  });
  return cookies;
}
