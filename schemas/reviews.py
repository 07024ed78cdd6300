"""Reviews of the jobs of a group."""

from marshmallow import fields

from schemas.base import Base, Date, Text


class ReviewInput(Base):
    job_id = Text(required=True, min_length=1, max_length=256)
    status = Text(required=True, min_length=1, max_length=64)
    comment = Text(load_default="", max_length=65536)
    review_date = Date(load_default=None, metadata={"description": "Default: now"})


class Review(Base):
    job_id = fields.String(required=True)
    review_id = fields.String(required=True)
    review_date = fields.DateTime(required=True)
    status = fields.String(required=True)
    comment = fields.String(required=True)


class ReviewsWritten(Base):
    created = fields.Integer(required=True)
    items = fields.List(fields.Nested(Review), required=True)
