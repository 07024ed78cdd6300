"""An organization to try things on, for an empty database on this machine."""

from __future__ import annotations

import random
from datetime import datetime, timedelta
from typing import Any

from service.settings import Settings
from service.store import Store, now

ORGANIZATION = 1
GROUP = "demo-shop"
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


async def fill(settings: Settings, url: str) -> str:
    """Fill the database if it is empty; return the demo token, kept in the data folder, if it still works."""
    kept = settings.data_path / "demo-token"
    store = Store.connect(settings, url)
    try:
        if not await store.tokens.list():
            await store.ensure_indexes()
            await _write(store, settings)
            token = await store.tokens.create(ORGANIZATION, ["read", "write"], "demo")
            kept.touch(mode=0o600)
            kept.write_text(token)
        token = kept.read_text() if kept.exists() else ""
        found = await store.tokens.find(token)
        return token if found is not None and found.valid_at(now()) else ""
    finally:
        await store.close()


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


def welcome(address: str, token: str) -> str:
    """Return what to paste next."""
    lines = ["", f"Serving on {address}", f"Look at the data:  {address}/", f"API documentation: {address}/docs", ""]
    if token:
        header = f"-H 'Authorization: Bearer {token}'"
        lines += [
            f"Token of organization {ORGANIZATION}: {token}",
            "",
            "Try:",
            f"  curl {header} '{address}/v1/outputs/{GROUP}?limit=1'",
            f"  curl {header} {address}/v1/reviews/{GROUP}",
            "",
        ]
    else:
        lines += ["Make a token: python -m service token create --organization 1 --scope read --scope write", ""]
    return "\n".join(lines)
