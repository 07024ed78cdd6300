"""The response of GET /v1/token."""

from marshmallow import fields

from schemas.base import Base


class Server(Base):
    version = fields.String(required=True)
    encoder = fields.String(
        required=True,
        metadata={"enum": ["one_pass", "python"], "description": "What encodes written items; only its speed differs"},
    )


class Token(Base):
    id = fields.String(required=True, metadata={"description": "As `token list` shows it; not the token itself"})
    organization_id = fields.Integer(required=True)
    scopes = fields.List(fields.String(metadata={"enum": ["read", "write", "delete", "state", "admin"]}), required=True)
    label = fields.String(required=True)
    create_date = fields.DateTime(required=True)
    expires = fields.DateTime(required=True, allow_none=True, metadata={"description": "Null: never"})
    server = fields.Nested(Server, required=True)
