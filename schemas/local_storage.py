"""Local-storage entries: what scrapers set and what they get."""

from marshmallow import fields

from schemas.base import Base, Date, Text, optional
from schemas.cookies import StateDeletion


class LocalStorageInput(Base):
    domain = Text(required=True, min_length=1, max_length=255)
    key = Text(required=True, max_length=8192)
    # Browsers allow about 5 MiB per origin.
    value = Text(required=True, max_bytes=5 * 1024 * 1024)
    path = Text(load_default="/", max_length=4096)
    expires = Date(load_default=None, allow_none=True)


class LocalStorageEntry(Base):
    organization_id = fields.Integer(required=True)
    domain = fields.String(required=True)
    key = fields.String(required=True)
    value = fields.String(required=True)
    expires = fields.DateTime(required=True, allow_none=True)
    id = fields.Integer(required=True)
    group_id = fields.Integer(required=True)
    path = fields.String(required=True)
    create_date = fields.DateTime(required=True)
    update_date = fields.DateTime(required=True)


class LocalStorageDeletion(StateDeletion):
    key = optional(Text, max_length=8192, description="Only this key")
