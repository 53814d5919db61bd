"""What a judge of reasonings is: it reads states and claims, and decides whether the claims are true. Pure.

An environment declares its judge (`envs.contract.Judged`); `kit.diagnosis.grounding` counts with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # its pixels need numpy, which the table of environments does not load
    from squelch.kit.records.pictures import Picture


class Judge(Protocol):
    """Reads a prompt and a reasoning, and decides whether the claims of the reasoning are true of the prompt.

    No text raises an error. `facts` and `claims` take time linear in the text.
    """

    def facts(self, prompt: str, pictures: Sequence[Picture] = ()) -> Any | None:
        """What the last state in a prompt shows, in text or in the last of its pictures; None if it shows no state."""

    def claims(self, reasoning: str) -> Sequence[Any]:
        """The claims of a reasoning about its state, in order; all text that is no claim is ignored."""

    def holds(self, claim: Any, facts: Any) -> bool:
        """Whether a claim is true of the facts."""
