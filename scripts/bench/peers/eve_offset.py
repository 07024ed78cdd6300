"""Eve with its own offset paging, set up for speed: no count, no links, no ETags of single items."""

import os

from eve import Eve

TEXT = {"type": "string"}
OBJECT = {"type": "dict"}
DATE = {"type": "datetime"}
SCHEMA = {
    "source_url": TEXT,
    "data": OBJECT,
    "id": {"type": "integer"},
    "output_id": TEXT,
    "root_job_id": TEXT,
    "create_date": DATE,
    "update_date": DATE,
    "last_scraped_date": DATE,
    "key_hash": TEXT,
    "value_hash": TEXT,
    "is_approved": {"type": "boolean"},
    "tags": OBJECT,
    "files": {"type": "list"},
}
application = Eve(
    settings={
        "MONGO_URI": os.environ["MONGO_URL"].replace("/?", f"/{os.environ['MONGO_DATABASE']}?authSource=admin&"),
        "PAGINATION_LIMIT": 1000,
        "OPTIMIZE_PAGINATION_FOR_SPEED": True,
        "HATEOAS": False,
        "IF_MATCH": False,
        "DOMAIN": {
            "outputs": {
                "schema": SCHEMA,
                "datasource": {
                    "filter": {"organization_id": 1, "group_id": "shop"},
                    "default_sort": [("id", 1)],
                },
            }
        },
    }
)
