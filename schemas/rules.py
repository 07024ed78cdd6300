"""Rules by which a finished job is judged."""

from collections.abc import Mapping
from typing import Any

from marshmallow import ValidationError, fields, validates_schema

from schemas.base import Base, Choice, WholeNumber, check_bounds, messages, problem
from schemas.paths import DataPath

TYPES = ("string", "number", "integer", "boolean", "array", "object")
# Checks of one field of the data, and checks of a job as a whole.
OF_PATHS = ("min_fill", "type", "min", "max", "max_drop")
OF_JOBS = ("min_items", "max_missing", "max_changed")


class Number(fields.Raw):
    """A JSON number, within bounds if there are any."""

    default_error_messages = messages("float_type", "Must be a number")

    def __init__(self, *, minimum: float | None = None, maximum: float | None = None, **kwargs: Any) -> None:
        self.minimum, self.maximum = minimum, maximum
        bounds = {name: value for name, value in (("minimum", minimum), ("maximum", maximum)) if value is not None}
        super().__init__(metadata={"type": "number", **bounds, **kwargs.pop("metadata", {})}, **kwargs)

    def _deserialize(self, value: Any, attr: str | None, data: Mapping[str, Any] | None, **kwargs: Any) -> Any:
        if type(value) not in (int, float):
            raise self.make_error("invalid")
        check_bounds(value, self.minimum, self.maximum)
        return value


def _share(meaning: str) -> Number:
    return Number(minimum=0, maximum=1, metadata={"description": meaning})


class Rule(Base):
    """One check: of the field at `path`, or of the job as a whole."""

    path = DataPath(metadata={"description": "The field: price.amount, or in full data.price.amount"})
    min_fill = _share("The field is filled in at least this share of the items")
    type = Choice(*TYPES, metadata={"description": "Every value of the field that is not null has this type"})
    min = Number(metadata={"description": "No number in the field is lower"})
    max = Number(metadata={"description": "No number in the field is higher"})
    max_drop = _share("The fill rate is at most this much lower than in the previous finished job")
    min_items = WholeNumber(minimum=0, metadata={"description": "The job has at least this many items"})
    max_missing = _share("At most this share of the series' items was not seen")
    max_changed = _share("At most this share of the job's items has changed")

    @validates_schema(skip_on_field_errors=True)
    def _one_check(self, data: dict[str, Any], **_: Any) -> None:
        checks = [name for name in (*OF_PATHS, *OF_JOBS) if name in data]
        if len(checks) != 1:
            raise ValidationError([problem("value_error", f"Must name one of {', '.join((*OF_PATHS, *OF_JOBS))}")])
        if ("path" in data) != (checks[0] in OF_PATHS):
            need = "needs a path" if checks[0] in OF_PATHS else "takes no path"
            raise ValidationError([problem("value_error", f"{checks[0]} {need}")])
