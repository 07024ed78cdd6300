"""Browser state in common file formats, from and to Playwright's storageState.

`read` recognizes them by content: Playwright's storageState, cookies as the DevTools protocol (CDP), Puppeteer and
Playwright's `context.cookies()` give them, EditThisCookie's and Cookie-Editor's JSON, and Netscape's `cookies.txt`
as curl, wget, yt-dlp and browser extensions write it.
"""

from __future__ import annotations

import ipaddress
import json
import math
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any

Record = dict[str, Any]

_HTTP_ONLY = "#HttpOnly_"
_SESSION = -1
_YEAR_10000 = 253402300800
# The unit of a number below this limit: as seconds it would be beyond the year 9999.
_UNITS = ((1e13, "milliseconds", 1e3), (1e16, "microseconds", 1e6), (math.inf, "nanoseconds", 1e9))
# Chromium's own database counts microseconds from 1601.
_CHROMIUM = (12e15, 18e15)
_SAME_SITE = {"strict": "Strict", "lax": "Lax", "none": "None", "no_restriction": "None"}
_NO_SAME_SITE = ("", "unspecified", None)
# Fields that repeat others, or that mean something in one browser only.
_DERIVED = ("size", "session", "hostOnly", "storeId", "id", "expirationDate", "expiry", "url")
_KNOWN = ("name", "value", "domain", "path", "expires", "httpOnly", "http_only", "secure", "sameSite", "partitionKey")


class FormatError(ValueError):
    """A file that cannot be read; the message names the record."""


def read(text: str | bytes) -> Record:
    """Return the content of a file as storageState."""
    if isinstance(text, bytes):
        try:
            text = text.decode("utf-8-sig")
        except UnicodeDecodeError:
            raise FormatError("the file is not UTF-8 text") from None
    text = text.removeprefix("\ufeff")
    if text.lstrip()[:1] in ("{", "["):
        try:
            value = json.loads(text)
        except ValueError as error:
            raise FormatError(f"not valid JSON: {error}") from None
        return from_value(value)
    return {"cookies": _from_netscape(text), "origins": []}


def write(state: Mapping[str, Any], format: str = "playwright") -> str:
    """Return a storageState as text in one of `FORMATS`. All but Playwright's hold cookies only."""
    return FORMATS[format](state)


def from_value(value: Any) -> Record:
    """Return a JSON value as storageState: it is one already, or cookies in any dialect."""
    if isinstance(value, dict) and isinstance(value.get("result"), dict):
        value = value["result"]  # a whole CDP message
    origins: list[Record] = []
    if isinstance(value, dict):
        if not isinstance(value.get("cookies", []), list) or not {"cookies", "origins"} & set(value):
            raise FormatError("JSON, but neither a storageState nor a list of cookies")
        if value.get("credentials"):
            raise FormatError("the state has credentials, which cannot be stored; remove them to import the rest")
        found = value.get("origins", [])
        if not isinstance(found, list) or not all(isinstance(origin, dict) for origin in found):
            raise FormatError("origins must be a list of objects")
        origins, value = found, value.get("cookies", [])
    if not all(isinstance(cookie, dict) for cookie in value):
        raise FormatError("JSON, but not a list of cookies")
    return {"cookies": [_cookie(cookie, number) for number, cookie in enumerate(value, 1)], "origins": origins}


def _cookie(given: Record, number: int) -> Record:
    """Return a cookie of any JSON dialect in Playwright's form; fields that it does not know are kept."""
    where = _where(number, given)
    for name in ("name", "value", "domain"):
        if not isinstance(given.get(name), str):
            raise FormatError(f"{where}: {name} must be a string")
    cookie = {
        "name": given["name"],
        "value": given["value"],
        "domain": _domain(given["domain"], given.get("hostOnly"), where),
        "path": given.get("path") or "/",
        "expires": _SESSION if given.get("session") is True else _expires(given, where),
        "httpOnly": _flag(given, "httpOnly", where) or _flag(given, "http_only", where),
        "secure": _flag(given, "secure", where),
    }
    same_site = given.get("sameSite")
    if same_site not in _NO_SAME_SITE:
        if str(same_site).lower() not in _SAME_SITE:
            raise FormatError(f"{where}: sameSite is {same_site!r}; Strict, Lax, None or no_restriction are known")
        cookie["sameSite"] = _SAME_SITE[str(same_site).lower()]
    partition = given.get("partitionKey")
    site = partition.get("topLevelSite", partition.get("sourceOrigin")) if isinstance(partition, dict) else partition
    if isinstance(site, str) and site:
        cookie["partitionKey"] = site
    if isinstance(partition, dict) and site and "hasCrossSiteAncestor" in partition:
        cookie["_crHasCrossSiteAncestor"] = partition["hasCrossSiteAncestor"]
    rest = {name: item for name, item in given.items() if name not in _KNOWN + _DERIVED and item is not None}
    return cookie | rest


def _where(number: int, given: Mapping[str, Any]) -> str:
    return f"cookie {number} ({given.get('name')!r} of {given.get('domain')!r})"


def _domain(domain: str, host_only: Any, where: str) -> str:
    """Return the domain with a leading dot if it covers subdomains, without one if it does not."""
    bare = domain.strip().removeprefix(".")
    if not bare:
        raise FormatError(f"{where}: domain is empty")
    if host_only is None:
        return domain.strip()
    return bare if host_only or _is_address(bare) else f".{bare}"


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host.strip("[]"))
    except ValueError:
        return False
    return True


def _flag(given: Record, name: str, where: str) -> bool:
    value = given.get(name)
    if value not in (True, False, None):
        raise FormatError(f"{where}: {name} must be true or false")
    return bool(value)


