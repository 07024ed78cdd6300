"""Webhooks, and the results of their deliveries."""

from typing import Any

from marshmallow import ValidationError, fields

from schemas.base import Base, Choice, Text, messages, optional, problem

EVENTS = (
    *("job.finished", "job.failed", "group.changed", "group.silent"),
    *("session.needs_login", "session.blocked", "pool.empty"),
)
FORMATS = ("standard", "slack", "discord", "teams")


class Events(fields.List[str]):
    """Some of the events, each once."""

    default_error_messages = messages("list_type", "Must be an array")

    def __init__(self, **kwargs: Any) -> None:
        metadata = {"minItems": 1, "uniqueItems": True, **kwargs.pop("metadata", {})}
        super().__init__(Choice(*EVENTS), metadata=metadata, **kwargs)

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> list[Any]:
        if isinstance(value, list) and not 0 < len(value) <= len(EVENTS):
            raise ValidationError([problem("value_error", f"Must be some of {', '.join(EVENTS)}")])
        events: list[Any] = super()._deserialize(value, *args, **kwargs)
        if len(set(events)) < len(events):
            raise ValidationError([problem("value_error", "Must not name an event twice")])
        return events


class WebhookInput(Base):
    url = Text(
        required=True,
        min_length=1,
        max_length=2048,
        metadata={"description": "An https URL with a public address", "format": "uri"},
    )
    events = Events(required=True)
    group_id = optional(
        Text, min_length=1, max_length=256, description="Only this group; null: every group of the organization"
    )
    label = Text(load_default="", max_length=256)
    format = Choice(
        *FORMATS,
        load_default="standard",
        metadata={"description": "standard: signed JSON; slack, discord, teams: a message for people, not signed"},
    )


class WebhookResult(Base):
    date = fields.DateTime(required=True)
    type = fields.String(required=True)
    delivered = fields.Boolean(required=True)
    status = fields.Integer(required=True, allow_none=True)
    error = fields.String(required=True, allow_none=True)


class Webhook(Base):
    webhook_id = fields.String(required=True)
    url = fields.String(required=True)
    events = fields.List(fields.String(), required=True)
    group_id = fields.String(required=True, allow_none=True)
    label = fields.String(required=True)
    format = fields.String(required=True, metadata={"enum": list(FORMATS)})
    create_date = fields.DateTime(required=True)
    active = fields.Boolean(required=True)
    switched_off = fields.DateTime(
        required=True,
        allow_none=True,
        metadata={"description": "When it had accepted nothing for 24 hours and of 20 messages"},
    )
    last_result = fields.Nested(
        WebhookResult, required=True, allow_none=True, metadata={"description": "What came of the newest attempt"}
    )
    dropped = fields.Integer(
        required=True,
        metadata={"description": "Messages dropped because too many waited: at most 1000 and 1 MB do, the newest"},
    )


class WebhookCreated(Webhook):
    secret = fields.String(required=True, metadata={"description": "Signs the messages; shown only here"})


class Delivery(Base):
    delivery_id = fields.String(required=True, metadata={"description": "The header webhook-id of the message"})
    type = fields.String(required=True)
    group_id = fields.String(required=True, allow_none=True)
    create_date = fields.DateTime(required=True)
    state = fields.String(required=True, metadata={"enum": ["pending", "delivered", "failed"]})
    attempts = fields.Integer(required=True)
    last_attempt = fields.DateTime(required=True, allow_none=True)
    next_attempt = fields.DateTime(required=True, allow_none=True)
    status = fields.Integer(required=True, allow_none=True)
    response = fields.String(required=True, metadata={"description": "Its first 200 characters"})
    error = fields.String(required=True, allow_none=True)


class WebhookDeleted(Base):
    deleted = fields.Integer(required=True)
