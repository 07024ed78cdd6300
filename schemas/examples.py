"""One lifelike record per schema, for the API description; a test checks each against its schema."""

from typing import Any

_DATES = {"create_date": "2026-10-12T06:03:11.482Z", "update_date": "2026-11-09T06:02:57.120Z"}
_OUTPUT_ID = "0b6f3e1c-6a0e-4f0e-9a43-8a1b0c7d5e21"
_DATA = {
    "title": "Folding oak chair",
    "sku": "SKU-0000042",
    "price": {"amount": 129.9, "currency": "EUR"},
    "in_stock": True,
}
_TAGS = {"country": "Germany", "region": "DE-BE"}
_FILE = {
    "field": "data.picture",
    "url_etag_hash": "0f343b0931126a20f133d67c2b018a3b",
    "blob_key": "pictures/42.jpg",
    "blob_url": "https://files.example/pictures/42.jpg",
    "source_url": "https://shop.example/p/42/picture.jpg",
    "file_url": "https://files.example/pictures/42.jpg",
    "file_type": "image/jpeg",
    "file_checksum": "9f86d081884c7d659a2feaa0c55ad015",
    "file_metadata": {"width": 1200, "height": 900},
}
_REVIEW = {"job_id": "crawl-2026-11-09", "status": "approved", "comment": "Prices and pictures match the site."}
_COOKIE = {"name": "session", "value": "4f1c9a", "domain": ".shop.example", "path": "/"}
_ENTRY = {"domain": "shop.example", "key": "theme", "value": "dark", "path": "/"}
_RULES = [{"path": "price.amount", "min_fill": 0.9}, {"min_items": 100}, {"max_missing": 0.2}]
_BROKEN = {
    "rule": _RULES[0],
    "found": 0.7413,
    "msg": "price.amount is filled in 74.13 % of the items; at least 90 % is required",
}
_WEBHOOK = {
    "url": "https://hooks.example/scraping",
    "events": ["job.finished", "group.changed"],
    "group_id": "shop",
    "label": "warehouse",
    "format": "standard",
}
_RESULT = {
    "date": "2026-11-09T06:14:32.871Z",
    "type": "job.finished",
    "delivered": True,
    "status": 204,
    "error": None,
}
_LISTED = {
    "webhook_id": "7c1f6c2e-3c5c-4a52-8f3e-0d0a3c1b9e77",
    **_WEBHOOK,
    "create_date": "2026-10-12T06:03:11.482Z",
    "active": True,
    "switched_off": None,
    "last_result": _RESULT,
    "dropped": 0,
}

_LISTED_TOKEN = {
    "token_id": "3f1c9a7be210",
    "label": "nightly crawl",
    "scopes": ["read", "write"],
    "create_date": "2026-10-01T08:00:00.000Z",
    "last_used": "2026-11-15T06:02:10.000Z",
    "expires": None,
    "revoked": None,
}

