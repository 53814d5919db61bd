"""The parties of a run as the loop sees them: small protocols between the loop and whoever does the work. Pure.

`cluster.fleet.ray_parties` has the real ones, Ray actors; the tests drive the same loop with in-process ones. A call to
a party ends in one of four ways:

    a value
    `Died`       its process is gone; what the call had begun is lost, and a successor may be started
    `Failed`     it raised an error and lives; `Refused`, a kind of it, says that the input was at fault (ValueError)
    never        callers bound every call (`cluster.fleet.waiting`); past the bound a TimeoutError names the party

A cancelled call is withdrawn from the party as far as that is possible; its result is never used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

    from actors.filter.decisions import StepDecision
    from actors.messages import StepReport, UpdateReport, WeightBundle
    from actors.process.spans import Span
    from actors.records import GroupSummary, Ticket
    from learner.decomposition.statistics import Decomposition

Payload = Any
"""Reference to a group's rows; `Payloads.fetch` resolves it."""


class PartyError(RuntimeError):
    """A party's call ended without a value."""


class Died(PartyError):
    """The party's process is gone."""


class Failed(PartyError):
    """The party raised an error and lives. `cause`: that error."""

    def __init__(self, message: str, cause: BaseException) -> None:
        super().__init__(message)
        self.cause = cause


class Refused(Failed):
    """The party found its input wrong (ValueError): the user's to mend."""

    @property
    def reason(self) -> str:
        """The last line of the party's error, without a trace."""
        return str(self.cause).strip().splitlines()[-1]


class Party(Protocol):
    """Any party."""

    def kill(self) -> None:
        """Ends it at once, whatever state it is in; does not wait. A second call does nothing."""


class Player(Party, Protocol):
    """An environment actor."""

    async def ready(self) -> object: ...

    async def meet(self, workers: Mapping[str, Worker]) -> None:
        """From now on these are the rollout workers."""

    async def play(self, ticket: Ticket) -> tuple[GroupSummary, Payload]:
        """Plays a ticket on the worker that it names."""

    async def evaluate(self, tickets: list[Ticket]) -> list[GroupSummary]:
        """One trajectory a ticket."""

    async def take_spans(self) -> Sequence[Span]: ...


class Worker(Party, Protocol):
    """A rollout worker."""

    async def ready(self) -> object: ...

    async def update_weights(self, bundle: WeightBundle) -> UpdateReport:
        """Loads a version and proves it (checksum, parity probe)."""

    async def health(self) -> object:
        """Generates a token."""

    async def take_spans(self) -> Sequence[Span]: ...

    async def stop(self) -> object: ...


class Filter(Party, Protocol):
    """The filter service; `actors.filter.windows` says what each call means."""

    async def admit(self, summaries: list[GroupSummary]) -> object: ...

    async def close(self, step: int, final: bool, target: int) -> StepDecision: ...

    async def state(self) -> dict[str, Any]: ...

    async def restore(self, state: dict[str, Any]) -> object: ...


class Scorer(Party, Protocol):
    """The scorer."""

    async def health(self) -> object: ...

    async def score(self, step: int, bundle: WeightBundle, payloads: list[Payload]) -> dict[str, float]: ...

    async def state(self) -> dict[str, Any]: ...

    async def restore(self, state: dict[str, Any]) -> object: ...


class Learner(Party, Protocol):
    """All learner ranks together. A rank that dies or is late ends the call with an error that names it."""

    async def start(self) -> None: ...

    async def train_step(self, step: int, payloads: list[Payload], ids: list[str], loss_scale: float) -> StepReport: ...

    async def decompose(self, payloads: list[Payload], ids: list[str]) -> Decomposition: ...

    async def publish(self, version: int, dtype: str) -> WeightBundle: ...

    async def save(self, path: Path, loop: Mapping[str, Any]) -> None: ...

    async def load(self, path: Path) -> object: ...

    async def stop(self) -> None: ...


class Payloads(Protocol):
    """Where groups' rows are kept until learner, scorer and archive have them."""

    def put(self, table: pa.Table) -> Payload: ...

    async def fetch(self, payloads: list[Payload], timeout_s: float) -> list[pa.Table]:
        """The rows; TimeoutError when they do not come in time."""


class Parties(Protocol):
    """Creates parties. Creating returns at once; a party's `ready`, `health` or `start` says when it is up."""

    payloads: Payloads

    def player(self, name: str) -> Player: ...

    def worker(self, name: str) -> Worker: ...

    def filter(self) -> Filter: ...

    def scorer(self) -> Scorer: ...

    def learner(self) -> Learner: ...


class Archive(Protocol):
    """What is kept of a run while it goes on; `actors.archive` is the real one."""

    def write_groups(
        self, step: int, tables: Sequence[pa.Table], decisions: Mapping[str, Any], filter_text: str = ""
    ) -> object: ...

    def metrics(self, step: int, values: Mapping[str, Any]) -> None: ...

    def event(self, actor: str, name: str, start: float, end: float, **facts: Any) -> None: ...


class MetricsSink(Protocol):
    """Takes a step's figures for `/metrics`."""

    def step(self, step: int, flat: Mapping[str, Any]) -> None: ...
