"""The tokens of an organization, as a token with the scope `admin` manages them."""

from datetime import UTC, datetime
from typing import Any

from marshmallow import ValidationError, fields
from marshmallow.validate import Length

from schemas.base import Base, Choice, Date, Text, messages, problem

SCOPES = ("read", "write", "delete", "state", "admin")
GRANTABLE = SCOPES[:-1]


def _in_future(moment: datetime | None) -> None:
    if moment is not None and moment <= datetime.now(UTC):
        raise ValidationError([problem("value_error", "Must be in the future")])


class Scopes(fields.List[str]):
    """Some scopes, each once."""

    default_error_messages = messages("list_type", "Must be an array")

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(Choice(*GRANTABLE), **kwargs)

    def _deserialize(self, value: Any, *args: Any, **kwargs: Any) -> list[Any]:
        if not value or (isinstance(value, list) and len(value) > len(GRANTABLE)):
            raise ValidationError([problem("value_error", f"Must be some of {', '.join(GRANTABLE)}")])
        return list(dict.fromkeys(super()._deserialize(value, *args, **kwargs)))


class TokenInput(Base):
    label = Text(required=True, min_length=1, max_length=256, metadata={"description": "Who uses it"})
    scopes = Scopes(required=True, metadata={"description": "admin cannot be granted", "minItems": 1})
    expires = Date(
        load_default=None, allow_none=True, validate=_in_future, metadata={"description": "Default: null, never"}
    )


class OrganizationToken(Base):
    token_id = fields.String(required=True)
    label = fields.String(required=True)
    scopes = fields.List(fields.String(metadata={"enum": list(SCOPES)}), required=True, validate=Length(min=1))
    create_date = fields.DateTime(required=True)
    last_used = fields.DateTime(
        required=True, allow_none=True, metadata={"description": "To the minute; null: never used"}
    )
    expires = fields.DateTime(required=True, allow_none=True)
    revoked = fields.DateTime(required=True, allow_none=True, metadata={"description": "When; null: it works"})


class TokenCreated(OrganizationToken):
    token = fields.String(required=True, metadata={"description": "The token itself, shown only here"})
