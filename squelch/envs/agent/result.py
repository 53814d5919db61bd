"""What an agent reports at its end: a JSON object with `reward`, `rewards`, `penalties`, `success` and `answer`.

Contract: whatever is no such object is an error that says what is wrong and what would be right. Nothing that is
missing becomes a reward of 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

from squelch.envs.contract import AgentFailed, AgentResult
from squelch.envs.options import nearest
from squelch.kit.untrusted.files import brief

FIELDS = ("reward", "rewards", "penalties", "success", "answer")


def read_result(found: Any, by_functions: bool, success_at: float) -> AgentResult:
    """The result. `by_functions`: whether reward functions reward the answer; `success_at`: the reward from which on a
    trajectory is a success if the agent does not say. Raises AgentFailed."""
    if not isinstance(found, Mapping):
        raise AgentFailed(f'the agent reported {brief(found)}; a JSON object such as {{"reward": 1.0}} is needed')
    for name in found:
        if name not in FIELDS:
            raise AgentFailed(
                f"the agent reported {brief(name)}, which is no field; {nearest(str(name), list(FIELDS))}"
            )
    given = {name: value for name, value in found.items() if value is not None}
    reward, answer = given.get("reward"), given.get("answer")
    rewards, penalties = _numbers(given, "rewards"), _numbers(given, "penalties")
    if penalties is not None and max(penalties, default=0.0) > 0:
        raise AgentFailed(f"the agent reported the penalty {max(penalties):g}; a penalty is 0 or negative")
    if by_functions:
        if not isinstance(answer, str):
            raise AgentFailed(
                f"the agent reported the answer {brief(answer)}; text is needed, which environment.options.reward "
                "rewards"
            )
        if reward is not None:
            raise AgentFailed("the agent reported a reward beside its answer, which environment.options.reward rewards")
    elif reward is None and rewards is None:
        hint = "; its answer is rewarded only with environment.options.reward" if answer is not None else ""
        raise AgentFailed(f"the agent reported neither reward nor rewards{hint}")
    whole = 0.0 if reward is None else _number(reward, "reward")
    earned = whole + math.fsum(rewards or ())
    success = given.get("success", earned >= success_at)
    if not isinstance(success, bool):
        raise AgentFailed(f"the agent reported success as {brief(success)}; true or false is needed")
    return AgentResult(success, whole, rewards, penalties, answer if by_functions else None)


def _numbers(given: Mapping[str, Any], name: str) -> tuple[float, ...] | None:
    if name not in given:
        return None
    if not isinstance(given[name], list | tuple):
        raise AgentFailed(
            f"the agent reported {name} as {brief(given[name])}; a list with one number for each answered call is "
            "needed"
        )
    return tuple(_number(value, name) for value in given[name])


def _number(value: Any, name: str) -> float:
    try:
        number = float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        number = math.nan
    if not math.isfinite(number):
        raise AgentFailed(f"the agent reported {brief(value)} in {name}; a finite number is needed")
    return number
