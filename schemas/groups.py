"""Groups and what they hold."""

from marshmallow import fields

from schemas.base import Base


class Day(Base):
    date = fields.Date(required=True)
    created = fields.Integer(required=True)
    changed = fields.Integer(required=True)


class Group(Base):
    group_id = fields.String(required=True)
    items = fields.Integer(required=True)
    jobs = fields.Integer(required=True)
    approved = fields.Integer(required=True)
    last_id = fields.Integer(required=True)
    last_change = fields.DateTime(required=True, allow_none=True)
    days = fields.List(fields.Nested(Day), required=True)
