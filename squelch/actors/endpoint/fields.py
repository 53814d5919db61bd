"""The fields of requests by name, and what becomes of each. Pure; tests compare the names with the packages' types."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from squelch.actors.endpoint.canonical import Refused

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
MOST_UNKNOWN = 16
"""Names of unknown fields of one request that are told; any further ones are told together, as `other`."""


@dataclass(frozen=True)
class Fields:
    """The fields of one API.

    `read`: the request is taken as they say; `ignored`: they change nothing that is sampled; `taken_otherwise`: with
    the values that are not; `sampling`: they ask for another distribution, unless they have one of these values;
    `refused`: with the reason.
    """

    read: frozenset[str]
    ignored: frozenset[str]
    taken_otherwise: Mapping[str, tuple[Any, ...]]
    sampling: Mapping[str, tuple[Any, ...]]
    refused: Mapping[str, str]

    def sort(
        self, body: Mapping[str, Any], temperature: float, may_override: bool
    ) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(adjusted, unknown) names among the fields of a request, sorted.

        `temperature`: the run's; `may_override`: whether fields that ask for other sampling are overridden. Raises
        Refused where they are not, and for a field that is refused.
        """
        adjusted, unknown = set[str](), set[str]()
        for name, value in body.items():
            if value is None or name in self.read or name in self.ignored:
                continue
            if (why := self.refused.get(name)) is not None:
                raise Refused(400, "unsupported_field", f"{name} is not supported: {why}", name)
            if name in self.sampling:
                if not (_is_one_of(value, self.sampling[name]) or (name == "temperature" and value == temperature)):
                    adjusted.add(self._overridden(name, value, temperature, may_override))
            elif name in self.taken_otherwise:
                if not _is_one_of(value, self.taken_otherwise[name]):
                    adjusted.add(name)
            else:
                unknown.add(name if _NAME.fullmatch(name) and len(unknown) < MOST_UNKNOWN else "other")
        return tuple(sorted(adjusted)), tuple(sorted(unknown))

    @staticmethod
    def _overridden(name: str, value: Any, temperature: float, may_override: bool) -> str:
        if not may_override:
            raise Refused(
                400,
                "sampling_is_the_runs",
                f"{name}={str(value)[:80]} asks for other sampling than the run's (temperature {temperature:g}, no "
                "truncation); leave it out, or set environment_actor.endpoint.sampling=override",
                name,
            )
        return name


def _is_one_of(value: Any, neutral: tuple[Any, ...]) -> bool:
    """Whether it equals one of them; true is not 1."""
    return any(value == one and isinstance(value, bool) == isinstance(one, bool) for one in neutral)


def _names(*lists: str) -> frozenset[str]:
    return frozenset(name for names in lists for name in names.split())


_ENGINES: dict[str, tuple[Any, ...]] = {
    "top_k": (0, -1),
    "min_p": (0,),
    "repetition_penalty": (1,),
    "length_penalty": (1,),
    "min_tokens": (0,),
    "ignore_eos": (False,),
    "bad_words": ([],),
    "allowed_token_ids": (),
    "logits_processors": (),
    "structured_outputs": (),
    "guided_json": (),
    "guided_regex": (),
    "guided_choice": (),
    "guided_grammar": (),
    "use_beam_search": (False,),
}
"""Fields of open engines that clients send as extra ones."""

OPENAI = Fields(
    read=_names(
        "messages model tools stream stream_options stop logprobs n max_tokens max_completion_tokens",
    ),
    ignored=_names(
        "user metadata store service_tier safety_identifier moderation",
        "prompt_cache_key prompt_cache_options prompt_cache_retention",
    ),
    taken_otherwise={
        "tool_choice": ("auto",),
        "parallel_tool_calls": (True,),
        "top_logprobs": (0,),
        "seed": (),
        "reasoning_effort": (),
        "verbosity": (),
        "prediction": (),
        "modalities": (["text"],),
        "chat_template_kwargs": ({},),
    },
    sampling={
        "temperature": (),
        "top_p": (1,),
        "presence_penalty": (0,),
        "frequency_penalty": (0,),
        "logit_bias": ({},),
        "response_format": ({"type": "text"},),
        **_ENGINES,
    },
    refused={
        "functions": "it is the form before tools; send tools",
        "function_call": "it is the form before tools; send tools",
        "audio": "the policy writes text alone",
        "web_search_options": "the endpoint searches nothing; give the policy a tool",
    },
)

ANTHROPIC = Fields(
    read=_names("messages model system tools stream max_tokens stop_sequences thinking"),
    ignored=_names(
        "metadata service_tier cache_control diagnostics inference_geo speed user_profile_id workspace_id",
    ),
    taken_otherwise={"tool_choice": ({"type": "auto"},)},
    sampling={
        "temperature": (),
        "top_p": (1,),
        "output_config": ({},),
        "output_format": (),
        **_ENGINES,
    },
    refused={
        "container": "the endpoint runs nothing; give the policy a tool",
        "mcp_servers": "the endpoint calls nobody; give the policy a tool",
        "context_management": "the agent manages its context itself",
    },
)
