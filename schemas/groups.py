"""Groups, their jobs and the fields of their data."""

from typing import Any

from marshmallow import ValidationError, fields

from schemas.base import Base, Choice, Digits, ListOf, QueryFlag, Text, WholeNumber, optional, problem
from schemas.errors import Problem
from schemas.outputs import Pagination
from schemas.paths import DataPaths
from schemas.reviews import Review
from schemas.rules import Rule


class Day(Base):
    date = fields.Date(required=True)
    created = fields.Integer(required=True)
    changed = fields.Integer(required=True)
    net = fields.Integer(
        required=True,
        metadata={"description": "Items created less items deleted: the sum up to a day is what the group held then"},
    )


class Group(Base):
    group_id = fields.String(required=True)
    items = fields.Integer(required=True)
    jobs = fields.Integer(required=True)
    approved = fields.Integer(required=True)
    last_id = fields.Integer(required=True)
    last_change = fields.DateTime(required=True, allow_none=True)
    retention_days = fields.Integer(required=True, allow_none=True)
    verdict = fields.String(
        required=True,
        allow_none=True,
        metadata={"description": "Of the newest finished job: passed, failed, or null without rules"},
    )
    dropped = fields.List(
        fields.String(),
        required=True,
        metadata={
            "description": "Up to five fields that the newest finished job filled less than the one before it, "
            "by more than 10 percentage points"
        },
    )
    days = fields.List(fields.Nested(Day), required=True)


class GroupWithSettings(Group):
    history_days = fields.Integer(required=True)
    silent_hours = fields.Integer(required=True, allow_none=True)
    ignore = fields.List(fields.String(), required=True)
    rules = fields.List(fields.Nested(Rule), required=True)


class GroupSet(GroupWithSettings):
    warnings = fields.List(
        fields.Nested(Problem),
        required=True,
        metadata={"description": "Paths of the request that none of the newest 1000 items has, with the nearest"},
    )


_MAX_RULES_BYTES = 16 * 1024


def _check_length(rules: list[dict[str, Any]]) -> None:
    """Refuse rules whose paths are long together: broken rules are stored with each job."""
    if sum(len(rule.get("path", "").encode()) for rule in rules) > _MAX_RULES_BYTES:
        raise ValidationError([problem("too_large", f"The paths may have {_MAX_RULES_BYTES} bytes together")])


class GroupSettings(Base):
    """The settings of a group; those that are left out stay unchanged."""

    retention_days = WholeNumber(
        allow_none=True,
        minimum=1,
        maximum=3650,
        metadata={
            "description": "Items not scraped for this many days are deleted; null: never. Needs the scope delete"
        },
    )
    history_days = WholeNumber(
        minimum=0,
        maximum=365,
        metadata={
            "description": "Earlier versions of items are kept for this many days; 0: none. To lower it needs "
            "the scope delete"
        },
    )
    silent_hours = WholeNumber(
        allow_none=True,
        minimum=1,
        maximum=8760,
        metadata={"description": "Webhooks get group.silent when no job has written for this long; null: never"},
    )
    ignore = DataPaths(
        max_length=50,
        metadata={
            "description": "Paths below data, with or without the name data: items that differ only there are unchanged"
        },
    )
    rules = ListOf(
        Rule,
        max_length=100,
        validate=_check_length,
        metadata={
            "description": f"What a finished job is judged by; paths of {_MAX_RULES_BYTES} bytes together at most"
        },
    )


class JobInput(Base):
    state = Choice("running", "finished", "failed", required=True)
    series = Text(
        allow_none=True,
        max_length=64,
        min_length=1,
        metadata={"description": "The part of the group that it crawls; null: the group's own. Left out: stays"},
    )
    missing = Choice(
        "keep",
        "delete",
        load_default="keep",
        metadata={"description": "delete: delete what the job did not see, unless it failed. Needs the scope delete"},
    )


class BrokenRule(Base):
    rule = fields.Nested(Rule, required=True)
    found = fields.Raw(required=True, metadata={"description": "What was found instead"})
    msg = fields.String(required=True)


class FillRate(Base):
    path = fields.String(required=True)
    fill_rate = fields.Float(required=True)


