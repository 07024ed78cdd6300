"""Messages for people: an event as Slack, Discord and Teams show it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import quote

# The limits of the receivers: Slack 3000 characters of a section, 2000 of a field, 10 fields; Discord 256 of a title,
# 1024 of a field, 4096 of a description and 6000 in all; Teams 28 KB.
_TITLE, _TEXT, _VALUE, _FACTS, _PROBLEMS, _LINK = 140, 2000, 200, 8, 5, 500
_COLORS = {"good": 0x2E7D32, "attention": 0xC62828, "default": 0x607D8B}
_STATES = {"needs_login": "needs a login", "blocked": "is blocked"}
_MARKDOWN = re.compile(r"([\\`*_{}\[\]()<>#+\-.!|~:@])")


class Note(NamedTuple):
    """What a message says, in plain text."""

    title: str
    text: str
    facts: dict[str, str]
    mood: str  # good, attention or default
    link: str | None


def chat_message(format: str, body: str, base_url: str) -> bytes:
    """Return the body of an event, a JSON text of the Standard Webhooks form, as one of FORMATS takes it."""
    event = json.loads(body)
    return json.dumps(FORMATS[format](_note(event["type"], event["data"], base_url))).encode()


def _note(type: str, data: Mapping[str, Any], base_url: str) -> Note:
    group = _short(data.get("group_id") or "", 100)
    link = _link_to(data.get("group_id"), base_url)
    match type:
        case "job.finished" | "job.failed":
            return _job_note(data["job"], group, link)
        case "group.silent":
            since = data["last_write"] or "its settings were made"
            text = f"Nothing was written for more than {data['silent_hours']} hours: since {since}."
            return Note(f"{group} is silent", text, {"Group": group}, "attention", link)
        case "group.changed":
            return Note(
                f"Items of {group} have changed",
                "",
                {"Group": group, "Up to id": str(data["last_id"])},
                "default",
                link,
            )
        case "session.needs_login" | "session.blocked":
            text = "The site has logged it out." if data["state"] == "needs_login" else "The site blocks it."
            facts = {"Pool": _short(data["pool"], 100), "Session": _short(data["name"], 100)}
            return Note(f"{facts['Session']} {_STATES[data['state']]}", text, facts, "attention", None)
        case "pool.empty":
            pool = _short(data["pool"], 100)
            return Note(f"{pool} has no session", "A worker got none.", {"Pool": pool}, "attention", None)
        case "webhook.test":
            return Note("Test of a webhook", "The Scraping Data Service can send messages here.", {}, "good", None)
    facts = {name: _short(str(value), _VALUE) for name, value in data.items() if isinstance(value, (str, int))}
    return Note(type, "", dict(list(facts.items())[:_FACTS]), "attention", link)


def _link_to(group_id: str | None, base_url: str) -> str | None:
    """Return the address of a group on the page; none where the service has no address, or the name is too long."""
    link = f"{base_url.rstrip('/')}/#/groups/{quote(group_id or '', safe='')}"
    return link if group_id and base_url and len(link) <= _LINK else None


def _job_note(job: Mapping[str, Any], group: str, link: str | None) -> Note:
    gave_up = job["state"] == "failed"
    failed = gave_up or job["verdict"] == "failed"
    outcome = "failed" if failed else "passed" if job["verdict"] else "is finished"
    problems = [_short(problem["msg"], _VALUE) for problem in job.get("problems", [])]
    if gave_up:
        problems.insert(0, "The crawler did not come to its end.")
    more = [f"and {len(problems) - _PROBLEMS} more"] if len(problems) > _PROBLEMS else []
    facts = {"Group": group, "Crawl": _short(job["job_id"], 100)}
    if job.get("series"):
        facts["Series"] = job["series"]
    counts = {"Created": "created", "Changed": "changed", "Unchanged": "unchanged", "Missing": "missing"}
    facts |= {title: f"{job[name]:,}" for title, name in counts.items() if job.get(name) is not None}
    mood = "attention" if failed else "good"
    title = f"Crawl of {group} {outcome}"
    return Note(title, "\n".join([*problems[:_PROBLEMS], *more]), facts, mood, link)


def _slack(note: Note) -> dict[str, Any]:
    """Return blocks as https://docs.slack.dev/messaging/sending-messages-using-incoming-webhooks describes them."""
    title = _escaped(note.title, 2 * _TITLE)
    lines = [f"*{title}*" if note.link is None else f"*<{note.link}|{title}>*", _escaped(note.text, _TEXT)]
    section: dict[str, Any] = {"type": "section", "text": {"type": "mrkdwn", "text": "\n".join(filter(None, lines))}}
    if note.facts:
        facts = [f"*{name}*\n{_escaped(value, 2 * _VALUE)}" for name, value in note.facts.items()]
        section["fields"] = [{"type": "mrkdwn", "text": fact, "verbatim": True} for fact in facts]
    return {"text": title, "blocks": [section]}


def _escaped(text: str, length: int) -> str:
    """Return a text without the characters by which Slack marks mentions and links, cut at a length."""
    escaped = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # Not inside one of the three.
    return escaped if len(escaped) <= length else re.sub(r"&[a-z]*…$", "…", _short(escaped, length))


def _discord(note: Note) -> dict[str, Any]:
    """Return an embed as https://discord.com/developers/docs/resources/webhook#execute-webhook describes it."""
    embed: dict[str, Any] = {
        "title": _short(_markdown(note.title), 2 * _TITLE - 30),
        "color": _COLORS[note.mood],
        "fields": [
            {"name": name, "value": _markdown(value) or "-", "inline": True} for name, value in note.facts.items()
        ],
    }
    if note.text:
        embed["description"] = _short(_markdown(note.text), _TEXT)
    if note.link is not None:
        embed["url"] = note.link
    return {"embeds": [embed], "allowed_mentions": {"parse": []}}


def _teams(note: Note) -> dict[str, Any]:
    """Return an adaptive card as the Workflows of Teams take it."""
    color = note.mood.capitalize()
    body: list[dict[str, Any]] = [
        {
            "type": "TextBlock",
            "text": _markdown(note.title),
            "weight": "Bolder",
            "size": "Medium",
            "color": color,
            "wrap": True,
        }
    ]
    if note.text:
        # One line break is a space in the Markdown of Teams.
        text = _markdown(_short(note.text, _TEXT)).replace("\n", "\n\n")
        body.append({"type": "TextBlock", "text": text, "wrap": True})
    if note.facts:
        facts = [{"title": name, "value": _markdown(value)} for name, value in note.facts.items()]
        body.append({"type": "FactSet", "facts": facts})
    card: dict[str, Any] = {
        "$schema": "http://adaptivecards.io/schemas/adaptive-card.json",
        "type": "AdaptiveCard",
        "version": "1.4",
        "body": body,
    }
    if note.link is not None:
        card["actions"] = [{"type": "Action.OpenUrl", "title": "Open the group", "url": note.link}]
    content = {"contentType": "application/vnd.microsoft.card.adaptive", "contentUrl": None, "content": card}
    return {"type": "message", "attachments": [content]}


def _markdown(text: str) -> str:
    """Return a text whose characters mean themselves: group names and messages may hold anything."""
    return _MARKDOWN.sub(r"\\\1", text)


def _short(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


FORMATS: dict[str, Callable[[Note], dict[str, Any]]] = {"slack": _slack, "discord": _discord, "teams": _teams}
