"""Outputs of a group: what scrapers write, and the queries and responses of consumers."""

from collections.abc import Mapping
from typing import Any

from marshmallow import ValidationError, fields

from schemas.base import (
    Base,
    Choice,
    Date,
    Digits,
    Flag,
    JsonObject,
    ListOf,
    QueryFlag,
    Text,
    WholeNumber,
    messages,
    optional,
    problem,
)
from schemas.paths import Conditions, DataPath, are_names

CHANGES = ("created", "changed", "unchanged", "missing")


class FileInput(Base):
    id = Text(max_length=256, metadata={"description": "Given by the service when absent"})
    field = Text(load_default="", max_length=1024)
    url_etag_hash = Text(load_default="", max_length=1024)
    blob_key = Text(load_default="", max_length=8192)
    blob_url = Text(load_default="", max_length=8192)
    source_url = Text(load_default="", max_length=8192)
    create_date = Date(metadata={"description": "Given by the service when absent"})
    file_url = Text(load_default="", max_length=8192)
    file_type = Text(load_default="", max_length=256)
    file_checksum = Text(load_default="", max_length=1024)
    file_metadata = JsonObject(load_default=dict)


class OutputInput(Base):
    source_url = Text(required=True, max_length=8192)
    data = JsonObject(required=True, metadata={"description": "Any JSON object"})
    root_job_id = Text(required=True, min_length=1, max_length=256)
    key_hash = Text(
        max_length=256,
        metadata={
            "description": "The item's identity inside the group. "
            "Default: SHA-256 over source_url and the canonical JSON of data"
        },
    )
    value_hash = Text(
        max_length=256,
        metadata={"description": "Default: SHA-256 over the canonical JSON of data"},
    )
    is_approved = Flag(
        metadata={
            "description": "When left out: false for a new item, kept for one whose data is the same, "
            "false again when data changed"
        }
    )
    tags = JsonObject(load_default=dict)
    files = ListOf(FileInput, load_default=list, max_length=1000)
    last_scraped_date = Date(metadata={"description": "Default: now"})

    aliases = {"url": "source_url", "job_id": "root_job_id", "key": "key_hash", "scraped_at": "last_scraped_date"}

    def hint(self, name: str, data: Mapping[str, Any]) -> str:
        """Return where a field of the caller's own belongs, or which field was meant."""
        if name in _SERVED:
            return "the service gives it; leave it out"
        field = "tags" if name in _TAGS else "data"
        return super().hint(name, data) or f'put it into {field}, as in "{field}": {{"{name}": …}}'


# Filters of reading that compare a tag.
_TAGS = {"country", "region"}
# Fields that a reader gets, and a writer may not send.
_SERVED = {"id", "output_id", "create_date", "update_date", "deleted"}


class File(Base):
    id = fields.String(required=True)
    field = fields.String(required=True)
    url_etag_hash = fields.String(required=True)
    blob_key = fields.String(required=True)
    blob_url = fields.String(required=True)
    source_url = fields.String(required=True)
    create_date = fields.DateTime(required=True)
    file_url = fields.String(required=True)
    file_type = fields.String(required=True)
    file_checksum = fields.String(required=True)
    file_metadata = fields.Dict(required=True)


class Output(Base):
    source_url = fields.String(required=True)
    data = fields.Dict(required=True)
    id = fields.Integer(required=True)
    output_id = fields.String(required=True)
    root_job_id = fields.String(required=True)
    create_date = fields.DateTime(required=True)
    update_date = fields.DateTime(required=True)
    last_scraped_date = fields.DateTime(required=True)
    key_hash = fields.String(required=True)
    value_hash = fields.String(required=True)
    is_approved = fields.Boolean(required=True)
    tags = fields.Dict(required=True)
    files = fields.List(fields.Nested(File), required=True)
    deleted = fields.Boolean(metadata={"description": "Only in the record of a deletion: its data and files are empty"})
    approved_by = fields.String(
        allow_none=True,
        metadata={
            "description": "The label of the token that approved or rejected it; of one item, and where `fields` asks"
        },
    )
    approved_date = fields.DateTime(metadata={"description": "When it was approved or rejected; see approved_by"})


