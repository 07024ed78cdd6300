"""Commands about webhooks."""

from __future__ import annotations

import argparse
from typing import Any, Literal

from sds_client.cli.outputs import confirm
from sds_client.cli.printing import Result, table
from sds_client.cli.running import command, storing_command
from sds_client.sync import Client

_EVENTS = (
    *("job.finished", "job.failed", "group.changed", "group.silent"),
    *("session.needs_login", "session.blocked", "pool.empty"),
)
_FOR_PROGRAMS, _FOR_PEOPLE = ("job.finished", "group.changed"), ("job.failed", "group.silent")
_HELP = f"repeatable; default: {', '.join(_FOR_PROGRAMS)}, for people {', '.join(_FOR_PEOPLE)}"
Format = Literal["standard", "slack", "discord", "teams"]


def add(commands: argparse._SubParsersAction[Any], common: argparse.ArgumentParser) -> None:
    """Add the commands to a command line."""
    webhooks = commands.add_parser("webhooks", help="addresses that events are sent to")
    actions = webhooks.add_subparsers(required=True, metavar="ACTION")
    listed = actions.add_parser("list", parents=[common], help="the webhooks with their last results")
    listed.set_defaults(command=webhooks_list)
    added = actions.add_parser("add", parents=[common], help="add a webhook and show its secret once")
    added.add_argument("address", metavar="URL", help="where messages are sent")
    added.add_argument("--event", dest="events", action="append", choices=_EVENTS, help=_HELP)
    added.add_argument("--group", help="only events of this group")
    added.add_argument("--label", default="")
    added.add_argument("--format", choices=["standard", "slack", "discord", "teams"], default="standard")
    added.set_defaults(command=webhooks_add)
    for name, help, work in (
        ("delete", "delete a webhook; asks first", webhooks_delete),
        ("test", "send a test message and show the result", webhooks_test),
        ("deliveries", "the last messages, newest first", webhooks_deliveries),
    ):
        parser = actions.add_parser(name, parents=[common], help=help)
        parser.add_argument("webhook_id")
        parser.set_defaults(command=work)
        if name == "delete":
            parser.add_argument("--yes", action="store_true", help="do not ask")


@command
def webhooks_list(client: Client) -> Result:
    webhooks = client.webhooks()
    columns = {
        "webhook_id": "WEBHOOK",
        "url": "URL",
        "events": "EVENTS",
        "format": "FORMAT",
        "group_id": "GROUP",
        "active": "ACTIVE",
        "last_result.status": "LAST STATUS",
        "label": "LABEL",
    }
    return Result(webhooks, table(webhooks, columns, "no webhooks"))


@storing_command
def webhooks_add(
    client: Client, address: str, events: list[str] | None, group: str | None, label: str, format: Format
) -> Result:
    chosen = events or (_FOR_PROGRAMS if format == "standard" else _FOR_PEOPLE)
    webhook = client.add_webhook(address, chosen, group=group, label=label, format=format)
    secret = f"\nsecret, shown only this once: {webhook['secret']}" if format == "standard" else ""
    return Result(webhook, f"webhook {webhook['webhook_id']}{secret}")


@storing_command
def webhooks_delete(client: Client, webhook_id: str, yes: bool) -> Result:
    confirm(f"Delete the webhook {webhook_id} and its messages?", yes)
    client.delete_webhook(webhook_id)
    return Result({"deleted": 1}, "deleted")


@storing_command
def webhooks_test(client: Client, webhook_id: str) -> Result:
    delivery = client.test_webhook(webhook_id)
    outcome = delivery["error"] or f"status {delivery['status']}"
    return Result(delivery, f"{delivery['state']}: {outcome}", 0 if delivery["state"] == "delivered" else 1)


@command
def webhooks_deliveries(client: Client, webhook_id: str) -> Result:
    deliveries = client.webhook_deliveries(webhook_id)
    columns = {
        "create_date": "DATE",
        "type": "EVENT",
        "group_id": "GROUP",
        "state": "STATE",
        "attempts": "ATTEMPTS",
        "status": "STATUS",
        "error": "ERROR",
    }
    return Result(deliveries, table(deliveries, columns, "no deliveries"))
