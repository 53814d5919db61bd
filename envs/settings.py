"""The base of every configuration model: frozen, complete, and strict about unknown keys."""

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


class Settings(BaseModel):
    """A frozen block of the configuration tree; an unknown key, a wrong type or a number that is not finite is an
    error."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _no_truth_value_for_a_number(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuses `true` and `false`, which pydantic reads as 1 and 0, for a field of numbers."""
        if isinstance(value, bool) and info.field_name is not None:
            annotation = cls.model_fields[info.field_name].annotation
            kinds = {annotation, *get_args(annotation)}
            if kinds & {int, float} and bool not in kinds:
                raise ValueError("must be a number")
        return value
