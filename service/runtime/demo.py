"""A demo organization for an empty database on this machine: five weeks of two scrapers' work."""

from __future__ import annotations

import copy
import random
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from service.command import command
from service.runtime.demo_items import item, job_offer
from service.runtime.local_mongo.folder import write_private
from service.settings import Settings
from service.store import GRANTABLE, Group, Store, hash_token, now

ORGANIZATION = 1
GROUP = Group(ORGANIZATION, "demo-shop")
OFFERS = Group(ORGANIZATION, "demo-jobs")
ANALYST = "analyst"
DAYS = 35
# Seconds for a call to the database: nobody waits for a response, and the disk may be busy.
_PATIENCE = 60.0

# A crawl of the shop covers one section, and returns to it after all the others.
_SECTIONS = {"kitchen": 202, "lighting": 201, "office": 201, "outdoor": 201, "furniture": 201}
_CRAWLS = 20
_FIRST_SHARE = 0.7  # of a section that the first crawl finds; each later one finds more
_GONE = 6  # products that the shop stopped selling
_REVIEWS = [
    ("approved", "Prices and pictures match the site."),
    ("approved", "Checked 20 items, all fine."),
    ("needs_changes", "The currency is missing on sale pages."),
    ("approved", "Fixed since the last crawl."),
    ("rejected", "Half of the pages were the consent wall."),
]


_RULES = [
    {"path": "price.amount", "min_fill": 0.9},
    {"path": "title", "min_fill": 1.0},
    {"path": "in_stock", "type": "boolean"},
    {"min_items": 100},
    {"max_missing": 0.2},
]


class Access(NamedTuple):
    """What `make run` prints: the token and the analyst's address, each empty if it no longer works."""

    token: str
    analyst: str


async def fill(settings: Settings, url: str) -> Access:
    """Fill the database if it is empty; return the demo token and analyst, kept in the data folder."""
    store = Store.connect(replace(settings, mongo_timeout=_PATIENCE), url)
    try:
        if not await store.tokens.list():
            await store.ensure_indexes()
            await _write(store)
            token = await store.tokens.create(ORGANIZATION, list(GRANTABLE), "demo")
            write_private(settings.data_path / "demo-token", token)
        return Access(await _token(store, settings), await _analyst(store, settings))
    finally:
        await store.close()


async def _token(store: Store, settings: Settings) -> str:
    path = settings.data_path / "demo-token"
    token = path.read_text() if path.exists() else ""
    record = await store.tokens.find(hash_token(token))
    return token if record is not None and record.valid_at(now()) else ""


async def _analyst(store: Store, settings: Settings) -> str:
    """Return the address of the demo analyst, made once; if it was removed, it is not made again."""
    path = settings.data_path / "demo-analyst"
    has_user = ANALYST in {analyst.name for analyst in await store.analysts.list()}
    if not has_user and not path.exists():
        write_private(path, await store.analysts.create(ANALYST))
        has_user = True
    return await store.analysts.address(ANALYST, path.read_text()) if has_user and path.exists() else ""


async def _write(store: Store) -> None:
    dice = random.Random(1)
    today = now()
    try:
        await _write_shop(store, dice, today)
        await _write_offers(store, dice, today)
    finally:
        store.outputs.ids.clock = None
    await store.cookies.set(
        ORGANIZATION,
        [
            _cookie(".shop.example", "session", "demo-4f1c9a", today + timedelta(days=30)),
            _cookie("shop.example", "consent", "all", today + timedelta(days=365)),
            _cookie("shop.example", "basket", "empty", None),
            _cookie("jobs.example", "visit", "1", today - timedelta(days=2)),
        ],
    )
    entries = [("theme", "dark"), ("locale", "de-DE"), ("seen", '{"banner":true}')]
    await store.local_storage.set(
        ORGANIZATION,
        [
            {"domain": "shop.example", "key": key, "value": value, "path": "/", "expires": None}
            for key, value in entries
        ],
    )


