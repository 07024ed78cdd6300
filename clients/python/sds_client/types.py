"""The shapes that the client sends and returns, for type checkers and editors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any, Literal, NotRequired, Required, TypedDict, final

# The JSON of a response.
Item = dict[str, Any]
# What a job did with an item.
Change = Literal["created", "changed", "unchanged", "missing"]
# A moment: ISO 8601 text, a date or a datetime with a time zone.
Moment = str | date


class File(TypedDict):
    """A file of an output."""

    id: str
    field: str
    url_etag_hash: str
    blob_key: str
    blob_url: str
    source_url: str
    create_date: str
    file_url: str
    file_type: str
    file_checksum: str
    file_metadata: dict[str, Any]


@final
class Output(TypedDict):
    """An item of a group. With `fields`, only `id` and the fields that were asked for are present."""

    source_url: str
    data: dict[str, Any]
    id: int
    output_id: str
    root_job_id: str
    create_date: str
    update_date: str
    last_scraped_date: str
    key_hash: str
    value_hash: str
    is_approved: bool
    tags: dict[str, Any]
    files: list[File]
    approved_by: NotRequired[str | None]  # of one item, and where `fields` asks
    approved_date: NotRequired[str]


@final
class Deletion(TypedDict):
    """The record of a deleted item. `"deleted" in item` tells it from an `Output`."""

    id: int
    output_id: str
    key_hash: str
    root_job_id: str
    source_url: str
    create_date: str
    update_date: str
    last_scraped_date: str
    tags: dict[str, Any]
    deleted: Literal[True]


class OutputInput(TypedDict, total=False):
    """An item for `push`, which takes any mapping: annotate yours with this to have it checked."""

    source_url: Required[str]
    data: Required[Mapping[str, Any]]
    root_job_id: Required[str]
    key_hash: str
    value_hash: str
    is_approved: bool
    tags: Mapping[str, Any]
    files: Sequence[Mapping[str, Any]]
    last_scraped_date: Moment


class OutputPatch(TypedDict, total=False):
    """A change for `patch_many`; the item is named by `output_id` or by `key_hash`."""

    output_id: str
    key_hash: str
    is_approved: bool
    tags: Mapping[str, Any]
    if_id: int


class Changed(TypedDict):
    """The result of the patch of one item, or of its restoring: `created`, `updated` or `unchanged`."""

    id: int
    output_id: str
    key_hash: str
    result: str


class PatchResult(TypedDict):
    """The result of one patch: `updated`, `unchanged`, `not_found`, `conflict` or `too_large`."""

    result: str
    id: int | None
    output_id: str | None
    key_hash: str | None


class Filters(TypedDict, total=False):
    """Which outputs to read; None is the same as no filter."""

    job_id: str | None
    created_after: Moment | None
    url: str | None
    country: str | None
    region: str | None
    is_approved: bool | None
    key_hash: str | None
    change: Change | None
    missing: str | None
    where: str | Sequence[str] | None
    rejected: bool | None


class ReadOptions(Filters, total=False):
    """Which outputs to read, and which of their paths: `fields="data.title,source_url"` or a list of paths."""

    fields: str | Sequence[str] | None


class DeleteFilters(TypedDict, total=False):
    """Which outputs to delete; all that are given must match. `all=True` is every output of the group."""

    job_id: str
    url: str
    country: str
    region: str
    is_approved: bool
    key_hash: str
    change: Change
    missing: str
    where: str | Sequence[str]
    rejected: bool
    scraped_before: Moment
    max_id: int
    all: Literal[True]


class Server(TypedDict):
    """The service that responds; `encoder` is `one_pass` or `python`."""

    version: str
    encoder: str


class Token(TypedDict):
    """The caller's own token, without its secret, and the service that it is for."""

    id: str
    organization_id: int
    scopes: list[str]
    label: str
    create_date: str
    expires: str | None
    server: Server


class Cookie(TypedDict):
    """A cookie; `expires` is in Unix seconds, -1 for a session cookie."""

    name: str
    value: str
    url: str
    domain: str
    path: str
    expires: int
    http_only: bool
    secure: bool


class LocalStorageEntry(TypedDict):
    """An entry of a site's local storage."""

    organization_id: int
    domain: str
    key: str
    value: str
    expires: str | None
    id: int
    group_id: int
    path: str
    create_date: str
    update_date: str


class Review(TypedDict):
    """The review of a job."""

    job_id: str
    review_id: str
    review_date: str
    status: str
    comment: str
    author: NotRequired[str]  # with the whole history, and in the jobs of a group


class Day(TypedDict):
    """How many items of a group were created and changed on one day (UTC); `net` is created less deleted."""

    date: str
    created: int
    changed: int
    net: int


class Group(TypedDict):
    """The counts of a group."""

    group_id: str
    items: int
    jobs: int
    approved: int
    last_id: int
    last_change: str | None
    retention_days: int | None
    verdict: str | None
    dropped: list[str]
    days: list[Day]


