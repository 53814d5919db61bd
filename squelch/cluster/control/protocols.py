"""The protocols of the loop besides remote actors: the factory of the actors' clients, and the store of the groups'
rows. Pure.

`cluster.fleet.ray_actors` implements the factory and the store on Ray; the tests run the same loop with in-process
actors. `cluster.control.calls` lists the calls to the actors, `cluster.control.client` makes them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from squelch.cluster.control.calls import Payload
    from squelch.cluster.control.client import Client
    from squelch.cluster.control.rank_client import LearnerClient
    from squelch.cluster.control.scaling import Kind


class Payloads(Protocol):
    """The store of the groups' rows, from which learner, scorer and archive read them."""

    def put(self, table: pa.Table) -> Payload:
        """Stores a group's rows; returns the reference."""

    async def fetch(self, payloads: list[Payload], timeout_s: float) -> list[pa.Table]:
        """The rows of each payload; TimeoutError if they do not arrive within `timeout_s`, `Failed` if they are
        lost."""


class Actors(Protocol):
    """Creates the actors of a run. The methods return at once; an actor's `ready`, `health` or `start` returns once it
    is up. `ActorError` if a player or worker cannot be created, which may go better the next time."""

    @property
    def payloads(self) -> Payloads:
        """The store that these actors share."""

    def player(self, name: str) -> Client:
        """An environment actor."""

    def worker(self, name: str) -> Client:
        """A rollout worker."""

    def filter(self) -> Client:
        """A filter service, without groups."""

    def scorer(self) -> Client:
        """A scorer."""

    def learner(self, ranks: int) -> LearnerClient:
        """The learner with this number of ranks."""

    def control_endpoint(self) -> Client:
        """The control endpoint under the name by which `squelch scale` finds the run."""

    async def lacking(self, counts: Mapping[Kind, int]) -> str | None:
        """The resources that the cluster lacks for these numbers of members, in one sentence; None if it has them or if
        an autoscaler can add it, which is then asked."""

    async def end_node_request(self) -> None:
        """Ends the request to an autoscaler, if there is one: all wanted members have come, or the run ends."""

    async def leaving(self) -> Mapping[str, float]:
        """Rollout workers and environment actors whose nodes will be taken away, and `learner` if a rank's will: the
        seconds until then by name, infinite if they are unknown."""

    async def ranks_that_fit(self) -> int:
        """Number of learner ranks, at most `learner.ranks`, for which the nodes that stay have room now; the ranks that
        are up on such a node count as room."""

    def free_resources(self) -> str:
        """The free resources of the cluster and the actors without a node, for the message about a late start."""
