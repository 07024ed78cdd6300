"""The API as one table."""

from service.handlers import cookies, groups, health, local_storage, metrics, outputs, reviews, storage_state
from service.handlers.docs import Handler

ROUTES: list[tuple[str, str, Handler]] = [
    ("POST", "/v1/cookies", cookies.post),
    ("GET", "/v1/cookies", cookies.get),
    ("POST", "/v1/local-storage", local_storage.post),
    ("GET", "/v1/local-storage", local_storage.get),
    ("POST", "/v1/storage-state", storage_state.post),
    ("GET", "/v1/storage-state", storage_state.get),
    ("POST", "/v1/reviews/{group_id}", reviews.post),
    ("GET", "/v1/reviews/{group_id}", reviews.get),
    ("POST", "/v1/outputs/{group_id}", outputs.post),
    ("GET", "/v1/outputs/{group_id}", outputs.get),
    ("GET", "/v1/groups", groups.get),
    ("GET", "/v1/groups/{group_id}/stats", groups.stats),
    ("GET", "/healthz", health.healthz),
    ("GET", "/readyz", health.readyz),
    ("GET", "/metrics", metrics.metrics),
]
