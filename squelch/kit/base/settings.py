"""The base of every configuration model: frozen, complete, and strict about unknown keys."""

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationInfo, field_validator, model_validator


class Settings(BaseModel):
    """A frozen block of the configuration tree; an unknown key, a wrong type or a number that is not finite is an
    error."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True, allow_inf_nan=False
    )

    @field_validator("*", mode="before")
    @classmethod
    def _truth_values_are_no_other(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuses `true` and `false`, which pydantic reads as 1 and 0, for fields of numbers, also among several, and
        words such as `off`, which it reads as `false`, for fields that are true or false."""
        values = value if isinstance(value, list | tuple) else [value]
        if info.field_name is not None and any(isinstance(one, bool) for one in values):
            kinds = _kinds(cls.model_fields[info.field_name].annotation)
            if kinds & {int, float} and bool not in kinds:
                raise ValueError("must hold numbers" if tuple in kinds or list in kinds else "must be a number")
        if isinstance(value, str) and info.field_name is not None:
            kinds = _kinds(cls.model_fields[info.field_name].annotation)
            if bool in kinds and str not in kinds:
                raise ValueError("must be true or false, not text")
        return value

    def _faults(self) -> Iterable[str]:
        """What is wrong with the settings together, each of which is right; the first is the error."""
        return ()

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        for fault in self._faults():
            raise ValueError(fault)
        return self


def whole_or_auto(least: int) -> BeforeValidator:
    """For the annotation of a field that is a whole number of at least `least`, or `auto`."""

    def read(value: Any) -> Any:
        if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and value >= least):
            return value
        raise ValueError(f"must be a whole number of {least} or more, or auto")

    return BeforeValidator(read)


def _kinds(annotation: Any) -> set[Any]:
    """The types that an annotation is made of."""
    origin = get_origin(annotation)
    if origin is Annotated:
        return _kinds(get_args(annotation)[0])
    if origin is Literal:
        return set()
    found = {annotation, origin}
    return found.union(*(_kinds(part) for part in get_args(annotation)))
