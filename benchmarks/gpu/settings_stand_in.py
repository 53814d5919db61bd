"""Stands in for pydantic on a machine that lacks it, so that the settings can be built there. Standard library only.

Settings keep their defaults, their validators and their nesting; types and bounds are not checked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any, get_args, get_origin, get_type_hints

MISSING: Any = object()


class Field:
    """The default of a field; bounds and descriptions are ignored."""

    def __init__(
        self, default: Any = MISSING, *, default_factory: Callable[[], Any] | None = None, **ignored: Any
    ) -> None:
        self.default, self.factory = default, default_factory

    def value(self) -> Any:
        """A new default value."""
        return self.factory() if self.factory else self.default


@dataclass(frozen=True)
class Validator:
    """A validator of the whole model, `before` or `after` its construction."""

    mode: str
    function: Callable[..., Any]


def model_validator(*, mode: str) -> Callable[[Any], Validator]:
    """Marks a method as a validator."""
    return lambda method: Validator(mode, method.__func__ if isinstance(method, classmethod) else method)


def field_validator(*names: str, mode: str) -> Callable[[Any], Any]:
    """Leaves out a validator of fields: types and bounds are not checked."""
    return lambda method: method


class BaseModel:
    """A model whose fields are the annotated names of its class and of the classes above it."""

    def __init__(self, **given: Any) -> None:
        for check in self._validators("before"):
            given = check(type(self), given)
        fields = self._fields()
        unknown = given.keys() - fields.keys()
        if unknown:
            raise ValueError(f"{type(self).__name__} has no {', '.join(sorted(unknown))}")
        hints = get_type_hints(type(self))
        for name, default in fields.items():
            value = given.get(name, default.value() if isinstance(default, Field) else default)
            if value is MISSING:
                raise ValueError(f"{type(self).__name__} needs {name}")
            vars(self)[name] = _nested(value, hints[name])
        for check in self._validators("after"):
            check(self)

    @classmethod
    def _fields(cls) -> dict[str, Any]:
        return {
            name: vars(base).get(name, MISSING)
            for base in reversed(cls.__mro__)
            for name in vars(base).get("__annotations__", {})
        }

    @classmethod
    def _validators(cls, mode: str) -> list[Callable[..., Any]]:
        members = [member for base in reversed(cls.__mro__) for member in vars(base).values()]
        return [one.function for one in members if isinstance(one, Validator) and one.mode == mode]

    @classmethod
    def model_validate(cls, given: Any) -> Any:
        """The model of a mapping; a model is returned as it is."""
        return given if isinstance(given, cls) else cls(**given)

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Any:
        """A copy with other values for some fields, without validation."""
        copy = object.__new__(type(self))
        vars(copy).update(vars(self) | dict(update or {}))
        return copy

    def model_dump(self) -> dict[str, Any]:
        """The fields as a mapping, nested models too."""
        return _plain(vars(self))

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and vars(other) == vars(self)

    def __hash__(self) -> int:
        return hash((type(self), *map(str, vars(self).values())))


def _nested(value: Any, hint: Any) -> Any:
    """The model that a mapping describes, if its field is annotated with one, or with a dictionary of them."""
    if get_origin(hint) is dict and isinstance(value, Mapping):
        return {name: _nested(one, get_args(hint)[1]) for name, one in value.items()}
    models = [part for part in (hint, *get_args(hint)) if isinstance(part, type) and issubclass(part, BaseModel)]
    return models[0].model_validate(value) if models and isinstance(value, Mapping) else value


def _plain(value: Any) -> Any:
    """The value with every model as a dictionary."""
    if isinstance(value, BaseModel):
        return value.model_dump()
    return {name: _plain(one) for name, one in value.items()} if isinstance(value, dict) else value


def _unchecked(*given: Any, **named: Any) -> Any:
    """An annotation that checks nothing."""
    return None


def module() -> ModuleType:
    """The stand-in for the module `pydantic`."""
    found = ModuleType("pydantic", __doc__)
    vars(found).update(
        AfterValidator=_unchecked,
        BaseModel=BaseModel,
        BeforeValidator=_unchecked,
        ConfigDict=dict,
        Field=Field,
        NonNegativeInt=int,
        TypeAdapter=_unchecked,
        ValidationError=ValueError,
        model_validator=model_validator,
        field_validator=field_validator,
        ValidationInfo=None,
    )
    return found
