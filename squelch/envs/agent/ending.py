"""How an agent ended by itself, and what that earns: `environment.options.failure_reward`.

A framework raises where the policy writes prose instead of a call, or no value of the wanted type. As a failure that
would leave its group, and the policy would never learn that it was wrong. So a user may name such endings with their
rewards. Whether one counts is not decided here: the player knows if something else may be to blame
(`actors.play.agent_episode`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from squelch.envs.contract import AgentFailed

_EXIT_CODES = frozenset(map(str, range(1, 256)))


class AgentEnded(AgentFailed):
    """The agent ended by itself, without a result. `names`: what the ending is called: a command's exit code, or the
    classes of a function's exception, the most special first, each as `module.Class` and as `Class`."""

    def __init__(self, text: str, names: Sequence[str]) -> None:
        self.names = names
        super().__init__(text)

    def earning(self, rewards: Mapping[str, float]) -> AgentFailed:
        """The same with its reward, if the ending has one in `rewards`."""
        return AgentFailed(str(self), next((rewards[name] for name in self.names if name in rewards), None))


def faults_of_names(rewards: Mapping[str, float], of_command: bool) -> Iterator[str]:
    """What is wrong with each name that no ending can have."""
    for name in rewards:
        if of_command and name not in _EXIT_CODES:
            yield f"failure_reward of a command names exit codes from 1 to 255 (got {name!r})"
        if not of_command and not all(part.isidentifier() for part in name.split(".")):
            yield (
                "failure_reward of a function names classes of exceptions, e.g. ValueError or json.JSONDecodeError "
                f"(got {name!r})"
            )
