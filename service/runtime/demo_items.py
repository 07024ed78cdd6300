"""Lifelike outputs for demo data and tests."""

from __future__ import annotations

import random
from typing import Any
from urllib.parse import quote

_COUNTRIES = [
    ("Germany", "DE-BE"),
    ("Germany", "DE-BY"),
    ("France", "FR-IDF"),
    ("Japan", "JP-13"),
    ("United States", "US-CA"),
    ("Brazil", "BR-SP"),
]
_WORDS = ["oak", "steel", "quiet", "folding", "bright", "woven", "classic", "light", "blue", "tall"]
_COLORS = ["#8d6e4b", "#6b7a8f", "#4f6d7a", "#a3623a", "#d9a441", "#7d8f69", "#5b4b6e", "#88a0a8", "#3f6fdc", "#3d5a45"]
# A picture of each, in a box of 48 by 36.
_SHAPES = {
    "lamp": "M18 6h12l6 12H12zM23 18h2v10h-2zM17 28h14v3H17z",
    "kettle": "M14 14h18l3 17H11zM17 10h12v3H17zM35 16l6-4v3l-5 6z",
    "chair": "M15 5h4v14h13v12h-3v-9H19v9h-4z",
    "notebook": "M13 6h22v25H13zM16 11h16v1H16zM16 16h16v1H16zM16 21h10v1H16z",
    "backpack": "M16 13q8-10 16 0v18H16zM20 20h8v6h-8z",
    "headphones": "M12 22q0-15 12-15t12 15v7h-5v-9h2q-1-10-9-10t-9 10h2v9h-5z",
    "bicycle": "M14 30a6 6 0 1 1 .1 0zM34 30a6 6 0 1 1 .1 0zM14 23l6-10h9l5 10h-2l-4-8h-6l-6 9z",
    "teapot": "M14 15h18q4 0 4 4h4q0 6-5 6-2 6-6 6H18q-4 0-6-8l-5-5h4zM21 11h5v3h-5z",
}
_ROLES = ["Data engineer", "Web developer", "Analyst", "Support agent", "Designer", "Buyer"]
_COMPANIES = ["Northwind", "Acme", "Globex", "Initech", "Umbrella", "Stark"]


def _picture(noun: str, color: str) -> str:
    """Return a small drawing as a data: URL."""
    drawing = (
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 48 36'><rect width='48' height='36' fill='{color}22'/>"
        f"<path fill='{color}' fill-rule='evenodd' d='{_SHAPES[noun]}'/></svg>"
    )
    return "data:image/svg+xml," + quote(drawing, safe=" ='/:.-")


def item(dice: random.Random, number: int, job: str) -> dict[str, Any]:
    """Return a product of a shop, about 3 KB: nested data, a picture, tags, one file."""
    country, region = dice.choice(_COUNTRIES)
    noun = dice.choice(list(_SHAPES))
    color = dice.randrange(len(_WORDS))
    title = f"{dice.choice(_WORDS)} {_WORDS[color]} {noun}"
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
            "thumbnail": _picture(noun, _COLORS[color]),
            "breadcrumbs": ["Home", noun.title(), title],
            "specifications": [
                {"name": name, "value": f"{dice.randrange(10, 900)} {unit}"}
                for name, unit in (("Width", "mm"), ("Height", "mm"), ("Weight", "g"))
            ],
            "description": " ".join(dice.choice([*_WORDS, *_SHAPES]) for _ in range(120)) + ".",
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


def job_offer(dice: random.Random, number: int, job: str) -> dict[str, Any]:
    """Return an offer of a job board: small, flat data."""
    country, region = dice.choice(_COUNTRIES)
    salary = dice.randrange(30, 90) * 1000
    return {
        "source_url": f"https://jobs.example/offers/{number}",
        "root_job_id": job,
        "data": {
            "title": dice.choice(_ROLES),
            "company": dice.choice(_COMPANIES),
            "salary": {"min": salary, "max": salary + 15_000, "currency": "EUR"},
            "remote": dice.random() < 0.4,
        },
        "tags": {"country": country, "region": region},
        "files": [],
    }
