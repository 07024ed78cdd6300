"""The floor: aiohttp, Motor and orjson, nothing checked; what is written is appended under random keys."""

import asyncio
import os
import uuid
from datetime import UTC, datetime
from typing import Any

import orjson
from aiohttp import web
from motor.motor_asyncio import AsyncIOMotorClient
from pymongo import WriteConcern

PROJECTION = {
    "_id": 0,
    "organization_id": 0,
    "group_id": 0,
    "content_hash": 0,
    "country": 0,
    "region": 0,
    "first_id": 0,
}


async def get(request: web.Request) -> web.Response:
    cursor, limit = int(request.query["cursor"]), int(request.query["limit"])
    where = {"organization_id": 1, "group_id": request.match_info["group_id"], "id": {"$gt": cursor}}
    found = request.app["outputs"].find(where, PROJECTION, sort=[("id", 1)], limit=limit, batch_size=limit)
    items = await found.to_list(limit)
    return web.Response(body=orjson.dumps({"items": items}, default=str), content_type="application/json")


async def post(request: web.Request) -> web.Response:
    group_id, items = request.match_info["group_id"], orjson.loads(await request.read())
    counter = await request.app["counters"].find_one_and_update(
        {"_id": group_id}, {"$inc": {"next": len(items)}}, upsert=True, return_document=True
    )
    now, last = datetime.now(UTC), counter["next"]
    for offset, item in enumerate(items):
        item |= {"organization_id": 1, "group_id": group_id, "id": last - offset, "key_hash": uuid.uuid4().hex}
        item |= {"output_id": str(uuid.uuid4()), "create_date": now, "update_date": now, "last_scraped_date": now}
        item |= {"country": item["tags"].get("country"), "region": item["tags"].get("region")}
    await request.app["ingest"].insert_many(items, ordered=False)
    return web.json_response({"created": len(items)})


async def serve() -> None:
    client: AsyncIOMotorClient[dict[str, Any]] = AsyncIOMotorClient(os.environ["MONGO_URL"])
    database, majority = client[os.environ["MONGO_DATABASE"]], WriteConcern("majority", j=True)
    app = web.Application(client_max_size=16 * 1024 * 1024)
    app["outputs"] = database["outputs"]
    app["ingest"] = database.get_collection(os.environ["INGEST"], write_concern=majority)
    app["counters"] = database.get_collection("counters_floor", write_concern=majority)
    app.router.add_get("/v1/outputs/{group_id}", get)
    app.router.add_post("/v1/outputs/{group_id}", post)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", int(os.environ["PORT"])).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve())
