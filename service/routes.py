"""The API as one table: every route, the scope that its token needs, and its handler."""

from service.handlers import (
    cookies,
    documentation,
    groups,
    health,
    local_storage,
    metrics,
    outputs,
    page,
    reviews,
    storage_state,
)
from service.http.routing import Route

# Scopes: "read", "write", "delete", or "public" for a route that needs no token.
ROUTES = [
    Route("POST", "/v1/cookies", "write", cookies.post),
    Route("GET", "/v1/cookies", "read", cookies.get),
    Route("POST", "/v1/local-storage", "write", local_storage.post),
    Route("GET", "/v1/local-storage", "read", local_storage.get),
    Route("POST", "/v1/storage-state", "write", storage_state.post),
    Route("GET", "/v1/storage-state", "read", storage_state.get),
    Route("POST", "/v1/reviews/{group_id}", "write", reviews.post),
    Route("GET", "/v1/reviews/{group_id}", "read", reviews.get),
    Route("POST", "/v1/outputs/{group_id}", "write", outputs.post),
    Route("GET", "/v1/outputs/{group_id}", "read", outputs.get),
    Route("GET", "/v1/groups", "read", groups.get),
    Route("GET", "/v1/groups/{group_id}/stats", "read", groups.stats),
    Route("GET", "/healthz", "public", health.healthz),
    Route("GET", "/readyz", "public", health.readyz),
    Route("GET", "/metrics", "public", metrics.metrics),
    Route("GET", "/", "public", page.index),
    Route("GET", "/page/{name}", "public", page.asset),
    Route("GET", "/openapi.json", "public", documentation.document),
    Route("GET", "/docs", "public", documentation.index),
    Route("GET", "/docs/static/{name}", "public", documentation.asset),
]
