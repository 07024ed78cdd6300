"""Files that Scrapy's media pipelines have downloaded, as the `files` of an output."""

from __future__ import annotations

import mimetypes
from typing import Any

from scrapy.pipelines.files import FilesPipeline
from scrapy.pipelines.images import ImagesPipeline

# Whether the file was downloaded in this crawl or an earlier one says nothing about the item.
_VOLATILE = "status"
_MAPPED = ("url", "path", "checksum", _VOLATILE)


class MediaFields:
    """The fields of items that the project's media pipelines read and fill."""

    def __init__(self, crawler: Any) -> None:
        pipelines = crawler.engine.scraper.itemproc.middlewares
        self._pipelines = [one for one in pipelines if isinstance(one, FilesPipeline)]
        self._settings = crawler.settings

    def take(self, data: dict[str, Any], page: str) -> list[dict[str, Any]]:
        """Remove the pipelines' results from an item's data and return them as `files`."""
        files = []
        for pipeline in self._pipelines:
            urls_field, results_field = _fields(pipeline)
            results = data.get(results_field)
            if isinstance(results, list) and all(isinstance(one, dict) and "url" in one for one in results):
                del data[results_field]
                urls = data.get(urls_field)
                files += [self._file(one, pipeline, urls_field, urls or [], page) for one in results]
        return files

    def _file(
        self, result: dict[str, Any], pipeline: Any, urls_field: str, urls: list[str], page: str
    ) -> dict[str, Any]:
        place = f".{urls.index(result['url'])}" if result["url"] in urls else ""
        path = str(result.get("path") or "")
        return {
            "field": f"data.{urls_field}{place}",
            "source_url": page,
            "file_url": result["url"],
            "file_type": mimetypes.guess_type(path)[0] or "application/octet-stream",
            "file_checksum": str(result.get("checksum") or ""),
            "blob_key": path,
            "blob_url": self._blob_url(pipeline, path),
            "file_metadata": {
                "checksum_algorithm": "md5",
                **{name: value for name, value in result.items() if name not in _MAPPED},
            },
        }

    def _blob_url(self, pipeline: Any, path: str) -> str:
        """Return the address of a file in a store that others can reach; empty for a folder of this machine."""
        store = self._settings.get("IMAGES_STORE" if isinstance(pipeline, ImagesPipeline) else "FILES_STORE")
        return f"{str(store).rstrip('/')}/{path}" if "://" in str(store) and path else ""


def _fields(pipeline: Any) -> tuple[str, str]:
    """Return the names of a pipeline's fields: the URLs that it reads and the results that it writes."""
    if isinstance(pipeline, ImagesPipeline):
        return pipeline.images_urls_field, pipeline.images_result_field
    return pipeline.files_urls_field, pipeline.files_result_field
