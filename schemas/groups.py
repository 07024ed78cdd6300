"""Groups, their jobs and the fields of their data."""

from marshmallow import fields

from schemas.base import Base, Digits, PageQuery, Text, WholeNumber
from schemas.reviews import Review


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
    retention_days = fields.Integer(required=True, allow_none=True)
    days = fields.List(fields.Nested(Day), required=True)


class GroupsQuery(Base, PageQuery):
    pass


class GroupSettings(Base):
    retention_days = WholeNumber(
        required=True,
        allow_none=True,
        minimum=1,
        maximum=36500,
        metadata={"description": "Items not scraped for so many days are deleted; null: never"},
    )


class Job(Base):
    job_id = fields.String(required=True)
    items = fields.Integer(required=True, metadata={"description": "Items that it holds now"})
    created = fields.Integer(required=True)
    changed = fields.Integer(required=True)
    unchanged = fields.Integer(required=True)
    first_write = fields.DateTime(required=True, allow_none=True)
    last_write = fields.DateTime(required=True, allow_none=True)
    review = fields.Nested(Review, required=True, allow_none=True, metadata={"description": "Its latest review"})


class FieldsQuery(Base):
    job_id = Text(load_default=None, allow_none=True, max_length=256)
    limit = Digits(
        minimum=1, maximum=1000, load_default=1000, metadata={"description": "How many of the newest items are read"}
    )


class FieldStatistics(Base):
    path = fields.String(required=True)
    count = fields.Integer(required=True)
    fill_rate = fields.Float(required=True)
    types = fields.Dict(required=True, metadata={"description": "Type -> number of values"})
    min = fields.Raw(required=True, allow_none=True)
    max = fields.Raw(required=True, allow_none=True)
    examples = fields.List(fields.Raw(), required=True)


class GroupFields(Base):
    items = fields.Integer(required=True)
    fields_ = fields.List(fields.Nested(FieldStatistics), required=True, data_key="fields")
