"""The client for code that is not async."""

from __future__ import annotations

from sds_client.sync.outputs import Outputs
from sds_client.sync.sessions import Sessions


class Client(Outputs, Sessions):
    """What `AsyncClient` does, without `await`: from any thread, also where a loop runs already (Jupyter).

    >>> client = Client(url, token)  # Client() takes both from SDS_URL and SDS_TOKEN
    >>> def lamp(number, title, job="monday"):
    ...     page = f"https://shop.example/{number}"
    ...     return {"source_url": page, "root_job_id": job, "key_hash": str(number), "data": {"title": title}}
    >>> client.push("lamps", [lamp(1, "Oak"), lamp(2, "Ash")])
    Pushed(created=2, updated=0, unchanged=0)

    Sending the same again changes nothing:

    >>> client.push("lamps", [lamp(2, "Ash")])
    Pushed(created=0, updated=0, unchanged=1)

    >>> [item["data"]["title"] for item in client.outputs("lamps", job_id="monday")]
    ['Oak', 'Ash']
    >>> client.group("lamps")["items"]
    2

    What is new or changed since the last time, from a cursor kept in a file; without `live=False` it goes on waiting:

    >>> [item["data"]["title"] for item in client.follow("lamps", cursor_file=folder / "lamps.cursor", live=False)]
    ['Oak', 'Ash']
    >>> client.push("lamps", [lamp(1, "Elm", job="tuesday")])
    Pushed(created=0, updated=1, unchanged=0)
    >>> [item["data"]["title"] for item in client.follow("lamps", cursor_file=folder / "lamps.cursor", live=False)]
    ['Elm']

    Browser state:

    >>> client.set_cookies([{"domain": ".shop.example", "name": "session", "value": "4f1c", "secure": True}])
    Counts(created=1, updated=0)
    >>> client.storage_state("shop.example")["cookies"][0]["name"]
    'session'

    An error says where the problem is:

    >>> client.set_cookies([{"domain": ".shop.example", "name": "session"}])
    Traceback (most recent call last):
    sds_client.errors.ClientError: 422: body.0.value: Field required
    >>> client.close()
    """
