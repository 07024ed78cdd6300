"""An organization to try things on, for an empty database on this machine."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

from service.settings import Settings
from service.store import Store, now

ORGANIZATION = 1
GROUP = "demo-shop"
ANALYST = "analyst"
ITEMS = 1000

_COUNTRIES = [
    ("Germany", "DE-BE"),
    ("Germany", "DE-BY"),
    ("France", "FR-IDF"),
    ("Japan", "JP-13"),
    ("United States", "US-CA"),
    ("Brazil", "BR-SP"),
]
_NOUNS = ["lamp", "kettle", "chair", "notebook", "backpack", "headphones", "bicycle", "teapot"]
_WORDS = ["oak", "steel", "quiet", "folding", "bright", "woven", "classic", "light", "blue", "tall"]


class Access(NamedTuple):
    """What `make run` prints: the token and the analyst's address, each empty if it no longer works."""

    token: str
    analyst: str


async def fill(settings: Settings, url: str) -> Access:
    """Fill the database if it is empty; return the demo token and analyst, kept in the data folder."""
    store = Store.connect(settings, url)
    try:
        if not await store.tokens.list():
            await store.ensure_indexes()
            await _write(store, settings)
            _keep(settings.data_path / "demo-token", await store.tokens.create(ORGANIZATION, ["read", "write"], "demo"))
        return Access(await _token(store, settings), await _analyst(store, settings))
    finally:
        await store.close()


async def _token(store: Store, settings: Settings) -> str:
    kept = settings.data_path / "demo-token"
    token = kept.read_text() if kept.exists() else ""
    found = await store.tokens.find(token)
    return token if found is not None and found.valid_at(now()) else ""


async def _analyst(store: Store, settings: Settings) -> str:
    """Return the address of the demo analyst, made once; whoever removes it does not get it back."""
    kept = settings.data_path / "demo-analyst"
    known = ANALYST in await store.analysts.list()
    if not known and not kept.exists():
        _keep(kept, await store.analysts.create(ANALYST))
        known = True
    return await store.analysts.address(ANALYST, kept.read_text()) if known and kept.exists() else ""


def _keep(path: Path, secret: str) -> None:
    """Write a secret into a file that only its owner can read, also if the file is there already."""
    path.touch(mode=0o600)
    path.chmod(0o600)
    path.write_text(secret)


async def _write(store: Store, settings: Settings) -> None:
    dice = random.Random(1)
    for job in range(4):
        items = [item(dice, job * ITEMS // 4 + n, f"job-{job + 1}") for n in range(ITEMS // 4)]
        await store.outputs.write(ORGANIZATION, GROUP, store.outputs.prepare(items))
    today = now()
    reviews = [
        ("job-1", "approved", "Prices and pictures match the site."),
        ("job-2", "needs_changes", "The currency is missing on sale pages."),
        ("job-2", "approved", "Fixed."),
        ("job-3", "rejected", "Half of the pages were the consent wall."),
    ]
    await store.reviews.add(
        ORGANIZATION,
        GROUP,
        [
            {"job_id": job, "status": status, "comment": comment, "review_date": None}
            for job, status, comment in reviews
        ],
    )
    await store.cookies.set(
        ORGANIZATION,
        [
            _cookie(".shop.example", "session", "demo-4f1c9a", today + timedelta(days=30)),
            _cookie("shop.example", "consent", "all", today + timedelta(days=365)),
            _cookie("shop.example", "basket", "empty", None),
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


def item(dice: random.Random, number: int, job: str) -> dict[str, Any]:
    """Return a lifelike output of about 2 KB: nested data, tags, one file."""
    country, region = dice.choice(_COUNTRIES)
    noun = dice.choice(_NOUNS)
    title = f"{dice.choice(_WORDS)} {dice.choice(_WORDS)} {noun}"
    page = f"https://shop.example/{country.lower().replace(' ', '-')}/p/{number}"
    return {
        "source_url": page,
        "root_job_id": job,
        "data": {
            "title": title,
            "sku": f"SKU-{number:07d}",
            "price": {"amount": round(dice.uniform(3, 900), 2), "currency": "EUR"},
            "in_stock": dice.random() < 0.8,
            "rating": {"average": round(dice.uniform(2, 5), 1), "count": dice.randrange(5000)},
            "breadcrumbs": ["Home", noun.title() + "s", title],
            "specifications": [
                {"name": name, "value": f"{dice.randrange(10, 900)} {unit}"}
                for name, unit in (("Width", "mm"), ("Height", "mm"), ("Weight", "g"))
            ],
            "description": " ".join(dice.choice(_WORDS + _NOUNS) for _ in range(120)) + ".",
            "seller": {"name": f"Seller {dice.randrange(50)}", "country": country},
        },
        "is_approved": dice.random() < 0.5,
        "tags": {"country": country, "region": region, "language": "en"},
        "files": [
            {
                "field": "data.picture",
                "url_etag_hash": f"{dice.getrandbits(128):032x}",
                "blob_key": f"demo/{number}.jpg",
                "blob_url": f"https://files.example/demo/{number}.jpg",
                "source_url": f"{page}/picture.jpg",
                "file_url": f"https://files.example/demo/{number}.jpg",
                "file_type": "image/jpeg",
                "file_checksum": f"{dice.getrandbits(256):064x}",
                "file_metadata": {"width": 1200, "height": 900},
            }
        ],
    }


def welcome(address: str, access: Access) -> str:
    """Return what to paste next."""
    lines = ["", f"Serving on {address}", f"Look at the data:  {address}/", f"API documentation: {address}/docs", ""]
    if access.token:
        header = f"-H 'Authorization: Bearer {access.token}'"
        lines += [
            f"Token of organization {ORGANIZATION}: {access.token}",
            "",
            "Try:",
            f"  curl {header} '{address}/v1/outputs/{GROUP}?limit=1'",
            f"  curl {header} {address}/v1/reviews/{GROUP}",
            "",
        ]
    else:
        lines += ["Make a token: python -m service token create --organization 1 --scope read --scope write", ""]
    if access.analyst:
        lines += [
            "For analysts, read-only (any MongoDB driver takes the address):",
            f"  mongosh '{access.analyst}'",
            "",
        ]
    return "\n".join(lines)
