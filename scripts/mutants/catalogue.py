"""The mutants: each breaks one promise in one place, and names the tests that must notice it.

The place is a function, class or constant of the file, so that a mutant stays valid when lines move.
"""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """A change of one place of the code, and the tests that claim to cover it."""

    name: str
    file: str
    place: str  # such as `Ids._update`; empty for the whole file
    old: str
    new: str
    tests: tuple[str, ...]
    note: str = ""  # why it may survive


_IDS = ("tests/store/test_ids.py", "tests/store/test_pages.py", "tests/store/test_recovery.py")
_QUEUE = ("tests/store/test_write_queue.py", "tests/store/test_upserts.py", "tests/api/test_output_changes.py")
_SIGHTS = ("tests/store/test_sights.py", "tests/api/test_guarded_deletions.py", "tests/store/test_crawls.py")
_WALKS = ("tests/store/test_pages.py", "tests/api/test_deletion_records.py", "tests/api/test_walking_outputs.py")
_JUDGED = ("tests/store/test_rules.py", "tests/store/test_judging.py", "tests/api/test_crawls.py")
_STATE = ("tests/api/test_cookies.py", "tests/api/test_local_storage.py", "tests/api/test_deletion_of_state.py")
_SECRETS = ("tests/store/test_secrets.py", "tests/store/test_sessions_secrets.py")
_TOKENS = ("tests/api/test_auth.py", "tests/api/test_tokens.py", "tests/api/test_scopes.py")
_LEASES = ("tests/api/test_sessions_leases.py", "tests/api/test_sessions.py", "tests/api/test_sessions_waiting.py")
_HOOKS = ("tests/store/test_webhooks.py", "tests/api/test_webhooks.py", "tests/http/test_outgoing.py")
_GATES = ("tests/capacity", "tests/http/test_fairness.py", "tests/http/test_limits.py")
_COUNTS = ("tests/store/test_counts.py", "tests/store/test_crawls.py")

_O = "service/store/outputs"
_S = "service/store"

