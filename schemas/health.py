"""What the health checks say."""

from marshmallow import fields

from schemas.base import Base


class Health(Base):
    status = fields.String(required=True)
