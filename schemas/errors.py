"""The one error body."""

from marshmallow import fields

from schemas.base import Base


class Problem(Base):
    loc = fields.List(fields.String(), required=True, metadata={"description": "Location of the faulty input"})
    msg = fields.String(required=True)
    type = fields.String(required=True, metadata={"description": "One of the documented types"})


class Error(Base):
    detail = fields.List(fields.Nested(Problem), required=True)