class Paths(Text):
    """Paths into an output, separated by commas: `data.title,source_url`."""

    max_paths = 100
    nested = ("data", "tags", "files")  # the fields that have members

    def _deserialize(  # type: ignore[override]
        self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any
    ) -> tuple[str, ...]:
        paths = dict.fromkeys(super()._deserialize(value, attr, data, **kwargs).split(","))
        if len(paths) > self.max_paths:
            raise ValidationError([problem("too_many", f"Must be at most {self.max_paths} paths")])
        kept = []
        for path in paths:
            names = path.split(".")
            known = Output._declared_fields if len(names) == 1 else self.nested
            if names[0] not in known or not are_names(names):
                raise ValidationError([problem("value_error", "Must be paths such as data.title,source_url")])
            # A path below another one that is kept adds nothing.
            if not any(".".join(names[:count]) in paths for count in range(1, len(names))):
                kept.append(path)
        return tuple(kept)


class OutputFilters(Base):
    """The filters of the outputs of a group."""

    job_id = optional(Text, max_length=256, description="Only outputs of this root scraping job; else of all jobs")
    url = optional(Text, max_length=8192, description="Only outputs of exactly this source URL, with protocol and path")
    key_hash = optional(Text, max_length=256, description="Only the output with this key")
    country = optional(
        Text, max_length=1024, description="Only outputs of this country: its name, exactly as in tags.country"
    )
    region = optional(
        Text, max_length=1024, description="Only outputs of this region: its ISO 3166-2 code, exactly as in tags.region"
    )
    is_approved = optional(QueryFlag, description="Only outputs that are, or are not, approved")
    change = optional(
        Choice, *CHANGES, description="Only outputs that job_id created, changed, found unchanged, or did not see"
    )
    missing = optional(
        DataPath, description='Only outputs where this field of data is absent, null, "", [] or {}: price.amount'
    )
    where = Conditions(
        metadata={
            "description": "Only outputs where a field of data has this value (price.currency:EUR), has another one or "
            "none (!=), is greater or less (>, >=, <, <=) or contains a text (~); give it several times and all hold"
        }
    )
    rejected = optional(QueryFlag, description="Only outputs that have, or have not, tags.rejected")


class Deletions(QueryFlag):
    """`true`, `false`, or `only`."""

    default_error_messages = messages("bool_type", "Must be true, false or only")

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> Any:
        return value if value == "only" else super()._deserialize(value, *args, **kwargs)


class OutputSelection(OutputFilters):
    """Which outputs are read, and which of their fields."""

    created_after = optional(
        Date,
        description="Only outputs created or updated on or after this moment: 2026-01-31 or 2026-01-31T12:00:00Z",
    )
    cursor = Digits(
        minimum=0, load_default=0, metadata={"description": "Only ids greater than this; with order=desc, lower"}
    )
    order = Choice("asc", "desc", load_default="asc", metadata={"description": "desc: newest change first"})
    deleted = Deletions(
        load_default=False,
        metadata={"description": "true: deletions are part of the change order too; only: nothing but deletions"},
    )
    # Not `fields`, which is Marshmallow's own name.
    kept = Paths(
        data_key="fields",
        load_default=(),
        allow_none=True,
        max_length=8192,
        metadata={
            "description": "Keep only these paths, separated by commas; id is always kept. "
            "The items then have these members only: a typed client reads them as text, from the export",
            "default": None,
        },
    )
    walk = optional(
        Digits,
        minimum=0,
        description="With deleted=true: the newest id when the walk began, as next_url carries it",
    )


class OutputsQuery(OutputSelection):
    limit = Digits(minimum=1, maximum=1000, load_default=10, metadata={"description": "Items of a page, at most"})
    wait = Digits(
        minimum=0,
        maximum=60,
        load_default=0,
        metadata={"description": "Seconds to wait for something new where the page would be empty"},
    )


class ExportQuery(OutputSelection):
    format = Choice(
        "ndjson",
        "csv",
        "json",
        "sse",
        "parquet",
        load_default="ndjson",
        metadata={"description": "parquet: where the service has pyarrow"},
    )
    follow = QueryFlag(
        load_default=False, metadata={"description": "true: stay open and send what comes (ndjson, sse)"}
    )
    limit = optional(Digits, minimum=1, description="At most this many items")
    safe = QueryFlag(
        load_default=False,
        metadata={"description": "csv: put an apostrophe before texts that a spreadsheet takes for a formula"},
    )


