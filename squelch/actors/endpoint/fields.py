"""The fields of requests by name, and what becomes of each. Pure; tests compare the names with the packages' types."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hashlib import sha256
from typing import Any

from squelch.actors.endpoint.canonical import Reading, Refused, canonical

_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
MOST_UNKNOWN = 16
"""Names of unknown fields of one request that are told; any further ones are told together, as `other`."""


@dataclass(frozen=True)
class Fields:
    """The fields of one API.

    `read`: the request is taken as they say; `ignored`: they change nothing that is sampled; `taken_otherwise`: with
    the values that are not; `sampling`: they ask for another distribution, unless they have one of these values;
    `refused`: with the reason, unless they are false; `objects`: whose own fields are looked up, as `object.field`.
    """

    read: frozenset[str]
    ignored: frozenset[str]
    taken_otherwise: Mapping[str, tuple[Any, ...]]
    sampling: Mapping[str, tuple[Any, ...]]
    refused: Mapping[str, str]
    objects: frozenset[str] = frozenset()
    limits: tuple[str, ...] = ("max_tokens",)
    """Those that limit the sampled tokens, lowered to the run's limit."""

    def key(self, body: Mapping[str, Any]) -> bytes:
        """Equal for requests that ask for the same, whatever the order of their keys."""
        return sha256(
            canonical({name: one for name, one in body.items() if name not in self.ignored}).encode()
        ).digest()

    def sort(self, body: Mapping[str, Any], reading: Reading) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """(adjusted, unknown) names among the fields of a request, sorted. Raises Refused for a field that is refused,
        and for one that asks for other sampling where that is not overridden."""
        adjusted, unknown = set[str](), set[str]()
        for name, value in self._named(body):
            if name in self.limits and type(value) is int and value > reading.most_tokens:
                adjusted.add(name)
            elif value is None or name in self.read or name in self.ignored:
                continue
            elif (why := self.refused.get(name)) is not None:
                if value is not False:
                    raise Refused(400, "unsupported_field", f"{name} is not supported: {why}", name)
            elif name in self.sampling:
                fits = _is_one_of(value, self.sampling[name])
                if not (fits or (name == "temperature" and value == reading.temperature)):
                    adjusted.add(self._overridden(name, value, reading))
            elif name in self.taken_otherwise:
                if not _is_one_of(value, self.taken_otherwise[name]):
                    adjusted.add(name)
            else:
                unknown.add(name if _NAME.fullmatch(name) and len(unknown) < MOST_UNKNOWN else "other")
        return tuple(sorted(adjusted)), tuple(sorted(unknown))

    def _named(self, body: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        for name, value in body.items():
            if name in self.objects and isinstance(value, dict):
                yield from ((f"{name}.{inner}", one) for inner, one in value.items())
            else:
                yield name, value

    @staticmethod
    def _overridden(name: str, value: Any, reading: Reading) -> str:
        if not reading.may_override:
            raise Refused(
                400,
                "sampling_is_the_runs",
                f"{name}={str(value)[:80]} asks for other sampling than the run's (temperature "
                f"{reading.temperature:g}, no truncation); leave it out, or set "
                "environment_actor.endpoint.sampling=override",
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
    "use_beam_search": (False,),
}
"""Fields of open engines that clients send as extra ones."""
_CONSTRAINTS = dict.fromkeys(
    ("structured_outputs", "guided_json", "guided_regex", "guided_choice", "guided_grammar"),
    "a constrained policy's log-probabilities are not those that are trained on; check what it wrote in the agent",
)

CHAT = Fields(
    read=_names(
        "messages model tools stream stream_options stop logprobs n max_tokens max_completion_tokens",
        "parallel_tool_calls",
    ),
    ignored=_names(
        "user metadata store service_tier safety_identifier moderation",
        "prompt_cache_key prompt_cache_options prompt_cache_retention",
    ),
    taken_otherwise={
        "tool_choice": ("auto", "none"),
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
        **_CONSTRAINTS,
    },
    limits=("max_tokens", "max_completion_tokens"),
)

RESPONSES = Fields(
    read=_names(
        "input instructions model tools stream include max_output_tokens parallel_tool_calls previous_response_id",
    ),
    ignored=_names(
        "client_metadata user metadata store service_tier safety_identifier moderation access_programs image",
        "prompt_cache_key prompt_cache_options prompt_cache_retention stream_options max_tool_calls",
    ),
    taken_otherwise={
        "tool_choice": ("auto", "none"),
        "top_logprobs": (0,),
        "truncation": ("disabled",),
        "context_management": ([],),
        "text.verbosity": (),
        "reasoning.context": ("auto",),
        "reasoning.effort": (),
        "reasoning.generate_summary": (),
        "reasoning.mode": (),
        "reasoning.summary": (),
    },
    sampling={
        "temperature": (),
        "top_p": (1,),
        "text.format": ({"type": "text"},),
        **_ENGINES,
    },
    refused={
        "background": "an answer is sent once it is sampled; leave it out",
        "conversation": "nothing is kept beyond the trajectory; send input, or previous_response_id",
        "prompt": "the endpoint keeps no prompts; send instructions and input",
        **_CONSTRAINTS,
    },
    objects=_names("text reasoning"),
    limits=("max_output_tokens",),
)

_KEEP_ALL = "clear_thinking_20251015"
MESSAGES = Fields(
    read=_names(
        "messages model system tools stream max_tokens stop_sequences thinking",
        "tool_choice.name tool_choice.disable_parallel_tool_use",
    ),
    ignored=_names(
        "metadata service_tier cache_control diagnostics inference_geo speed user_profile_id workspace_id",
        "betas billing_policy fallback_credit_token",
    ),
    taken_otherwise={
        "tool_choice.type": ("auto", "none"),
        "output_config.effort": (),
        "context_management": (
            {},
            {"edits": []},
            {"edits": [{"type": _KEEP_ALL, "keep": "all"}]},
            {"edits": [{"type": _KEEP_ALL, "keep": {"type": "all"}}]},
        ),
        "compaction": (),
        "fallbacks": ([],),
    },
    sampling={
        "temperature": (),
        "top_p": (1,),
        "output_config.format": (),
        "output_format": (),
        **_ENGINES,
    },
    refused={
        "container": "the endpoint runs nothing; give the policy a tool",
        "mcp_servers": "the endpoint calls nobody; give the policy a tool",
        **_CONSTRAINTS,
    },
    objects=_names("output_config tool_choice"),
)
