"""The base of this room's configuration models. The same as `envs.settings`, which cannot be had without its package:
importing `envs` registers every environment, and `squelch filter` and `squelch mi` start at once."""

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """A frozen block of the configuration tree; an unknown key, a wrong type or a number that is not finite is an
    error."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=True, allow_inf_nan=False
    )
