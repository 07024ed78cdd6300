"""Commands about groups: their counts, jobs, reviews and fields, and the token itself."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from sds_client.cli import group_names
from sds_client.cli.errors import UsageError
from sds_client.cli.outputs import confirm, positive
from sds_client.cli.printing import Result, count, table, tell
from sds_client.cli.progress import Progress
from sds_client.cli.running import VERDICT_FAILED, command, storing_command
from sds_client.sync import Client
from sds_client.types import ChangedItem, Job

# Characters of a value in the table of changes.
_MAX_VALUE = 40


def add(commands: argparse._SubParsersAction[Any], common: argparse.ArgumentParser) -> None:
    """Add the commands to a command line."""
    groups = commands.add_parser("groups", help="list, show, set up and delete groups")
    actions = groups.add_subparsers(required=True, metavar="ACTION")
    listed = actions.add_parser("list", parents=[common], help="the groups with their counts, newest change first")
    listed.set_defaults(command=groups_list)
    shown = actions.add_parser("show", parents=[common], help="one group with its counts and settings")
    shown.add_argument("group")
    shown.set_defaults(command=groups_show)
    set_up = actions.add_parser(
        "set", parents=[common], help="change settings of a group; `rules set` changes its rules"
    )
    set_up.add_argument("group")
    set_up.add_argument("--history-days", type=int, help="how long earlier versions of items are kept; 0: not at all")
    set_up.add_argument(
        "--retention-days", type=_days_or_never, help="delete items not scraped for these days; or `never`"
    )
    set_up.add_argument(
        "--silent-hours", type=_days_or_never, help="webhooks get group.silent when nothing was written for so long"
    )
    set_up.add_argument("--ignore", metavar="PATHS", help="fields that are not content: scraped_at,rank; '' for none")
    set_up.set_defaults(command=groups_set)
    retention = actions.add_parser("retention", parents=[common], help="delete items not scraped for some days")
    retention.add_argument("group")
    retention.add_argument("days", type=_days, help="a number of days, or `never`")
    retention.set_defaults(command=groups_retention)
    delete = actions.add_parser("delete", parents=[common], help="delete a group with everything in it; asks first")
    delete.add_argument("group")
    delete.add_argument("--yes", action="store_true", help="do not ask")
    delete.set_defaults(command=groups_delete)

    jobs = commands.add_parser("jobs", help="the jobs (crawls) of a group")
    actions = jobs.add_subparsers(required=True, metavar="ACTION")
    listed = actions.add_parser("list", parents=[common], help="the jobs with their counts, newest first")
    listed.add_argument("group")
    listed.set_defaults(command=jobs_list)

    shown = actions.add_parser("show", parents=[common], help="one job with its verdict")
    finish = actions.add_parser(
        "finish",
        parents=[common],
        help="say that a crawl has ended: it is counted, compared with the one before and judged by the group's rules",
        description="Exits with 4 when the verdict is failed.",
    )
    for parser, work in ((shown, jobs_show), (finish, jobs_finish)):
        parser.add_argument("group")
        parser.add_argument("job_id")
        parser.set_defaults(command=work)
    finish.add_argument("--failed", action="store_true", help="the crawl did not come to its end")
    finish.add_argument("--series", help="the part of the group that it crawled, such as a category")
    finish.add_argument(
        "--delete-missing",
        action="store_true",
        help="delete the items that it did not see, unless the verdict is failed",
    )

    changes = commands.add_parser("changes", parents=[common], help="what a job changed, field by field")
    changes.add_argument("group")
    changes.add_argument("--job", required=True, help="the job (crawl)")
    changes.add_argument("--path", help="only changes of this field, or below it: price.amount, tags.country")
    changes.add_argument("--limit", type=positive, default=100, help="how many items at most; default 100")
    changes.add_argument("--summary", action="store_true", help="only how many items changed in which field")
    changes.set_defaults(command=changes_show)

    rules = commands.add_parser("rules", help="what finished jobs of a group are judged by")
    actions = rules.add_subparsers(required=True, metavar="ACTION")
    shown = actions.add_parser("show", parents=[common], help="the rules of a group")
    shown.add_argument("group")
    shown.set_defaults(command=rules_show)
    changed = actions.add_parser(
        "set",
        parents=[common],
        help="set the rules of a group from a JSON file",
        description='A list such as [{"path": "price", "min_fill": 0.95}, {"min_items": 100}]; [] removes all.',
    )
    changed.add_argument("group")
    changed.add_argument("file", help="a file, or - for standard input")
    changed.set_defaults(command=rules_set)

    reviews = commands.add_parser("reviews", help="the reviews of a group's jobs")
    actions = reviews.add_subparsers(required=True, metavar="ACTION")
    listed = actions.add_parser("list", parents=[common], help="the latest review of each job, newest first")
    listed.add_argument("group")
    listed.set_defaults(command=reviews_list)
    added = actions.add_parser("add", parents=[common], help="review a job")
    added.add_argument("group")
    added.add_argument("job_id")
    added.add_argument("status", help="such as approved or rejected")
    added.add_argument("--comment", default="")
    added.set_defaults(command=reviews_add)

    fields = commands.add_parser("fields", parents=[common], help="how the fields of a group's data are filled")
    fields.add_argument("group")
    fields.add_argument("--job-id", help="only this job")
    fields.set_defaults(command=fields_show)
    token = commands.add_parser("token", parents=[common], help="the organization and scopes of the access token")
    token.set_defaults(command=token_show)


_NEVER = "never"


def _days_or_never(text: str) -> int | str:
    if text != _NEVER and not text.isdecimal():
        raise argparse.ArgumentTypeError("must be a whole number, or `never`")
    return text if text == _NEVER else int(text)


def _days(text: str) -> int | None:
    days = _days_or_never(text)
    return None if isinstance(days, str) else days


@command
def groups_list(client: Client) -> Result:
    groups = client.groups()
    columns = {"group_id": "GROUP", "items": "ITEMS", "approved": "APPROVED", "jobs": "JOBS", "last_change": "CHANGED"}
    return Result(groups, table(groups, columns, "no groups"))


@command
def groups_show(client: Client, group: str) -> Result:
    found = client.group(group)
    if not (found["rules"] or found["ignore"] or found["retention_days"] or found["silent_hours"]):
        group_names.check(client, group)  # one with settings only can be shown
    return Result(found, "\n".join(f"{name:16}{_shown(found[name])}" for name in _SHOWN))  # type: ignore[literal-required]


# In the order in which they are shown; `groups show --json` has the days too.
_SHOWN = (
    *("group_id", "items", "approved", "jobs", "last_id", "last_change", "verdict"),
    *("retention_days", "history_days", "silent_hours", "ignore", "rules"),
)


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(one if isinstance(one, str) else json.dumps(one) for one in value) or "none"
    return "none" if value is None else f"{value:,}" if isinstance(value, int) else str(value)


@storing_command
def groups_set(client: Client, group: str, ignore: str | None, **given: Any) -> Result:
    settings = {name: value for name, value in given.items() if value is not None}
    if ignore is not None:
        settings["ignore"] = [path.strip() for path in ignore.split(",") if path.strip()]
    if not settings:
        raise UsageError("name what to set: --history-days, --retention-days, --silent-hours or --ignore")
    group_names.warn(client, group, " yet: these settings are for its later items")
    stored = client.set_group(group, **{name: None if value == _NEVER else value for name, value in settings.items()})
    for warning in stored["warnings"]:
        tell(f"warning: {warning['msg']}\n")
    return Result(stored, ", ".join(f"{name} {_shown(value)}" for name, value in settings.items()))


@storing_command
def groups_retention(client: Client, group: str, days: int | None) -> Result:
    group_names.warn(client, group, " yet: this setting is for its later items")
    client.set_retention(group, days)
    kept = "for ever"
    if days is not None:
        kept = f"for {count(days, 'day')} after they were last scraped; the service deletes older ones"
    return Result({"group_id": group, "retention_days": days}, f"items of {group} are kept {kept}")


@storing_command
def groups_delete(client: Client, group: str, yes: bool) -> Result:
    group_names.warn(client, group)
    confirm(f"Delete the group {group} with all outputs, reviews and jobs?", yes)
    total, progress = client.group(group)["items"], Progress(f"deletion of {group}")
    deleted = client.delete_group(
        group, on_progress=lambda done: progress.update(done, done / total if total else None)
    )
    return Result({"deleted": deleted}, f"deleted {count(deleted, 'item')}")


@command
def jobs_list(client: Client, group: str) -> Result:
    jobs = client.jobs(group)
    columns = {
        "job_id": "JOB",
        "items": "ITEMS",
        "created": "CREATED",
        "changed": "CHANGED",
        "unchanged": "UNCHANGED",
        "state": "STATE",
        "verdict": "VERDICT",
        "last_write": "LAST WRITE",
        "review.status": "REVIEW",
    }
    return Result(jobs, table(jobs, columns, _none("jobs", group, client) if not jobs else ""))


@command
def jobs_show(client: Client, group: str, job_id: str) -> Result:
    return _judged(client.job(group, job_id))


@storing_command
def jobs_finish(
    client: Client, group: str, job_id: str, failed: bool, series: str | None, delete_missing: bool
) -> Result:
    state: Literal["finished", "failed"] = "failed" if failed else "finished"
    group_names.check(client, group, " yet: nothing was stored")
    job = client.finish_job(group, job_id, state=state, series=series, delete_missing=delete_missing)
    for warning in job["warnings"]:
        tell(f"warning: {warning['msg']}\n")
    if job["held_back"]:
        tell(f"warning: nothing was deleted: {job['held_back']}\n")
    return _judged(job)


def _none(what: str, group: str, client: Client) -> str:
    """Return the text in place of an empty table."""
    return group_names.missing(client, group) or f"no {what} in group {group!r}"


def _judged(job: Job) -> Result:
    counts = {"created": job["created"], "changed": job["changed"], "unchanged": job["unchanged"]}
    counts |= {name: number for name, number in (("missing", job["missing"]), ("deleted", job["deleted"])) if number}
    listed = ", ".join(f"{number:,} {name}" for name, number in counts.items())
    verdict = f"; verdict: {job['verdict']}" if job["verdict"] else ""
    problems = "".join(f"\n  {problem['msg']}" for problem in job["problems"])
    code = VERDICT_FAILED if job["verdict"] == "failed" else 0
    return Result(job, f"{job['job_id']} {job['state']}: {listed}{verdict}{problems}", code)


@command
def changes_show(client: Client, group: str, job: str, path: str | None, limit: int, summary: bool) -> Result:
    none = f"job {job!r} did not change {path or 'any item'}"
    if summary:
        counted = client.job_changes_summary(group, job, path)
        if counted["more"]:
            tell("warning: the service had no time to count all items\n")
        text = table(counted["fields"], {"path": "FIELD", "changed": "ITEMS"}, none)
        return Result(counted, f"{text}\n{count(counted['items'], 'item')} changed" if counted["items"] else text)
    items = list(islice(client.job_changes(group, job, path), limit + 1))
    if len(items) > limit:
        tell(f"warning: only the first {count(limit, 'item')}; --limit shows more\n")
    rows = [row for item in items[:limit] for row in _changed_fields(item)]
    columns = {"key": "KEY", "path": "FIELD", "before": "BEFORE", "after": "AFTER"}
    return Result(items[:limit], table(rows, columns, none))


def _changed_fields(item: ChangedItem) -> Iterator[dict[str, str]]:
    """Yield each changed field of an item as a row of a table."""
    for field in item["fields"]:
        values = {name: _short(value) for name, value in field.items() if name != "path"}
        yield {"key": item["key_hash"], "path": field["path"], **values}


def _short(value: Any) -> str:
    """Return a value as text; null and "" as JSON, so that neither looks like a value that is absent."""
    text = value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _MAX_VALUE else f"{text[: _MAX_VALUE - 1]}…"


@command
def rules_show(client: Client, group: str) -> Result:
    rules = client.group(group)["rules"]
    if not rules:
        group_names.warn(client, group)
    lines = ",\n".join(f"  {json.dumps(rule)}" for rule in rules)
    return Result(rules, f"[\n{lines}\n]" if rules else "[]")  # as `rules set` takes it


@storing_command
def rules_set(client: Client, group: str, file: str) -> Result:
    text = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    try:
        rules = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{file} is not JSON: {error}") from None
    group_names.warn_if_similar(client, group)
    stored = client.set_group(group, rules=rules)["rules"]
    return Result(stored, f"{count(len(stored), 'rule')} in group {group}")


@command
def reviews_list(client: Client, group: str) -> Result:
    reviews = client.reviews(group)
    columns = {"job_id": "JOB", "status": "STATUS", "review_date": "DATE", "comment": "COMMENT"}
    return Result(reviews, table(reviews, columns, _none("reviews", group, client) if not reviews else ""))


@storing_command
def reviews_add(client: Client, group: str, job_id: str, status: str, comment: str) -> Result:
    group_names.warn_if_similar(client, group)
    [review] = client.add_reviews(group, [{"job_id": job_id, "status": status, "comment": comment}])
    return Result(review, f"{job_id}: {status}")


@command
def fields_show(client: Client, group: str, job_id: str | None) -> Result:
    found = client.fields(group, job_id)
    columns = {"path": "FIELD", "fill_rate": "FILLED", "types": "TYPES", "examples": "EXAMPLES"}
    shown: list[Mapping[str, Any]] = [{**field, "examples": field["examples"][:3]} for field in found["fields"]]
    text = table(shown, columns, _none("items", group, client) if not shown else "")
    return Result(found, f"{text}\nover {count(found['items'], 'item')}" if shown else text)


@command
def token_show(client: Client) -> Result:
    token = client.token()
    expires = f", expires {token['expires']}" if token["expires"] else ""
    label = f" ({token['label']})" if token["label"] else ""
    scopes = ", ".join(token["scopes"])
    line = f"token {token['id']}{label} of organization {token['organization_id']}: {scopes}{expires}"
    if server := token.get("server"):  # not of an earlier version
        line += f"\nserver {server['version']}, encoder {server['encoder']}"
    return Result(token, line)
