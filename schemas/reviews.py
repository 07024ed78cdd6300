"""Reviews of the jobs of a group."""

from marshmallow import fields

from schemas.base import Base, Date, PageQuery, QueryFlag, Text


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
    author = fields.String(
        metadata={"description": "The label of the token that wrote it. With history=true, and in the jobs of a group"}
    )


class ReviewsQuery(PageQuery):
    history = QueryFlag(
        load_default=False, allow_none=True, metadata={"description": "true: every review, newest first"}
    )


class ReviewsWritten(Base):
    created = fields.Integer(required=True)
    items = fields.List(fields.Nested(Review), required=True)
