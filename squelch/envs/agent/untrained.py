"""Which calls of an agent are answered without being trained on: rules over what a request says beside its messages."""

from __future__ import annotations

from collections.abc import Iterator
from fnmatch import fnmatchcase

from pydantic import Field

from squelch.envs.contract import AgentCall
from squelch.kit.base.settings import Settings


class CallRule(Settings):
    """One rule; all of its conditions must hold. In a pattern `*` stands for any text, and case counts."""

    model: str = ""
    """Pattern of the model that the request names; empty: any."""
    headers: dict[str, str] = Field(default_factory=dict)
    """Patterns of the request's headers, by name."""
    no_tools: bool = False
    """The request offers the policy no tool."""

    def _faults(self) -> Iterator[str]:
        if not (self.model or self.headers or self.no_tools):
            yield "a rule needs a condition: model, headers or no_tools; else nothing would be trained on"

    def holds(self, call: AgentCall) -> bool:
        """Whether the rule is about this call."""
        return (
            (not self.model or fnmatchcase(call.model, self.model))
            and all(
                name in call.headers and fnmatchcase(call.headers[name], pattern)
                for name, pattern in self.headers.items()
            )
            and not (self.no_tools and call.offers_tools)
        )

    def __str__(self) -> str:
        """The conditions in words."""
        model = [f"model {self.model}"] if self.model else []
        headers = [f"{name}: {pattern}" for name, pattern in self.headers.items()]
        return ", ".join([*model, *headers, *(["no tools"] if self.no_tools else [])])
