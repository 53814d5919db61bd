"""The interface of retrievers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True)
class Found:
    """One passage of a result; a higher score is a better match."""

    title: str
    text: str
    score: float


class Retriever(Protocol):
    """An object that finds passages. A query may be any text; the result may be empty."""

    def retrieve(self, query: str, count: int) -> list[Found]:
        """At most `count` passages, the best first. Raises RetrieverError if the retriever cannot answer."""


class RetrieverError(RuntimeError):
    """The retriever is down, late, or its answer is malformed; the trajectory that called it fails with this reason."""
