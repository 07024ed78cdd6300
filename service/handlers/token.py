"""GET /v1/token."""

from aiohttp import web

from schemas.token import Token
from service import __version__
from service.http.endpoint import endpoint
from service.http.keys import STORE, TOKEN
from service.http.reply import Json


@endpoint("Describe the token", Token())
async def get(request: web.Request) -> Json:
    """Return the organization, scopes and expiry of the caller's own token, never its text; and what serves it."""
    token = request[TOKEN]
    return {
        "id": token.id,
        "organization_id": token.organization_id,
        "scopes": sorted(token.scopes),
        "label": token.label,
        "create_date": token.create_date,
        "expires": token.expires,
        "server": {"version": __version__, "encoder": request.app[STORE].outputs.encoder_name},
    }
