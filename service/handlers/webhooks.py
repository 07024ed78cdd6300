"""GET and POST /v1/webhooks; DELETE /v1/webhooks/{webhook_id}, its test and its deliveries."""

from __future__ import annotations

from aiohttp import web

from schemas.webhooks import Delivery, Webhook, WebhookCreated, WebhookDeleted, WebhookInput
from service.http.endpoint import endpoint
from service.http.errors import http_error, invalid, not_found
from service.http.input.json_input import read_object
from service.http.input.query import path_id
from service.http.keys import ORGANIZATION, SETTINGS, STORE
from service.http.outgoing import url_problem
from service.http.reply import Json, parked
from service.store import MAX_WEBHOOKS, TooManyWebhooks
from service.webhooks import COURIER

_INPUT = WebhookInput()


@endpoint("List webhooks", Webhook(many=True))
async def get(request: web.Request) -> Json:
    """Return the organization's webhooks, oldest first, each with its last result; never the secret."""
    return await request.app[STORE].webhooks.list(request[ORGANIZATION])


@endpoint("Add a webhook", WebhookCreated(), body=WebhookInput())
async def post(request: web.Request) -> Json:
    """Send events of all groups, or of one, to a URL; the response has the secret, which is not shown again.

    Messages are signed as the Standard Webhooks specification says. `job.finished` carries the job with its verdict,
    `group.changed` the id up to which the group can be read, at most every 5 seconds per group.
    """
    webhook = await read_object(request, _INPUT)
    if problem := url_problem(webhook["url"], request.app[SETTINGS].webhook_private):
        raise invalid("value_error", problem, "body", "url")
    try:
        created = await request.app[STORE].webhooks.create(request[ORGANIZATION], webhook)
    except TooManyWebhooks:
        message = f"An organization has at most {MAX_WEBHOOKS} webhooks: delete one first"
        raise invalid("too_many", message, "body") from None
    return created


@endpoint("Delete a webhook", WebhookDeleted(), not_found=True)
async def delete(request: web.Request) -> Json:
    """Delete a webhook and its deliveries; a message that is being sent may still arrive."""
    webhook_id = path_id(request, "webhook_id")
    if not await request.app[STORE].webhooks.delete(request[ORGANIZATION], webhook_id):
        raise not_found("webhook", "webhook_id")
    return {"deleted": 1}


@endpoint("Test a webhook", Delivery(), not_found=True)
async def test(request: web.Request) -> Json:
    """Send a `webhook.test` message now and return the result; success switches the webhook on again."""
    webhook_id, organization_id = path_id(request, "webhook_id"), request[ORGANIZATION]
    webhooks = request.app[STORE].webhooks
    webhook = await webhooks.find(organization_id, webhook_id)
    if webhook is None:
        raise not_found("webhook", "webhook_id")
    tested = await parked(request, request.app[COURIER].test(webhook))
    if tested is None:
        raise http_error(429, {"Retry-After": "1"})
    return await webhooks.deliveries.record_test(organization_id, webhook_id, *tested)


@endpoint("List the deliveries of a webhook", Delivery(many=True), not_found=True)
async def deliveries(request: web.Request) -> Json:
    """Return the last 50 messages to a webhook, newest first."""
    webhook_id, organization_id = path_id(request, "webhook_id"), request[ORGANIZATION]
    webhooks = request.app[STORE].webhooks
    if not await webhooks.exists(organization_id, webhook_id):
        raise not_found("webhook", "webhook_id")
    return await webhooks.deliveries.recent(organization_id, webhook_id)
