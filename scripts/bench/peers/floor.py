"""The floor: aiohttp, Motor and orjson, nothing checked."""

import asyncio
import os
from typing import Any

import orjson
from aiohttp import web
from motor.motor_asyncio import AsyncIOMotorClient

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


async def serve() -> None:
    client: AsyncIOMotorClient[dict[str, Any]] = AsyncIOMotorClient(os.environ["MONGO_URL"])
    app = web.Application()
    app["outputs"] = client[os.environ["MONGO_DATABASE"]]["outputs"]
    app.router.add_get("/v1/outputs/{group_id}", get)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", int(os.environ["PORT"])).start()
    await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(serve())
