"""FastAPI with Beanie: keyset paging, response model; validated models in.

`/v1/outputs` appends with insert_many. `/v1/upserts` stores one item per key, writes changes only, and returns the
result of each item.
"""

import hashlib
import json
import os
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Annotated, Any
from uuid import uuid4

import orjson
from beanie import Document, init_beanie
from fastapi import FastAPI, Query, Request
from pydantic import BaseModel, Field
from pymongo import AsyncMongoClient, UpdateOne, WriteConcern


class FileIn(BaseModel):
    field: str = Field("", max_length=1024)
    url_etag_hash: str = Field("", max_length=1024)
    blob_key: str = Field("", max_length=8192)
    blob_url: str = Field("", max_length=8192)
    source_url: str = Field("", max_length=8192)
    file_url: str = Field("", max_length=8192)
    file_type: str = Field("", max_length=256)
    file_checksum: str = Field("", max_length=1024)
    file_metadata: dict[str, Any] = {}


class File(FileIn):
    id: str = Field(default_factory=lambda: str(uuid4()))
    create_date: datetime = Field(default_factory=lambda: datetime.now(UTC))


class OutputIn(BaseModel):
    source_url: str = Field(max_length=8192)
    data: dict[str, Any]
    root_job_id: str = Field(min_length=1, max_length=256)
    key_hash: str | None = Field(None, max_length=256)
    value_hash: str | None = Field(None, max_length=256)
    is_approved: bool = False
    tags: dict[str, Any] = {}
    files: list[FileIn] = []
    last_scraped_date: datetime = Field(default_factory=lambda: datetime.now(UTC))


class Output(BaseModel):
    source_url: str
    data: dict[str, Any]
    id: int
    output_id: str
    root_job_id: str
    create_date: datetime
    update_date: datetime
    last_scraped_date: datetime
    key_hash: str | None
    value_hash: str | None
    is_approved: bool
    tags: dict[str, Any]
    files: list[File]


class Metadata(BaseModel):
    next_url: str | None
    next_cursor: int | None


class Page(BaseModel):
    metadata: Metadata
    items: list[Output]


class Stored(Document):
    """What is read."""

    organization_id: int
    group_id: str

    class Settings:
        name = "outputs"


class Written(BaseModel):
    created: int


class Result(BaseModel):
    id: int
    output_id: str
    key_hash: str
    result: str


class Upserted(BaseModel):
    items: list[Result]


@asynccontextmanager
async def lifespan(app: FastAPI) -> Any:
    client: AsyncMongoClient[dict[str, Any]] = AsyncMongoClient(os.environ["MONGO_URL"])
    database = client[os.environ["MONGO_DATABASE"]]
    await init_beanie(database=database, document_models=[Stored])
    majority = WriteConcern("majority", j=True)
    app.state.ingest = database.get_collection(os.environ["INGEST"], write_concern=majority)
    app.state.counters = database.get_collection("counters_fastapi", write_concern=majority)
    yield
    await client.close()


app = FastAPI(lifespan=lifespan)


def key_hash(item: OutputIn) -> str:
    text = json.dumps([item.source_url, item.data], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


@app.get("/v1/outputs/{group_id}", response_model=Page)
async def get(
    request: Request,
    group_id: str,
    limit: Annotated[int, Query(ge=1, le=1000)] = 10,
    cursor: Annotated[int, Query(ge=0)] = 0,
) -> Any:
    where = {"organization_id": 1, "group_id": group_id, "id": {"$gt": cursor}}
    items = await Stored.find(where).sort("+id").limit(limit + 1).project(Output).to_list()
    more = len(items) > limit
    items = items[:limit]
    next_cursor = items[-1].id if more else None
    next_url = str(request.url.include_query_params(cursor=next_cursor)) if more else None
    return Page(metadata=Metadata(next_url=next_url, next_cursor=next_cursor), items=items)


async def last_id(group_id: str, count: int) -> int:
    counted = await app.state.counters.find_one_and_update(
        {"_id": group_id}, {"$inc": {"next": count}}, upsert=True, return_document=True
    )
    return int(counted["next"])


@app.post("/v1/outputs/{group_id}", response_model=Written)
async def post(group_id: str, items: list[OutputIn]) -> Any:
    now, last = datetime.now(UTC), await last_id(group_id, len(items))
    documents = [
        item.model_dump()
        | {
            "organization_id": 1,
            "group_id": group_id,
            "id": last - offset,
            "output_id": str(uuid4()),
            "key_hash": item.key_hash or key_hash(item),
            "country": item.tags.get("country"),
            "region": item.tags.get("region"),
            "create_date": now,
            "update_date": now,
        }
        for offset, item in enumerate(reversed(items))
    ]
    # Past Beanie's own insert_many, whose encoder in Python would more than double the cost.
    await app.state.ingest.insert_many(documents, ordered=False)
    return Written(created=len(documents))


@app.post("/v1/upserts/{group_id}", response_model=Upserted)
async def upsert(group_id: str, items: list[OutputIn]) -> Any:
    owner = {"organization_id": 1, "group_id": group_id}
    sent: dict[str, dict[str, Any]] = {}
    for item in items:
        fields = item.model_dump()
        content = {name: fields[name] for name in ("source_url", "data", "tags", "files")}
        fields["files"] = [File(**file).model_dump() for file in fields["files"]]
        fields["key_hash"] = item.key_hash or digest([item.source_url, item.data])
        fields["value_hash"] = item.value_hash or digest(item.data)
        fields["content_hash"] = digest(content)
        fields |= {"country": item.tags.get("country"), "region": item.tags.get("region")}
        sent[fields["key_hash"]] = fields
    names = {"key_hash": 1, "output_id": 1, "id": 1, "content_hash": 1}
    found = app.state.ingest.find({**owner, "key_hash": {"$in": list(sent)}}, names)
    stored = {document["key_hash"]: document async for document in found}
    now, id = datetime.now(UTC), await last_id(group_id, len(sent)) - len(sent)
    created, changed, unchanged, results = [], [], [], {}
    for key, fields in sent.items():
        before = stored.get(key)
        if before is not None and before["content_hash"] == fields["content_hash"]:
            seen = {"root_job_id": fields["root_job_id"], "last_scraped_date": fields["last_scraped_date"]}
            unchanged.append(UpdateOne({"_id": before["_id"]}, {"$set": seen}))
            results[key] = {**before, "result": "unchanged"}
            continue
        id += 1
        fields |= {"id": id, "update_date": now}
        if before is None:
            fields |= {**owner, "output_id": str(uuid4()), "create_date": now}
            created.append(fields)
            results[key] = {**fields, "result": "created"}
        else:
            changed.append(UpdateOne({"_id": before["_id"], "id": before["id"]}, {"$set": fields}))
            results[key] = {**before, "id": id, "result": "updated"}
    if created:
        await app.state.ingest.insert_many(created, ordered=False)
    if changed or unchanged:
        await app.state.ingest.bulk_write([*changed, *unchanged], ordered=False)
    return {"items": [results[key] for key in results]}


def digest(value: Any) -> str:
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()