EXAMPLES: dict[str, Any] = {
    "CookieInput": {**_COOKIE, "secure": True, "http_only": True, "expires": "2027-01-31T12:00:00Z"},
    "Cookie": {
        **_COOKIE,
        "url": "https://shop.example/",
        "expires": 1801396800,
        "secure": True,
        "http_only": True,
    },
    "Counted": {"created": 1, "updated": 0},
    "LocalStorageInput": {**_ENTRY, "expires": "2027-01-31T12:00:00Z"},
    "LocalStorageEntry": {
        **_ENTRY,
        **_DATES,
        "id": 7,
        "organization_id": 1,
        "group_id": 0,
        "expires": "2027-01-31T12:00:00.000Z",
    },
    "BrowserCookie": {**_COOKIE, "expires": 1801396800, "httpOnly": True, "secure": True, "sameSite": "Lax"},
    "StoredName": {"name": "theme", "value": "dark"},
    "OriginInput": {"origin": "https://shop.example", "localStorage": [{"name": "theme", "value": "dark"}]},
    "Origin": {"origin": "https://shop.example", "localStorage": [{"name": "theme", "value": "dark"}]},
    "ReviewInput": _REVIEW,
    "Review": {
        **_REVIEW,
        "review_id": "5d1f6c2e-3c5c-4a52-8f3e-0d0a3c1b9e77",
        "review_date": "2026-11-09T09:15:00.000Z",
    },
    "FileInput": _FILE,
    "File": {**_FILE, "id": "f-1", "create_date": _DATES["create_date"]},
    "OutputInput": {
        "source_url": "https://shop.example/p/42",
        "root_job_id": "crawl-2026-11-09",
        "key_hash": "SKU-0000042",
        "data": _DATA,
        "tags": _TAGS,
    },
    "Output": {
        "source_url": "https://shop.example/p/42",
        "data": _DATA,
        "id": 1042,
        "output_id": _OUTPUT_ID,
        "root_job_id": "crawl-2026-11-09",
        **_DATES,
        "last_scraped_date": "2026-11-14T06:02:31.007Z",
        "key_hash": "SKU-0000042",
        "value_hash": "4f9c1d0f6f3b7a6b8a0f0e9a7c5d3b21",
        "is_approved": True,
        "tags": _TAGS,
        "files": [],
    },
    "OutputResult": {"id": 1042, "output_id": _OUTPUT_ID, "key_hash": "SKU-0000042", "result": "created"},
    "OutputPatch": {"is_approved": True, "tags": {"checked_by": "ada"}},
    "OutputPatchOf": {"output_id": _OUTPUT_ID, "is_approved": True, "if_id": 1042},
    "PatchResult": {"id": 1043, "output_id": _OUTPUT_ID, "key_hash": "SKU-0000042", "result": "updated"},
    "Pagination": {
        "next_url": "https://data.example/v1/outputs/shop?limit=10&cursor=1042",
        "next_cursor": 1042,
    },
    "Day": {"date": "2026-11-09", "created": 12, "changed": 230, "net": 9},
    "Group": {
        "group_id": "shop",
        "items": 1000,
        "jobs": 20,
        "approved": 640,
        "last_id": 3488,
        "last_change": "2026-11-15T09:00:19.812Z",
        "retention_days": None,
        "verdict": "passed",
        "dropped": [],
        "days": [{"date": "2026-11-15", "created": 16, "changed": 108, "net": 16}],
    },
    "GroupSettings": {"retention_days": 90, "ignore": ["scraped_at"], "rules": _RULES},
    "Rule": _RULES[0],
    "JobInput": {"state": "finished", "series": "furniture", "missing": "delete"},
    "BrokenRule": _BROKEN,
    "FillRate": {"path": "price.amount", "fill_rate": 0.9901},
    "Job": {
        "job_id": "crawl-2026-11-09",
        "items": 201,
        "created": 16,
        "changed": 24,
        "unchanged": 161,
        "shared": 0,
        "first_write": "2026-11-09T06:00:00.000Z",
        "last_write": "2026-11-09T06:14:31.250Z",
        "series": "furniture",
        "state": "finished",
        "finish_date": "2026-11-09T06:14:32.010Z",
        "missing": 3,
        "deleted": 0,
        "judged": 201,
        "fields": [{"path": "title", "fill_rate": 1.0}, {"path": "price.amount", "fill_rate": 0.7413}],
        "verdict": "failed",
        "problems": [_BROKEN],
        "review": None,
    },
    "FieldStatistics": {
        "path": "price.amount",
        "count": 199,
        "fill_rate": 0.9901,
        "types": {"number": 199},
        "min": 3.2,
        "max": 899.0,
        "examples": [129.9, 12.5, 45.0],
    },
    "WebhookInput": _WEBHOOK,
    "WebhookResult": _RESULT,
    "Webhook": _LISTED,
    "WebhookCreated": {**_LISTED, "secret": "whsec_C2FVsBQIhrscChlQIMV+b5sSYspob7oDaBh3xhDfHdc="},
    "Delivery": {
        "delivery_id": "msg_0b6f3e1c6a0e4f0e9a438a1b0c7d5e21",
        "type": "job.finished",
        "group_id": "shop",
        "create_date": "2026-11-09T06:14:32.104Z",
        "state": "delivered",
        "attempts": 1,
        "last_attempt": _RESULT["date"],
        "next_attempt": None,
        "status": 204,
        "response": "",
        "error": None,
    },
    "Token": {
        "id": "3f1c9a7be210",
        "organization_id": 1,
        "scopes": ["read", "write"],
        "label": "nightly crawl",
        "create_date": "2026-10-01T08:00:00.000Z",
        "expires": None,
    },
    "TokenInput": {"label": "nightly crawl", "scopes": ["read", "write"], "expires": "2027-01-31T12:00:00Z"},
    "OrganizationToken": _LISTED_TOKEN,
    "TokenCreated": {**_LISTED_TOKEN, "token": "sds_…"},
    "Problem": {"loc": ["query", "limit"], "msg": "Must be at most 1000", "type": "less_than_equal"},
}
