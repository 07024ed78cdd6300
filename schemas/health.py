"""The responses of the health checks."""

from marshmallow import fields

from schemas.base import Base


class Health(Base):
    status = fields.String(required=True)
