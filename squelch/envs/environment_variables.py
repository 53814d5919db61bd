"""Environment variables that a shell, a cluster or a launcher sets for other programs, and that a process of a run
would take for its own: which are left out or replaced, for whom, and why. `squelch doctor` names those that it finds.

| whose | done by |
|---|---|
| `EVERY`: every process of a run, its driver included | `clear`, when the process begins |
| `AGENT`, `HOMES`: the command that plays a trajectory | `envs.agent.environment_variables` |
| `CELL`: the runs of a sweep | `cluster.sweep.cells` |
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass

LOOPBACK = "127.0.0.1,localhost"
_LINK = r"_(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
"""End of the names of the variables that Kubernetes sets for each service of a namespace."""
_LINK_PORT = re.compile(r"(tcp|udp|sctp)://")
"""Beginning of the value of the one such variable, `NAME_PORT`, whose name may also be a program's own setting."""


@dataclass(frozen=True)
class Mistaken:
    """Variables that a process would mistake. `names`: of the whole name; `values`: of the beginning of the value."""

    names: re.Pattern[str]
    why: str
    values: re.Pattern[str] = re.compile("")

    def has(self, name: str, value: str) -> bool:
        """Whether this is one of them."""
        return self.names.fullmatch(name) is not None and self.values.match(value) is not None


def _named(names: str, why: str) -> Mistaken:
    return Mistaken(re.compile(names), why)


_READS = r"(DASHBOARD|MASTER|RAY|VLLM|WANDB)(_\w+)?"
"""Beginning of the names of settings that Ray, torch, vLLM and W&B read."""
EVERY = (
    Mistaken(
        re.compile(rf"{_READS}_PORT"), "an address of a Kubernetes service, where a program expects a port", _LINK_PORT
    ),
    _named(rf"{_READS}{_LINK}", "of a Kubernetes service, and named like a setting of Ray, torch, vLLM or W&B"),
    _named(r"VLLM_PORT", "vLLM's own port: all engines of a host would try the same ones"),
    _named(r"VLLM_DP_\w+", "of a vLLM deployment with several engines: this run's would wait for the others"),
    _named(
        r"(LOCAL_|GROUP_|ROLE_)?(RANK|WORLD_SIZE)|MASTER_(ADDR|PORT)|TORCHELASTIC_\w+",
        "of a launcher such as torchrun: torch and transformers would take a process of the run for one of its ranks",
    ),
    _named(
        r"ACCELERATE_\w+|FSDP_\w+", "of `accelerate launch`: transformers would load weights on the first rank alone"
    ),
)
OPENAI = ("OPENAI_BASE_URL", "OPENAI_API_BASE")
"""Variables with the address of an OpenAI API, `/v1` included; LangChain and older clients read the second first."""
ANTHROPIC = ("ANTHROPIC_BASE_URL", "ANTHROPIC_API_URL", "ANTHROPIC_API_BASE")
"""Those of an Anthropic API; LangChain reads the second, LiteLLM the third."""
KEYS = ("OPENAI_API_KEY", "ANTHROPIC_API_KEY")
AGENT = (
    _named("|".join((*OPENAI, *ANTHROPIC, *KEYS)), "an agent's command gets those of the run's endpoint"),
    _named(
        r"ANTHROPIC_AUTH_TOKEN|(OPENAI|ANTHROPIC)_CUSTOM_HEADERS",
        "an agent's command gets none: clients would send this in place of the endpoint's token",
    ),
    _named(
        r"(OPENAI|ANTHROPIC)_PROXY|OPENAI_API_TYPE|OPENAI_WEBSOCKET_BASE_URL",
        "an agent's command gets none: its calls, with the endpoint's token, would go elsewhere",
    ),
)
HOMES = (
    _named(
        r"XDG_(CACHE|CONFIG|DATA|STATE)_HOME|CODEX_HOME|CLAUDE_CONFIG_DIR",
        "an agent's command gets none: its home is its trajectory's, unless environment.options.keep_home says else",
    ),
)
CELL = (_named(r"WANDB_RUN_ID", "the runs of a sweep get none: W&B would take all of them for one run"),)
left_out: dict[str, str] = {}
"""The variables that `clear` has left out of this process, and their values."""


def clear() -> None:
    """Leaves out of this process, and so of its children, what each process of a run would mistake; no proxy stands
    before addresses of this machine."""
    left_out.update({name: value for name, value in os.environ.items() if any(one.has(name, value) for one in EVERY)})
    for name in left_out.keys() & os.environ.keys():
        del os.environ[name]
    spare_loopback(os.environ)


def spare_loopback(variables: MutableMapping[str, str]) -> None:
    """Has clients reach addresses of this machine without a proxy. They read one of the two variables, or the other."""
    given = variables.get("no_proxy") or variables.get("NO_PROXY") or ""
    if given != "*" and not given.endswith(LOOPBACK):
        given = ",".join(filter(None, (given, LOOPBACK)))
    variables.update(no_proxy=given, NO_PROXY=given)


def without(variables: Mapping[str, str], mistaken: Sequence[Mistaken]) -> dict[str, str]:
    """The variables, as far as nobody mistakes them."""
    return {name: value for name, value in variables.items() if not any(one.has(name, value) for one in mistaken)}


def found() -> Iterator[tuple[str, str]]:
    """(name, what becomes of it and why) of each variable around this process that a child would mistake."""
    tables = ((EVERY, "left out of a run's processes: "), ((*AGENT, *HOMES), ""), (CELL, ""))
    for name, value in sorted({**os.environ, **left_out}.items()):
        for fate in (f"{words}{one.why}" for table, words in tables for one in table if one.has(name, value)):
            yield name, fate
            break