MUTANTS = [
    # Ids and the watermark
    Mutant(
        "a batch in flight does not hide itself",
        f"{_O}/ids.py",
        "readable",
        'min([*(batch["first"] for batch in group.get("open", ())), group.get("last_id", 0) + 1])',
        'min([group.get("last_id", 0) + 1])',
        _IDS,
    ),
    Mutant(
        "the watermark is one too high",
        f"{_O}/ids.py",
        "Ids._read",
        "end = readable(document) + 1",
        "end = readable(document) + 2",
        _IDS,
    ),
    Mutant(
        "a finished batch stays in flight",
        f"{_O}/ids.py",
        "Ids._update",
        '{"$ne": ["$$this.token", batch.token]}',
        '{"$ne": ["$$this.token", ""]}',
        _IDS,
    ),
    Mutant(
        "ids are given twice",
        f"{_O}/ids.py",
        "Ids._allocation",
        '{"$add": [first, size]}',
        '{"$add": [first, size - 1]}',
        (*_IDS, *_QUEUE),
    ),
    Mutant(
        "a paused group takes writes",
        f"{_O}/ids.py",
        "Ids._allocation",
        'has_room, {"$lte": [{"$ifNull": ["$paused", "$$NOW"]}, "$$NOW"]}]',
        "has_room]",
        _COUNTS,
    ),
    Mutant(
        "dates of a group may go back",
        f"{_O}/ids.py",
        "Ids._allocation",
        '{"$max": ["$now", self.clock or "$$NOW"]}',
        '(self.clock or "$$NOW")',
        (*_IDS, "tests/api/test_output_filters.py"),
    ),
    Mutant(
        "a caller shares a read that began before it asked",
        f"{_O}/ids.py",
        "Ids._read_in_turn",
        "del self._next_reads[group]\n            with time_budget(self._timeout):\n"
        "                return await self._read(group)",
        "with time_budget(self._timeout):\n                read = await self._read(group)\n"
        "            self._next_reads.pop(group, None)\n            return read",
        _IDS,
    ),
    # Recovery
    Mutant(
        "a dead writer's ids get no tombstones",
        f"{_O}/recovery.py",
        "",
        "tombstones = await self.fence(batch)",
        "tombstones = 0",
        ("tests/store/test_recovery.py", "tests/store/test_life_cycle.py"),
    ),
    Mutant(
        "one batch that cannot be ended stops the others",
        f"{_O}/recovery.py",
        "",
        'log.error("ending a batch of a dead writer failed", extra={"error": type(error).__name__})',
        "raise",
        ("tests/store/test_recovery.py",),
    ),
    Mutant(
        "a live writer's batch is ended",
        f"{_O}/recovery.py",
        "",
        'if entry["deadline"] < now\n',
        "",
        ("tests/store/test_recovery.py",),
    ),
    # Writing
    Mutant(
        "an update overwrites what another process has changed",
        f"{_O}/plan.py",
        "Plan._update",
        '{"id": known["id"], "root_job_id": known["root_job_id"], "seen": known.get("seen")}',
        "{}",
        (*_QUEUE, *_SIGHTS),
    ),
    Mutant(
        "an update ignores a sight in between",
        f"{_O}/plan.py",
        "Plan._update",
        ', "seen": known.get("seen")}',
        "}",
        _SIGHTS,
    ),
    Mutant(
        "a touch takes an item back that a later batch has seen",
        f"{_O}/plan.py",
        "Plan._touch_statement",
        "**not_seen_since(position)",
        "**{}",
        _SIGHTS,
    ),
    Mutant(
        "an item above this batch does not wait for the next one",
        f"{_O}/plan.py",
        "Plan.has_room",
        'max(known["id"], known.get("seen") or 0) >= self.batch.first',
        "False",
        (*_QUEUE, *_SIGHTS),
    ),
    Mutant(
        "a batch names any number of jobs",
        f"{_O}/plan.py",
        "_MAX_PAIRS",
        "50",
        "5000",
        (*_COUNTS, "tests/store/test_sights.py"),
        "The bound protects the size of the group's document, which a test reaches only with thousands of jobs.",
    ),
    Mutant(
        "changed items keep their approval",
        f"{_O}/plan.py",
        "_approval",
        "same_data(",
        "bool(",
        ("tests/api/test_output_changes.py", "tests/store/test_life.py"),
    ),
    Mutant(
        "a deletion ignores what was seen after it began",
        f"{_O}/plan.py",
        "Delete.selects",
        'is_seen = self.until is not None and (known.get("seen") or 0) > self.until',
        "is_seen = False",
        _SIGHTS,
    ),
    Mutant(
        "a patch ignores if_id",
        f"{_O}/plan.py",
        "Plan._patch",
        'if patch.if_ids is not None and known["id"] not in patch.if_ids:',
        "if False:",
        ("tests/api/test_output.py", "tests/api/test_patching_many.py"),
    ),
    Mutant(
        "a patch counts as a crawl's change",
        f"{_O}/plan.py",
        "Plan._set",
        '"$unset": {**unset, "changed_by": ""}',
        '"$unset": unset',
        ("tests/api/test_job_changes.py", "tests/store/test_sights.py"),
    ),
    # Missing items
    Mutant(
        "an item seen at the beginning is missing",
        f"{_O}/missing.py",
        "Missing.includes",
        "< self.beginning",
        "<= self.beginning",
        _SIGHTS,
    ),
    Mutant(
        "a job's own items are missing",
        f"{_O}/missing.py",
        "Missing.includes",
        'item["root_job_id"] != self.job_id and ',
        "",
        _SIGHTS,
        "An own item is seen at or after the beginning, so the second condition excludes it too.",
    ),
    Mutant(
        "sights do not count",
        f"{_O}/missing.py",
        "not_seen_since",
        '{"seen": {"$not": {"$gte": position}}}',
        '{"seen": {"$not": {"$lt": 0}}}',
        _SIGHTS,
    ),
    Mutant(
        "a failed verdict does not hold the deletion back",
        f"{_S}/missing_items.py",
        "MissingItems._held_back",
        'if job.get("verdict") == "failed":',
        "if False:",
        _SIGHTS,
    ),
    Mutant(
        "a job that saw nothing deletes everything",
        f"{_S}/missing_items.py",
        "MissingItems._held_back",
        "if sum(job.get(kind, 0) for kind in KINDS) <= 0:",
        "if False:",
        _SIGHTS,
    ),
    Mutant(
        "shared items do not hold the deletion back",
        f"{_S}/missing_items.py",
        "MissingItems._held_back",
        "if await self._is_shared(owner, job):",
        "if False:",
        _SIGHTS,
    ),
    Mutant(
        "more is deleted than was judged",
        f"{_S}/missing_items.py",
        "MissingItems._held_back",
        "if missing > judged:",
        "if False:",
        _SIGHTS,
    ),
    Mutant(
        "finished creates a job",
        f"{_S}/crawls.py",
        "Crawls.declare",
        "elif not await self._exists(group, job):\n            return {}",
        "else:\n            await self._ensure(group, job)",
        ("tests/api/test_crawls.py", "tests/api/test_guarded_deletions.py"),
    ),
    Mutant(
        "what is written after a deletion began is deleted",
        f"{_O}/pages.py",
        "Reading.selected",
        "._replace(end=until + 1)",
        "._replace(end=2**62)",
        (*_SIGHTS, "tests/store/test_deleting.py"),
    ),
    # Walks
    Mutant(
        "no 410 on a middle page",
        f"{_O}/pages.py",
        "Reading.page",
        "if query.deleted:\n            _check_expired(query, await self._ids.watermark(group))\n        return",
        "return",
        _WALKS,
    ),
    Mutant(
        "no 410 at the end of a walk",
        f"{_O}/pages.py",
        "Reading._last",
        "if query.deleted:\n            _check_expired(query, latest)",
        "pass",
        _WALKS,
    ),
    Mutant(
        "a walk ends although an item has moved on",
        f"{_O}/pages.py",
        "Reading._has_moved_on",
        'return bool(reply["cursor"]["firstBatch"])',
        "return False",
        _WALKS,
    ),
    Mutant(
        "deletions are shown to everybody",
        f"{_O}/query.py",
        "select",
        "passed_over = {} if query.deleted else dict(LIVE)",
        "passed_over = {}",
        ("tests/api/test_deletion_records.py", "tests/api/test_deleting.py"),
    ),
    Mutant(
        "a second indexed filter is forgotten",
        f"{_O}/query.py",
        "_conditions",
        "return of_content + of_jobs + of_ids",
        "return of_content + of_jobs",
        ("tests/api/test_deleting.py", "tests/store/test_deleting.py", "tests/api/test_output_filters.py"),
    ),
    # Judging
    Mutant(
        "min_items counts what others have seen",
        f"{_S}/rules.py",
        "_min_items",
        "min(facts.items, facts.seen)",
        "facts.items",
        _JUDGED,
    ),
    Mutant(
        "max is compared with the smallest value",
        f"{_S}/rules.py",
        "_bound",
        'if name == "max":\n        value = field.get("highest")',
        "pass",
        _JUDGED,
    ),
    Mutant(
        "max_missing leaves the job's own items out",
        f"{_S}/rules.py",
        "_max_missing",
        "facts.items + facts.missing",
        "facts.missing",
        _JUDGED,
    ),
    Mutant(
        "a larger drop than allowed passes",
        f"{_S}/rules.py",
        "_max_drop",
        "if drop <= allowed:",
        "if drop <= 1:",
        _JUDGED,
    ),
    Mutant(
        "a failed job is the new normal",
        f"{_S}/crawls.py",
        "Crawls._before",
        '"verdict": {"$ne": "failed"}, ',
        "",
        ("tests/api/test_crawls.py", "tests/store/test_crawls.py"),
    ),
    # Browser state
    Mutant(
        "local storage is stored twice",
        f"{_S}/indexes.py",
        "INDEXES",
        '"local_storage": [_index("identity", "organization_id", "domain", "path", "key", unique=True)]',
        '"local_storage": [_index("identity", "organization_id", "domain", "path", "key")]',
        ("tests/store/test_upserts.py", "tests/store/test_indexes.py"),
    ),
    Mutant(
        "cookies are stored twice",
        f"{_S}/indexes.py",
        "INDEXES",
        '"cookies": [_index("identity", "organization_id", "domain", "path_key", "name", unique=True)]',
        '"cookies": [_index("identity", "organization_id", "domain", "path_key", "name")]',
        ("tests/store/test_upserts.py", "tests/store/test_indexes.py"),
    ),
    Mutant(
        "the first of two equal cookies wins",
        f"{_S}/browser_state.py",
        "BrowserState._store",
        "for record in records}.values())",
        "for record in reversed(records)}.values())",
        _STATE,
    ),
    Mutant(
        "active lists what has expired",
        f"{_S}/browser_state.py",
        "BrowserState._where",
        '{"expires": {"$gt": at}}',
        '{"expires": {"$gte": self._expiry(datetime(1970, 1, 1, tzinfo=UTC))}}',
        _STATE,
    ),
    Mutant(
        "a deletion of expired records takes those that were set again",
        f"{_S}/browser_state.py",
        "BrowserState.delete",
        "{**where, **chosen}",
        '{"organization_id": organization_id, **chosen}',
        ("tests/api/test_deletion_of_state.py",),
        "Needs a write between two commands of one deletion.",
    ),
    # Secrets
    Mutant(
        "a sealed value opens in another record",
        f"{_S}/sealing.py",
        "SealedRecords._context",
        "fields = (*self.identity, *self.bound)",
        "fields = ()",
        _SECRETS,
    ),
    Mutant(
        "a sealed value opens in another organization",
        f"{_S}/sealing.py",
        "SealedRecords._context",
        'record["organization_id"], self.name',
        "0, self.name",
        _SECRETS,
    ),
    Mutant(
        "parts of the context run together",
        f"{_S}/vault.py",
        "_context",
        'b"%d:%b" % (len(p), p)',
        "p",
        _SECRETS,
    ),
    Mutant(
        "SEALED_ONLY opens plain values",
        f"{_S}/vault.py",
        "Vault.check_plain",
        "if self._sealed_only:",
        "if False:",
        _SECRETS,
    ),
    # Tokens
    Mutant(
        "a revoked token works",
        f"{_S}/tokens.py",
        "Token.valid_at",
        "self.revoked is None",
        "True",
        (*_TOKENS, "tests/api/test_tokens_that_end.py"),
    ),
    Mutant(
        "a token is cached for ever",
        "service/http/middleware/auth.py",
        "Authenticator._look_up",
        "asked_at + self._cache_seconds",
        "asked_at + 1e9",
        ("tests/api/test_auth.py", "tests/api/test_tokens.py"),
    ),
    Mutant(
        "a token revokes itself",
        "service/handlers/tokens.py",
        "delete",
        "if token_id == request[TOKEN].id:",
        "if False:",
        _TOKENS,
    ),
    Mutant(
        "admin can be granted",
        "schemas/tokens.py",
        "GRANTABLE",
        "SCOPES[:-1]",
        "SCOPES",
        _TOKENS,
    ),
    Mutant(
        "tokens of another organization are revoked",
        f"{_S}/tokens.py",
        "Tokens.of_id",
        '{"organization_id": organization_id, "_id": _of_id(id)}',
        '{"_id": _of_id(id)}',
        (*_TOKENS, "tests/api/test_organizations.py"),
    ),
    # Sessions
    Mutant(
        "a lease that has ended is live",
        f"{_S}/sessions/changes.py",
        "is_live",
        '{"$gt": ["$$this.until", NOW]}',
        '{"$gt": ["$$this.until", NEVER]}',
        _LEASES,
    ),
    Mutant(
        "a leased session is taken again",
        f"{_S}/sessions/leases.py",
        "Leases._take",
        '{**where, "state": "ready"}',
        '{**where, "state": {"$in": ["ready", "leased"]}}',
        _LEASES,
    ),
    Mutant(
        "a renewal shortens a lease",
        f"{_S}/sessions/changes.py",
        "renew",
        '{"$max": ["$$this.until", wanted]}',
        "wanted",
        _LEASES,
    ),
    Mutant(
        "a lease is renewed beyond its limit",
        f"{_S}/sessions/changes.py",
        "renew",
        '{"$min": [after(NOW, seconds or settings["lease_seconds"]), limit]}',
        'after(NOW, seconds or settings["lease_seconds"])',
        _LEASES,
    ),
    Mutant(
        "the worker wins over the person",
        f"{_S}/sessions/leases.py",
        "Leases._writes",
        ' or session.get("overridden")',
        "",
        _LEASES,
    ),
    Mutant(
        "an outcome that saves nothing saves",
        f"{_S}/sessions/changes.py",
        "SAVING",
        '("good", "bad")',
        '("good", "bad", "blocked", "logged_out")',
        _LEASES,
    ),
    Mutant(
        "unused rests and counts",
        f"{_S}/sessions/changes.py",
        "release",
        'int(outcome != "unused")',
        "1",
        _LEASES,
    ),
    Mutant(
        "another release of an ended lease gets the answer of the first",
        f"{_S}/sessions/receipts.py",
        "answer_of",
        'not hmac.compare_digest(receipt["digest"], digest)',
        "False",
        _LEASES,
    ),
    # Webhooks
    Mutant(
        "a private address is called",
        "service/http/outgoing.py",
        "is_public",
        "return ip.is_global and not ip.is_multicast and not ip.is_reserved",
        "return True",
        _HOOKS,
    ),
    Mutant(
        "a refused message switches a healthy webhook off",
        f"{_S}/deliveries.py",
        "Deliveries._switch_off",
        '"accepted": {"$not": {"$gt": moment - REFUSED_FOR}}',
        '"accepted": {"$exists": True}',
        _HOOKS,
    ),
    Mutant(
        "an old verdict follows a newer one",
        f"{_S}/messages.py",
        "Event.replaced",
        '"version": {"$lt": self.version}',
        '"version": {"$lt": 0}',
        _HOOKS,
    ),
    Mutant(
        "any number of messages wait",
        f"{_S}/deliveries.py",
        "Deliveries._drop_oldest",
        "if number <= MAX_WAITING and size <= MAX_WAITING_BYTES:\n            return",
        "return",
        _HOOKS,
    ),
    # Time and waking
    Mutant(
        "the time limit holds per call",
        f"{_S}/time_budget.py",
        "Budget.stop",
        "self._left -= time.monotonic() - self._started",
        "pass",
        ("tests/store/test_time_budget.py",),
    ),
    Mutant(
        "what came while the change stream was broken wakes nobody",
        f"{_S}/watch.py",
        "Watch._changes",
        "self._wake_all()",
        "pass",
        ("tests/store/test_watch.py",),
    ),
    # Capacity
    Mutant(
        "one organization takes everything",
        "service/capacity/gate.py",
        "Shares.take",
        "and of_organization + amount <= self._organization_share",
        "",
        _GATES,
    ),
    Mutant(
        "one token takes the organization's share",
        "service/capacity/gate.py",
        "Shares.take",
        "and held + amount <= (self.share if share is None else share)",
        "",
        _GATES,
    ),
    Mutant(
        "organizations do not take turns",
        "service/capacity/gate.py",
        "Gate._let_in",
        "self._lines.move_to_end(organization_id)",
        "pass",
        _GATES,
    ),
    Mutant(
        "a cancelled waiter keeps its amount",
        "service/capacity/gate.py",
        "Gate._wait",
        "self.put_back(holder, amount)",
        "pass",
        _GATES,
    ),
    # The client
    Mutant(
        "the client's patience never ends",
        "clients/python/sds_client/transport.py",
        "PATIENCE",
        "120.0",
        'float("inf")',
        ("tests/client/test_failures.py", "tests/client/test_client.py"),
    ),
    Mutant(
        "a request that may be stored is sent again",
        "clients/python/sds_client/transport.py",
        "Retry.pause",
        "elif not repeatable and not isinstance(error, aiohttp.ClientConnectorError):",
        "elif False:",
        ("tests/client/test_failures.py",),
    ),
]
