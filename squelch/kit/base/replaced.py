"""Members of others' modules and classes that are others for a while. Standard library alone."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def replaced(owner: object, **members: Any) -> Iterator[None]:
    """Meanwhile these members of a module or class are others."""
    before = {name: getattr(owner, name) for name in members}
    for name, member in members.items():
        setattr(owner, name, member)
    try:
        yield
    finally:
        for name, member in before.items():
            setattr(owner, name, member)