class DeleteQuery(OutputFilters):
    scraped_before = optional(Date, description="Only outputs last scraped before this moment")
    max_id = optional(
        Digits, minimum=1, description="Only outputs with an id up to this: what has come or changed since stays"
    )
    all = QueryFlag(load_default=False, metadata={"description": "true: every output of the group"})
    dry_run = QueryFlag(load_default=False, metadata={"description": "true: count what matches, and delete nothing"})
    cursor = optional(Text, max_length=256, description="From the response before, to continue the same deletion")


class VersionsQuery(Base):
    limit = Digits(minimum=1, maximum=100, load_default=10, metadata={"description": "Versions of a page, at most"})
    cursor = Digits(minimum=0, load_default=0, metadata={"description": "Only ids lower than this; 0: from the newest"})


class Pagination(Base):
    next_url = fields.String(required=True, allow_none=True)
    next_cursor = fields.Integer(required=True, allow_none=True)


class OutputsPage(Base):
    metadata = fields.Nested(Pagination, required=True)
    items = fields.List(fields.Nested(Output), required=True)


class Version(Output):
    by = fields.String(
        allow_none=True,
        metadata={"description": "The label of the token whose change replaced this version; null: the service"},
    )
    replaced_date = fields.DateTime(required=True)


class VersionsPage(Base):
    metadata = fields.Nested(Pagination, required=True)
    items = fields.List(fields.Nested(Version), required=True)


class RestoreInput(Base):
    id = WholeNumber(
        minimum=1, metadata={"description": "Which version; default: the newest one of an item that was deleted"}
    )


class OutputResult(Base):
    id = fields.Integer(required=True)
    output_id = fields.String(required=True)
    key_hash = fields.String(required=True)
    result = fields.String(required=True, metadata={"enum": ["created", "updated", "unchanged"]})


class OutputsWritten(Base):
    created = fields.Integer(required=True)
    updated = fields.Integer(required=True)
    unchanged = fields.Integer(required=True)
    items = fields.List(fields.Nested(OutputResult), required=True)


class OutputPatch(Base):
    is_approved = Flag()
    tags = JsonObject(metadata={"description": "A JSON merge patch (RFC 7396): null removes a member"})


class OutputPatchOf(OutputPatch):
    output_id = Text(
        min_length=1, max_length=256, metadata={"description": "Which output; exactly one of output_id and key_hash"}
    )
    key_hash = Text(max_length=256, metadata={"description": "See output_id"})
    if_id = WholeNumber(minimum=0, metadata={"description": "Only if the output still has this id"})


class PatchResult(Base):
    id = fields.Integer(required=True, allow_none=True)
    output_id = fields.String(required=True, allow_none=True)
    key_hash = fields.String(required=True, allow_none=True)
    result = fields.String(
        required=True, metadata={"enum": ["updated", "unchanged", "not_found", "conflict", "too_large"]}
    )


class OutputsPatched(Base):
    updated = fields.Integer(required=True)
    unchanged = fields.Integer(required=True)
    not_found = fields.Integer(required=True)
    conflict = fields.Integer(required=True)
    too_large = fields.Integer(required=True)
    items = fields.List(fields.Nested(PatchResult), required=True)


class OutputDeleted(Base):
    deleted = fields.Integer(required=True)


class OutputsDeleted(Base):
    deleted = fields.Integer(metadata={"description": "Absent with dry_run=true"})
    matched = fields.Integer(metadata={"description": "With dry_run=true: what would have been deleted"})
    more = fields.Boolean(
        required=True, metadata={"description": "true: send the same request again, with `cursor`, for the rest"}
    )
    cursor = fields.String(
        required=True, allow_none=True, metadata={"description": "Where the next call goes on; null at the end"}
    )


class DeletionQuery(Base):
    """The deletion of a whole group."""

    cursor = optional(Text, max_length=256, description="From the response before, to continue the same deletion")