class Job(Base):
    job_id = fields.String(required=True)
    series = fields.String(required=True, allow_none=True)
    state = fields.String(required=True, metadata={"enum": ["running", "finished", "failed"]})
    items = fields.Integer(required=True, metadata={"description": "Items that it holds now"})
    created = fields.Integer(required=True)
    changed = fields.Integer(required=True)
    unchanged = fields.Integer(required=True)
    shared = fields.Integer(
        required=True, metadata={"description": "Items that it took over from jobs of other series"}
    )
    first_write = fields.DateTime(required=True, allow_none=True)
    last_write = fields.DateTime(required=True, allow_none=True)
    finish_date = fields.DateTime(required=True, allow_none=True)
    missing = fields.Integer(
        required=True,
        allow_none=True,
        metadata={"description": "Items of its series that it had not seen when it finished"},
    )
    deleted = fields.Integer(required=True, metadata={"description": "Missing items that it has deleted"})
    judged = fields.Integer(
        required=True,
        allow_none=True,
        metadata={
            "description": "Items whose fields were compared with the rules: all, or up to 100,000 spread evenly"
        },
    )
    fields_ = fields.List(
        fields.Nested(FillRate),
        required=True,
        data_key="fields",
        metadata={"description": "Fill rates over at most 1000 of the items judged, spread evenly, the fullest first"},
    )
    verdict = fields.String(required=True, allow_none=True, metadata={"enum": ["passed", "failed", None]})
    problems = fields.List(fields.Nested(BrokenRule), required=True)
    review = fields.Nested(Review, required=True, allow_none=True, metadata={"description": "Its latest review"})


class JobChangesQuery(Base):
    limit = Digits(minimum=1, maximum=1000, load_default=10, metadata={"description": "Items of a page, at most"})
    cursor = Digits(minimum=0, load_default=0, metadata={"description": "Only ids greater than this"})
    path = optional(
        Text,
        max_length=1024,
        description="Only changes of this field, in full or below data: price.amount, tags.country",
    )
    summary = QueryFlag(
        load_default=False,
        allow_none=True,
        metadata={"description": "true: how many items changed, and in which fields"},
    )


class ChangedField(Base):
    path = fields.String(required=True)
    before = fields.Raw(allow_none=True, metadata={"description": "Absent where the field was not there"})
    after = fields.Raw(allow_none=True, metadata={"description": "Absent where the field is no longer there"})


class ChangedItem(Base):
    id = fields.Integer(required=True)
    output_id = fields.String(required=True)
    key_hash = fields.String(required=True)
    source_url = fields.String(required=True)
    fields_ = fields.List(fields.Nested(ChangedField), required=True, data_key="fields")


class FieldChanges(Base):
    path = fields.String(required=True)
    changed = fields.Integer(required=True, metadata={"description": "Items in which it changed"})


class JobChanges(Base):
    """A page of changed items, or with `summary=true` their number and fields."""

    metadata = fields.Nested(Pagination)
    items = fields.Raw(
        required=True,
        metadata={"description": "The changed items (ChangedItem); with summary=true their number"},
    )
    fields_ = fields.List(
        fields.Nested(FieldChanges),
        data_key="fields",
        metadata={"description": "With summary=true: most changed first"},
    )
    more = fields.Boolean(metadata={"description": "With summary=true: whether the time was not enough for all items"})


class JobPut(Job):
    more = fields.Boolean(
        required=True,
        metadata={
            "description": "true: not all that is missing is deleted; send the same again, or let the service continue"
        },
    )
    held_back = fields.String(
        required=True,
        allow_none=True,
        metadata={"description": "Why nothing that is missing was deleted, although `delete` was asked for"},
    )
    warnings = fields.List(
        fields.Nested(Problem),
        required=True,
        metadata={"description": "A series that no job of the group has had, with the nearest"},
    )


class FieldsQuery(Base):
    job_id = optional(Text, max_length=256, description="Only items of this job")
    limit = Digits(
        minimum=1, maximum=1000, load_default=1000, metadata={"description": "How many of the newest items are read"}
    )


class FieldStatistics(Base):
    path = fields.String(required=True)
    count = fields.Integer(required=True)
    fill_rate = fields.Float(required=True)
    types = fields.Dict(required=True, metadata={"description": "Type -> number of values"})
    min = fields.Raw(required=True, allow_none=True)
    max = fields.Raw(required=True, allow_none=True)
    examples = fields.List(fields.Raw(), required=True)


class GroupFields(Base):
    items = fields.Integer(required=True)
    fields_ = fields.List(fields.Nested(FieldStatistics), required=True, data_key="fields")
