"""Delivers messages to webhooks: signed, in turns by organization, as long as the application runs."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import hmac
import logging
import random
import time
from collections import Counter

from aiohttp import web

from service.chat import chat_message
from service.http.outgoing import SECONDS, Sender
from service.store import SECRET_PREFIX, TEST, Lease, Message, Outcome, StoreError, Webhook, Webhooks, new_message

log = logging.getLogger("service.webhooks")

# Webhooks worked on at once, per process and per organization.
_AT_ONCE = 64
_PER_ORGANIZATION = 4
# Seconds for one webhook before others have their turn, and between two looks for due webhooks.
_TURN_SECONDS = 10.0
_LOOK_SECONDS = 1.0
_FAILED_SECONDS = 5.0


def sign(secret: str, message_id: str, timestamp: int, body: bytes) -> dict[str, str]:
    """Return the headers that the Standard Webhooks specification asks for."""
    key = base64.b64decode(secret.removeprefix(SECRET_PREFIX))
    signed = hmac.digest(key, f"{message_id}.{timestamp}.".encode() + body, hashlib.sha256)
    return {
        "webhook-id": message_id,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": f"v1,{base64.b64encode(signed).decode()}",
    }


class Courier:
    """Sends due messages. A receiver that does not respond takes one place of its organization for ten seconds."""

    def __init__(self, webhooks: Webhooks, sender: Sender, base_url: str = "") -> None:
        self._webhooks, self._deliveries, self._sender = webhooks, webhooks.deliveries, sender
        self._base_url = base_url
        self._turns: dict[asyncio.Task[None], int] = {}
        self._testing: set[int] = set()
        self._stopping = False
        self.attempts = {"delivered": 0, "failed": 0}  # for the metrics

    async def test(self, webhook: Webhook) -> tuple[Message, Outcome] | None:
        """Send a test message; return None while another test of the organization is running."""
        if webhook.organization_id in self._testing:
            return None
        message = new_message(TEST, {"webhook_id": webhook.webhook_id})
        self._testing.add(webhook.organization_id)
        try:
            return message, await self._send(webhook, message)
        finally:
            self._testing.discard(webhook.organization_id)

    async def run(self) -> None:
        """Look for due webhooks until cancelled."""
        waiting = False  # so that it is logged once
        while True:
            self._deliveries.added.clear()
            try:
                if self._deliveries.are_ready:
                    await self._begin_turns()
                    waiting = False
            except StoreError as error:
                if not waiting:
                    log.warning("webhooks wait for the database", extra={"error": str(error)})
                waiting = True
            except Exception as error:
                log.error("looking for due webhooks failed", extra={"error": type(error).__name__})
            # At random, so that processes do not all ask at once.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_SECONDS * random.uniform(0.5, 1.0)):
                    await self._deliveries.added.wait()

    def stop(self) -> None:
        """Begin no more messages."""
        self._stopping = True

    async def close(self) -> None:
        """Wait for the messages that are being sent; each ends within its time limit."""
        self.stop()
        if self._turns:
            await asyncio.wait(self._turns, timeout=SECONDS)
        for turn in list(self._turns):
            turn.cancel()
        await asyncio.gather(*self._turns, return_exceptions=True)
        await self._sender.close()

    async def _begin_turns(self) -> None:
        while (places := _AT_ONCE - len(self._turns)) > 0 and not self._stopping:
            turns_held = Counter(self._turns.values())
            busy = [organization_id for organization_id, count in turns_held.items() if count >= _PER_ORGANIZATION]
            begun = False
            for organization_id, webhook_id in await self._deliveries.due(busy, places):
                if turns_held[organization_id] < _PER_ORGANIZATION:
                    lease = await self._deliveries.lease(organization_id, webhook_id)
                    if lease is not None:
                        turns_held[organization_id] += 1
                        self._begin(lease)
                        begun = True
            if not begun:
                return

    def _begin(self, lease: Lease) -> None:
        turn = asyncio.create_task(self._turn(lease))
        self._turns[turn] = lease.organization_id

        def end(turn: asyncio.Task[None]) -> None:
            del self._turns[turn]
            self._deliveries.added.set()  # another webhook may wait for the place

        turn.add_done_callback(end)

    async def _turn(self, lease: Lease) -> None:
        """Send the due messages of one webhook, until one fails or its time is over."""
        try:
            webhook = await self._webhooks.find(lease.organization_id, lease.webhook_id)
            if webhook is not None:
                lease = await self._deliveries.add_changes(lease)
                await self._send_due(lease, webhook)
        except StoreError as error:
            log.warning("delivering to a webhook failed", extra={"error": str(error)})
            await asyncio.sleep(_FAILED_SECONDS)
        except Exception as error:
            log.error("delivering to a webhook failed", extra={"error": type(error).__name__})
            await asyncio.sleep(_FAILED_SECONDS)
        try:
            await self._deliveries.release(lease)
        except StoreError as error:
            log.warning("a webhook waits until its lease ends", extra={"error": str(error)})

    async def _send_due(self, lease: Lease, webhook: Webhook) -> None:
        end = time.monotonic() + _TURN_SECONDS
        while time.monotonic() < end and not self._stopping:
            message = await self._deliveries.next(lease)
            if message is None:
                return
            outcome = await self._send(webhook, message)
            await self._deliveries.record(lease, message, outcome)
            if not outcome.is_success:
                return

    async def _send(self, webhook: Webhook, message: Message) -> Outcome:
        if webhook.format == "standard":
            body = message.body.encode()
            headers = sign(webhook.secret, message.id, int(time.time()), body)
        else:
            body, headers = chat_message(webhook.format, message.body, self._base_url), {}
        outcome = await self._sender.post(webhook.url, body, headers)
        self.attempts["delivered" if outcome.is_success else "failed"] += 1
        return outcome


COURIER = web.AppKey("courier", Courier)
