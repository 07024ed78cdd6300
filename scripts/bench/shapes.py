"""Items in the shapes that scrapers of news, shops and tables send; their texts are made up."""

from __future__ import annotations

import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

_BEGAN = datetime(2026, 1, 31, 12, tzinfo=UTC)
_TEXT = (
    "der Rat hat über die Pläne für neue Wege am Fluß entschieden während viele Bürger mehr Bäume “grüne” Plätze "
    "the council voted on plans for new paths along the river while many residents asked for more trees and quiet "
    "les habitants ont été invités à donner leur avis sur l’aménagement des quais près de la gare centrale"
)
_WORDS = _TEXT.split()


def news(count: int) -> list[dict[str, Any]]:
    """Return articles: one long text, a few names and dates, as news extractors give them."""
    dice, items = random.Random(1), []
    for number in range(count):
        paragraphs = [" ".join(dice.choices(_WORDS, k=dice.randrange(40, 120))) + "." for _ in range(12)]
        date = _BEGAN + timedelta(minutes=number)
        url = f"https://news.example/2026/01/{number}-{dice.choice(_WORDS)}"
        data = {
            "url": url,
            "source_domain": "news.example",
            "title": " ".join(dice.choices(_WORDS, k=9)),
            "authors": [f"{dice.choice(_WORDS).title()} Müller", "dpa"],
            "date_publish": date.isoformat(),
            "date_modify": None,
            "description": paragraphs[0][:180] + "…",
            "maintext": "\n\n".join(paragraphs),
            "language": dice.choice(["de", "en", "fr"]),
            "image_url": f"https://images.example/{number}.jpg",
            "sections": ["Lokales", "Politik"],
            "paywall": False,
        }
        picture = {"field": "data.image_url", "file_url": data["image_url"], "file_type": "image/jpeg"}
        items.append(_item(url, data, date, files=[picture], tags={"country": "Germany", "region": "DE-BE"}))
    return items


def shop(count: int) -> list[dict[str, Any]]:
    """Return products with variants: many small fields, as the JSON feeds of shops have them."""
    dice, items = random.Random(2), []
    for number in range(count):
        date = _BEGAN + timedelta(seconds=number)
        url = f"https://shop.example/products/{number}"
        variants = [
            {
                "id": 44_000_000_000_000 + 100 * number + place,
                "title": f"{size} / {color}",
                "option1": size,
                "option2": color,
                "option3": None,
                "sku": f"SKU-{number}-{place}",
                "requires_shipping": True,
                "taxable": True,
                "featured_image": None,
                "available": dice.random() < 0.7,
                "price": f"{dice.randrange(10, 200)}.00",
                "grams": dice.randrange(100, 2000),
                "compare_at_price": None,
                "position": place + 1,
                "product_id": 8_000_000_000_000 + number,
                "created_at": "2025-11-03T09:12:44+01:00",
                "updated_at": "2026-01-30T08:00:00+01:00",
            }
            for place, (size, color) in enumerate((size, color) for size in "SML" for color in ("Grün", "Blau"))
        ]
        data = {
            "id": 8_000_000_000_000 + number,
            "title": " ".join(dice.choices(_WORDS, k=4)),
            "handle": f"product-{number}",
            "body_html": f"<p>{' '.join(dice.choices(_WORDS, k=30))}</p>\n<ul>\n<li>100&nbsp;% cotton</li>\n</ul>",
            "vendor": "Acme",
            "product_type": "T-Shirts",
            "tags": ["summer", "sale", "unisex"],
            "variants": variants,
            "options": [{"name": "Size", "position": 1, "values": ["S", "M", "L"]}],
            "rating": {"average": round(dice.uniform(2, 5), 1), "count": dice.randrange(500)},
            "price": {"amount": round(dice.uniform(10, 200), 2), "currency": "EUR"},
        }
        pictures = [
            {
                "field": f"data.images.{place}",
                "file_url": f"https://cdn.example/{number}/{place}.jpg?v=1706000000",
                "file_type": "image/jpeg",
                "url_etag_hash": f"{dice.getrandbits(128):032x}",
                "file_metadata": {"width": 2048, "height": 2048, "alt": None},
            }
            for place in range(4)
        ]
        items.append(_item(url, data, date, files=pictures, tags={"country": "France"}))
    return items


def table(count: int) -> list[dict[str, Any]]:
    """Return rows of measurements: almost only numbers, some of them computed, with all their digits."""
    dice, items = random.Random(3), []
    for number in range(count):
        date = _BEGAN + timedelta(hours=number)
        data = {
            "station": 10_000 + number % 500,
            "latitude": round(dice.uniform(47, 55), 6),
            "longitude": round(dice.uniform(6, 15), 6),
            "observed": date.isoformat(),
            "temperature": [round(dice.gauss(9, 6), 1) for _ in range(24)],
            "precipitation": [max(0.0, round(dice.gauss(0, 1), 2)) for _ in range(24)],
            "wind": [dice.uniform(0, 20) for _ in range(24)],
            "mean": {"temperature": dice.gauss(9, 6), "pressure": dice.gauss(1013, 9)},
            "counts": [dice.randrange(100_000) for _ in range(24)],
            "quality": None,
        }
        items.append(_item(f"https://weather.example/{number}", data, date, key_hash=f"{number}"))
    return items


def _item(url: str, data: dict[str, Any], date: datetime, **others: Any) -> dict[str, Any]:
    return {"source_url": url, "root_job_id": "crawl-7", "data": data, "last_scraped_date": date.isoformat(), **others}


SHAPES: dict[str, Callable[[int], list[dict[str, Any]]]] = {"news": news, "shop": shop, "table": table}