async def _write_shop(store: Store, dice: random.Random, today: datetime) -> None:
    """Write the crawls of the shop, oldest first; the price selector of the newest one is broken."""
    sections: dict[str, list[dict[str, Any]]] = {}
    for name, size in _SECTIONS.items():
        first = sum(len(products) for products in sections.values())
        sections[name] = [item(dice, first + n, "") | {"key_hash": f"SKU-{first + n:07d}"} for n in range(size)]
    await store.groups.set(GROUP, {"history_days": 30, "rules": _RULES})
    reviews = []
    for crawl in range(_CRAWLS):
        date = today - timedelta(days=DAYS * (1 - (crawl + 1) / _CRAWLS), hours=2)
        name = list(sections)[crawl % len(sections)]
        round_, rounds = crawl // len(sections), _CRAWLS // len(sections)
        products = sections[name][: int(_SECTIONS[name] * (_FIRST_SHARE + (1 - _FIRST_SHARE) * (round_ + 1) / rounds))]
        is_last = crawl == _CRAWLS - 1
        if round_:
            _change(dice, products, broken=is_last)
        job = f"{date:%Y-%m-%d}-{name}"
        await _crawl(store, GROUP, date, job, products, series=name)
        if crawl < _CRAWLS - 2:
            status, comment = _REVIEWS[crawl % len(_REVIEWS)]
            review_date = date + timedelta(hours=3)
            reviews.append({"job_id": job, "status": status, "comment": comment, "review_date": review_date})
        if crawl == _CRAWLS - 5:
            for product in products[:_GONE]:
                await store.outputs.delete(GROUP, GROUP.output_id(product["key_hash"]))
            del products[:_GONE], sections[name][:_GONE]
    await store.reviews.add(GROUP, reviews)


def _change(dice: random.Random, products: list[dict[str, Any]], broken: bool) -> None:
    """Change what a shop changes from one crawl to the next: prices, stock, new products without approval."""
    for product in products:
        product.pop("is_approved", None)  # an approved item stays approved while its data stay the same
        data = product["data"]
        if broken and dice.random() < 0.59:
            del data["price"]["amount"]
        elif dice.random() < 0.12:
            data["price"]["amount"] = round(data["price"]["amount"] * dice.uniform(0.8, 1.1), 2)
        elif dice.random() < 0.05:
            data["in_stock"] = not data["in_stock"]


async def _write_offers(store: Store, dice: random.Random, today: datetime) -> None:
    offers = [job_offer(dice, number, "") for number in range(120)]
    for week, share in enumerate((60, 90, 120)):
        date = today - timedelta(days=21 - 9 * week, hours=5)
        await _crawl(store, OFFERS, date, f"{date:%Y-%m-%d}", offers[:share])


async def _crawl(
    store: Store, group: Group, date: datetime, job: str, items: list[dict[str, Any]], series: str | None = None
) -> None:
    """Write the items of a crawl, and finish it."""
    store.outputs.ids.clock = date
    await store.crawls.declare(group, job, {"state": "running", "series": series})
    scraped = [copy.deepcopy(item) | {"root_job_id": job, "last_scraped_date": date} for item in items]
    encode = await store.outputs.encoder(group)
    await store.outputs.write(group, list(map(encode, scraped)))
    await store.crawls.notify(group, await store.crawls.finish(group, job))


def _cookie(domain: str, name: str, value: str, expires: datetime | None) -> dict[str, Any]:
    return {
        "domain": domain,
        "name": name,
        "value": value,
        "secure": True,
        "http_only": name == "session",
        "expires": expires,
        "path": "/",
    }


def welcome(address: str, access: Access) -> str:
    """Return what to open and to paste next."""
    token = access.token
    lines = [
        "",
        f"Serving on {address}",
        f"Look at the data:  {address}/{f'#token={token}' if token else ''}",
        f"API documentation: {address}/docs",
        "",
    ]
    if token:
        item = '{"source_url": "https://lamps.example/oak", "root_job_id": "monday", "data": {"title": "Oak lamp"}}'
        header = '-H "Authorization: Bearer $SDS_TOKEN"'
        lines += [
            f"In another shell, paste the address and the token of organization {ORGANIZATION}:",
            f"  export SDS_URL={address}",
            f"  export SDS_TOKEN={token}",
            "",
            "Then write an item, and read it and one of the demo data:",
            f"  curl {header} -H 'Content-Type: application/json' $SDS_URL/v1/outputs/lamps -d '[{item}]'",
            f"  curl {header} $SDS_URL/v1/outputs/lamps",
            f'  curl {header} "$SDS_URL/v1/outputs/{GROUP.group_id}?limit=1"',
            "",
        ]
    else:
        scopes = " ".join(f"--scope {scope}" for scope in GRANTABLE)
        lines += [f"Make a token: {command(f'token create --organization 1 {scopes}')}", ""]
    if access.analyst:
        lines += [
            "For analysts, read-only (any MongoDB driver takes the address):",
            f"  mongosh '{access.analyst}'",
            "",
        ]
    return "\n".join(lines)
