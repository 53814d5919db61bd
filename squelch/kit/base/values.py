"""Which cells of a table hold a value, which of them tell rows apart, and which are objects. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from hashlib import blake2b
from typing import Any


def known(value: Any) -> bool:
    """Whether a cell holds a value: None and NaN, by which tables fill a column, are none."""
    return value is not None and value == value


def known_id(value: Any) -> bool:
    """Whether a value tells prompts, groups, rollouts or steps apart; an empty one does not either."""
    return known(value) and value not in ([], {}) and not (isinstance(value, str | bytes) and not value.strip())


def first(values: Iterable[Any], holds: Callable[[Any], bool] = known_id) -> Any:
    """The first value that holds; None if none does."""
    return next(filter(holds, values), None)


def object_of(value: Any) -> Mapping[str, Any]:
    """The value if it is an object; else an empty one."""
    return value if isinstance(value, dict) else {}


def digest(value: Any) -> bytes:
    """16 bytes, equal for values that are written alike."""
    return blake2b(repr(value).encode(errors="replace"), digest_size=16).digest()