def _expires(given: Record, where: str) -> float:
    name = next((n for n in ("expires", "expirationDate", "expiry") if given.get(n) is not None), None)
    return _SESSION if name is None else _seconds(given[name], name, where)


def _seconds(value: Any, name: str, where: str) -> float:
    """Return Unix seconds; 0 and less are a session. Raise for other units: the cookie would never expire."""
    if isinstance(value, str):
        try:
            value = float(value) if value.strip() else 0
        except ValueError:
            raise FormatError(f"{where}: {name} is {value!r}, not a number of seconds since 1970") from None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise FormatError(f"{where}: {name} must be a number of seconds since 1970")
    if value <= 0:
        return _SESSION
    if value >= _YEAR_10000:
        raise FormatError(f"{where}: {name} is {value:.0f}, which looks like {_guess(value)}; seconds are needed")
    return int(value) if value == int(value) else value


def _guess(value: float) -> str:
    if _CHROMIUM[0] < value < _CHROMIUM[1]:
        unit, seconds = "Chromium's microseconds since 1601", value / 1e6 - 11644473600
    else:
        unit, seconds = next((unit, value / scale) for limit, unit, scale in _UNITS if value < limit)
    return f"{unit} ({datetime.fromtimestamp(seconds, UTC):%Y-%m-%d})" if seconds < _YEAR_10000 else unit


def _from_netscape(text: str) -> list[Record]:
    cookies = []
    for number, line in enumerate(text.replace("\r\n", "\n").split("\n"), 1):
        http_only = line.startswith(_HTTP_ONLY)
        line = line.removeprefix(_HTTP_ONLY)
        if not line.strip() or (line.startswith("#") and not http_only):
            continue
        cookies.append(_netscape_cookie(line, number, http_only))
    if not cookies and not text.lstrip().startswith("#"):
        raise FormatError("the file is empty" if not text.strip() else "the format is not known")
    return cookies


def _netscape_cookie(line: str, number: int, http_only: bool) -> Record:
    fields = line.split("\t")
    if len(fields) == 6:
        fields.append("")  # an editor that trims lines removed the tab before an empty value
    if len(fields) != 7:
        raise FormatError(f"line {number}: {len(fields)} fields with tabs between; cookies.txt has 7")
    domain, subdomains, path, secure, expires, name, value = fields
    where = f"line {number} ({name!r} of {domain!r})"
    for flag in (subdomains, secure):
        if flag.upper() not in ("TRUE", "FALSE"):
            raise FormatError(f"{where}: {flag!r} must be TRUE or FALSE")
    # wget writes a domain with TRUE and no dot; a dot says the same as TRUE.
    host_only = subdomains.upper() == "FALSE" and not domain.startswith(".")
    return {
        "name": name,
        "value": value,
        "domain": _domain(domain, host_only, where),
        "path": path or "/",
        "expires": _seconds(expires, "expiry", where),
        "httpOnly": http_only,
        "secure": secure.upper() == "TRUE",
    }


def _to_playwright(state: Mapping[str, Any]) -> str:
    return json.dumps(state, indent=2, ensure_ascii=False) + "\n"


def _to_netscape(state: Mapping[str, Any]) -> str:
    lines = ["# Netscape HTTP Cookie File", ""]
    for number, cookie in enumerate(state["cookies"], 1):
        domain = cookie["domain"]
        expires = max(0, int(cookie["expires"]))
        flags = ("TRUE" if domain.startswith(".") else "FALSE"), ("TRUE" if cookie["secure"] else "FALSE")
        fields = [domain, flags[0], cookie["path"] or "/", flags[1], str(expires), cookie["name"], cookie["value"]]
        if any(sign in field for field in fields for sign in "\t\r\n"):
            raise FormatError(f"{_where(number, cookie)}: a tab or a line break cannot be written to cookies.txt")
        lines.append((_HTTP_ONLY if cookie["httpOnly"] else "") + "\t".join(fields))
    return "\n".join(lines) + "\n"


def _to_cookie_editor(state: Mapping[str, Any]) -> str:
    cookies = []
    for cookie in state["cookies"]:
        session = cookie["expires"] <= 0
        cookies.append(
            {
                "domain": cookie["domain"],
                **({} if session else {"expirationDate": cookie["expires"]}),
                "hostOnly": not cookie["domain"].startswith("."),
                "httpOnly": cookie["httpOnly"],
                "name": cookie["name"],
                "path": cookie["path"] or "/",
                "sameSite": {"Strict": "strict", "Lax": "lax", "None": "no_restriction"}.get(
                    cookie.get("sameSite", ""), "unspecified"
                ),
                "secure": cookie["secure"],
                "session": session,
                "storeId": None,
                "value": cookie["value"],
            }
        )
    return json.dumps(cookies, indent=2, ensure_ascii=False) + "\n"


def _to_cdp(state: Mapping[str, Any]) -> str:
    cookies = []
    for cookie in state["cookies"]:
        given = {name: item for name, item in cookie.items() if not name.startswith("_cr") and name != "partitionKey"}
        given |= {
            "size": len(cookie["name"].encode()) + len(cookie["value"].encode()),
            "session": cookie["expires"] <= 0,
        }
        if partition := cookie.get("partitionKey"):
            crossed = bool(cookie.get("_crHasCrossSiteAncestor", True))  # as Playwright takes it
            given["partitionKey"] = {"topLevelSite": partition, "hasCrossSiteAncestor": crossed}
        cookies.append(given)
    return json.dumps({"cookies": cookies}, indent=2, ensure_ascii=False) + "\n"


FORMATS: dict[str, Callable[[Mapping[str, Any]], str]] = {
    "playwright": _to_playwright,
    "netscape": _to_netscape,
    "cookie-editor": _to_cookie_editor,
    "cdp": _to_cdp,
}
