"""Replays of a trajectory that has ended, under fresh environment noise (`envs.noise.replay` defines the replay).

The environment actor plays them, in the environment that the trajectory has just been played in, while the other
trajectories of its group still wait for their tokens. Nothing is generated. A group ends once its last replay has.

Invariants:

- The noise seed of replay r of a trajectory is a digest of (ticket seed, ticket, trajectory, r): a ticket that is
  retried, after a resume or on another actor, has the same replays. No two replays share their noise, even if the
  trajectories of a group share theirs: the filter's correction needs independent replays.
- A trajectory has all of its replays or none. A failed replay loses the replays of its trajectory, and nothing else; if
  the filter then refuses the group, its reason says why the first replay failed.
- Cost: `Ticket.replays` times a reset and the steps of the trajectory itself.

| waits for | unblocked by | on time-out |
|---|---|---|
| a slice of a replay | a step thread | as an environment call: after `step_timeout_s`; the thread is abandoned |
| all replays of a trajectory | step threads | once they have run for `episode_timeout_s` each; it has no replays |

Only the time in which a replay runs is counted, because all trajectories of an actor share the same threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from squelch.actors.play.seeds import replay_seed
from squelch.actors.play.step_pool import CallFailed, StepPool
from squelch.envs.config import EnvironmentConfig
from squelch.envs.contract import Environment
from squelch.envs.episode import Episode
from squelch.kit.filter.settings import FilterConfig
from squelch.kit.records.records import Ticket


@dataclass(frozen=True)
class Replayed:
    """The replays of one trajectory."""

    returns: tuple[float, ...] | None
    """Return of each replay, empty if the environment declares no noise; None if a replay failed or none was
    requested."""
    failure: str | None = None
    """Why a replay failed; None if none did."""
    seconds: float = 0.0
    """Seconds that the trajectory's replays waited for the environment."""
    lost_environment: bool = False
    """A replay failed, so that the environment must not be used again."""


NOT_REPLAYED = Replayed(None)


async def replay(episode: Episode, ticket: Ticket, index: int, steps: StepPool, timeout_s: float) -> Replayed:
    """The ticket's replays of the trajectory `index`, whose episode is over. An error of the environment is not
    raised."""
    if not ticket.replays:
        return NOT_REPLAYED
    if not episode.noisy:
        return Replayed(())
    started, clock = time.monotonic(), _Clock(timeout_s * ticket.replays)
    try:
        returns = [await _one(episode, replay_seed(ticket, index, r), steps, clock) for r in range(ticket.replays)]
    except (TimeoutError, CallFailed) as error:
        return Replayed(None, str(error), time.monotonic() - started, lost_environment=True)
    return Replayed(tuple(returns), seconds=time.monotonic() - started)


async def _one(episode: Episode, noise_seed: int, steps: StepPool, clock: _Clock) -> float:
    playing = episode.replay(noise_seed)
    while (earned := await steps.run(lambda: clock.timed(playing.advance))) is None:
        clock.check()
    return earned


class _Clock:
    """Seconds for which the replays of a trajectory have run. `most`: seconds that they may run."""

    def __init__(self, most: float) -> None:
        self.most, self.ran = most, 0.0

    def timed(self, advance: Callable[[], float | None]) -> float | None:
        """Runs a slice of a replay, adds its time to `ran`, and returns its result."""
        started = time.monotonic()
        try:
            return advance()
        finally:
            self.ran += time.monotonic() - started

    def check(self) -> None:
        """Raises TimeoutError if the replays ran for too long."""
        if self.ran > self.most:
            raise TimeoutError(
                f"the replays ran for {self.ran:.1f} s, and {self.most:.1f} s are allowed "
                "(environment_actor.episode_timeout_s for each)"
            )


def notes_on_replays(environment: Environment, config: EnvironmentConfig, selecting: FilterConfig) -> list[str]:
    """Messages to the user about replays when a run starts. ValueError if the environment cannot be replayed although
    the filter's settings ask for it."""
    if not selecting.num_replays:
        return []
    asks = "filter.replays" if selecting.replays is not None else f"filter.statistic={selecting.statistic}"
    if not environment.replayable:
        raise ValueError(
            f"{asks} replays trajectories under fresh noise, and this environment declares that its noise does not "
            "follow the noise seed (replayable: false); set filter.statistic=reward_variance and leave out "
            "filter.replays"
        )
    if environment.stochastic or config.reward_noise.std > 0:
        return [f"{asks}: each trajectory is replayed {selecting.num_replays} times under fresh environment noise"]
    return [f"{asks}: {config.name} declares no noise, so nothing is replayed; policy variance is reward variance"]