class Rule(TypedDict, total=False):
    """One check of a finished job: of the field at `path`, or of the job as a whole."""

    path: str
    min_fill: float
    type: str
    min: float
    max: float
    max_drop: float
    min_items: int
    max_missing: float
    max_changed: float


class GroupSettings(TypedDict, total=False):
    """The settings of a group that can be changed; None switches `retention_days` and `silent_hours` off."""

    history_days: int | None
    ignore: Sequence[str] | None
    retention_days: int | None
    rules: Sequence[Rule] | None
    silent_hours: int | None


class GroupWithSettings(Group):
    """The counts and settings of a group."""

    history_days: int
    silent_hours: int | None
    ignore: list[str]
    rules: list[Rule]


class Warning(TypedDict):
    """A path, at its place in a request, that none of the newest 1000 items of the group has."""

    loc: list[str]
    msg: str
    type: str


class GroupSet(GroupWithSettings):
    """The counts and settings of a group after a change, and what may be a typo in them."""

    warnings: list[Warning]


class BrokenRule(TypedDict):
    """A rule that a job has broken."""

    rule: Rule
    found: Any
    msg: str


class FillRate(TypedDict):
    """How many of a job's items have a field, as a fraction."""

    path: str
    fill_rate: float


class Job(TypedDict):
    """A job of a group, with its counts."""

    job_id: str
    series: str | None
    state: str
    items: int
    created: int
    changed: int
    unchanged: int
    shared: int
    first_write: str | None
    last_write: str | None
    finish_date: str | None
    missing: int | None
    deleted: int
    judged: int | None
    fields: list[FillRate]
    verdict: str | None
    problems: list[BrokenRule]
    review: Review | None


class JobSet(Job):
    """A job after its state was set."""

    held_back: str | None  # why nothing was deleted, although it was asked for
    warnings: list[Warning]


class ChangedField(TypedDict, total=False):
    """A field that a job changed; a value that was or is absent is left out."""

    path: Required[str]
    before: Any
    after: Any


class ChangedItem(TypedDict):
    """An item that a job changed, with the fields that differ."""

    id: int
    output_id: str
    key_hash: str
    source_url: str
    fields: list[ChangedField]


class FieldChanges(TypedDict):
    """How many items a job changed in one field."""

    path: str
    changed: int


class JobChangesSummary(TypedDict):
    """How many items a job changed, and in which fields; `more` if the time was not enough for all items."""

    items: int
    fields: list[FieldChanges]
    more: bool


class Field(TypedDict):
    """The statistics of one path in `data`."""

    path: str
    count: int
    fill_rate: float
    types: dict[str, int]
    min: Any
    max: Any
    examples: list[Any]


class GroupFields(TypedDict):
    """The fields of a group's data, over `items` items."""

    items: int
    fields: list[Field]


class WebhookResult(TypedDict):
    """The result of one attempt to deliver a message."""

    date: str
    type: str
    delivered: bool
    status: int | None
    error: str | None


class Webhook(TypedDict):
    """An address that events are sent to."""

    webhook_id: str
    url: str
    events: list[str]
    group_id: str | None
    label: str
    format: str
    create_date: str
    active: bool
    switched_off: str | None
    last_result: WebhookResult | None
    dropped: int


class WebhookCreated(Webhook):
    """A new webhook, with the secret that signs its messages."""

    secret: str


class Delivery(TypedDict):
    """A message to a webhook."""

    delivery_id: str
    type: str
    group_id: str | None
    create_date: str
    state: str
    attempts: int
    last_attempt: str | None
    next_attempt: str | None
    status: int | None
    response: str
    error: str | None


SessionState = Literal["ready", "resting", "leased", "needs_login", "blocked", "retired"]
# What a person may say of a session.
SessionMark = Literal["ready", "needs_login", "blocked", "retired"]


class PoolSettings(TypedDict, total=False):
    """The settings of a pool of sessions; those left out stay."""

    lease_seconds: int
    max_lease_seconds: int
    rest_seconds: int
    max_errors: int
    max_uses: int | None
    max_age_days: int | None
    blocked_rest_seconds: int | None


class Pool(PoolSettings):
    """A pool with its settings and the number of its sessions by state."""

    pool: str
    sessions: dict[SessionState, int]


class Session(TypedDict):
    """A session of a pool, without its secrets."""

    pool: str
    name: str
    state: SessionState
    note: str
    version: int
    uses: int
    errors: float
    create_date: str
    update_date: str
    last_used: str | None
    rest_until: str | None
    owner: str | None
    lease_expires: str | None


class SessionWithSecrets(Session):
    """A session with its secrets: Playwright's storageState, and what else was stored with it."""

    storage_state: Item | None
    user_data: Item | None


class LeaseOptions(TypedDict, total=False):
    """Which session to lease, for how long and for whom; `shared` is for reading only, beside others."""

    name: str
    seconds: int
    owner: str
    shared: bool
