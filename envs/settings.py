"""The base of every configuration model: frozen, complete, and strict about unknown keys."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """A frozen block of the configuration tree; an unknown key, a wrong type or a number that is not finite is an
    error."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True, allow_inf_nan=False
    )
