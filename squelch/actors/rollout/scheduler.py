"""vLLM's scheduler, changed so that a turn's tokens leave the engine's process once instead of after every step.

By itself vLLM sends every token of every request to the worker in the step that sampled it, with three arrays of
log-probabilities, which costs both processes more Python than a step of a small model takes.

Invariants:

- The engine samples the same: only the messages about it change.
- A turn is gathered unless its request is read step by step (`RequestOutputKind`), or vLLM's own metrics, which measure
  the time between messages, are on.
- vLLM stamps a version on messages, not on tokens, and changes it only while generation is paused. A pause is complete
  once every gathered token has left under the version that sampled it: until then the scheduler has work.
- Every step sends a message, perhaps an empty one, by which the worker sees that the engine is alive.
- An aborted turn is dropped: vLLM has forgotten it on the other side before it aborts it here.

Log-probabilities travel as one float32 a token in `routed_experts`, the one field that vLLM joins over a turn's
messages as an array; nothing else uses it, since the adapter asks for no routing. It is None for a turn without them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from vllm.sampling_params import RequestOutputKind
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.interface import PauseState
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutput, EngineCoreOutputs
from vllm.v1.outputs import LogprobsLists, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

from squelch.actors.rollout.slots import spare_slots
from squelch.kit.process.progress_marks import Marks

if TYPE_CHECKING:
    from vllm.outputs import CompletionOutput
    from vllm.v1.engine.async_llm import AsyncLLM

PROVEN_ON = "0.32.0"
"""The version of vLLM whose scheduler this was read from and tried with; vLLM declares it no public interface."""


@dataclass(slots=True)
class Turn:
    """A running request. `message`: what was not sent yet, the log-probabilities aside."""

    gathered: bool
    has_log_probs: bool
    message: EngineCoreOutput | None = None
    log_probs: list[float] = field(default_factory=list)

    def add(self, output: EngineCoreOutput, log_probs: list[float]) -> None:
        """Adds a step's output to the message."""
        self.log_probs += log_probs
        if self.message is None:
            self.message = output  # a request's first output alone holds the prompt's log-probabilities
            output.new_token_ids = [*output.new_token_ids]
        else:
            self.message.new_token_ids += output.new_token_ids
            self.message.finish_reason, self.message.stop_reason = output.finish_reason, output.stop_reason

    def take(self) -> list[EngineCoreOutput]:
        """The message, if there is one; the next output begins another."""
        message, self.message = self.message, None
        if message is None:
            return []
        if self.has_log_probs:
            message.routed_experts = np.array(self.log_probs, dtype=np.float32)
        self.log_probs = []
        return [message]


class GatheringScheduler(Scheduler):
    """For engines that schedule a step after the one before it: those on CPU."""

    def __init__(self, *arguments, **named) -> None:
        super().__init__(*arguments, **named)
        spare_slots(self)
        self._turns: dict[str, Turn] = {}

    def add_request(self, request: Request) -> None:
        """As vLLM's; keeps how the request is read."""
        super().add_request(request)
        if (sampling := request.sampling_params) is not None:
            gathered = sampling.output_kind == RequestOutputKind.FINAL_ONLY and not self.log_stats
            self._turns[request.request_id] = Turn(gathered, sampling.num_logprobs is not None)

    def finish_requests(self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus) -> list[Request]:
        """As vLLM's; what was gathered of these requests is dropped."""
        finished = super().finish_requests(request_ids, finished_status)
        for request in finished:
            self._turns.pop(request.request_id, None)
        return finished

    def has_requests(self) -> bool:
        """As vLLM's; a paused scheduler has work, too, while it holds tokens."""
        return super().has_requests() or (self._is_paused and any(turn.message for turn in self._turns.values()))

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        """As vLLM's, with the messages of this module."""
        log_probs, model_runner_output.logprobs = model_runner_output.logprobs, None
        outputs = super().update_from_output(scheduler_output, model_runner_output)
        if scheduler_output.total_num_scheduled_tokens and not outputs:
            outputs[0] = EngineCoreOutputs()
        self._gather(outputs.values(), log_probs, model_runner_output.req_id_to_index)
        if self._is_paused:
            held = [message for turn in self._turns.values() for message in turn.take()]
            if held:
                outputs.setdefault(0, EngineCoreOutputs()).outputs += held
        return outputs

    @property
    def _is_paused(self) -> bool:
        return self._pause_state != PauseState.UNPAUSED

    def _gather(
        self, messages: Iterable[EngineCoreOutputs], log_probs: LogprobsLists | None, rows: dict[str, int]
    ) -> None:
        """Leaves in the messages what is to be sent. `rows`: each request's among the sampled ones."""
        column = [] if log_probs is None else log_probs.logprobs[:, 0].tolist()  # vLLM puts the sampled token's first
        starts = None if log_probs is None else log_probs.cu_num_generated_tokens
        for message in messages:
            sent: list[EngineCoreOutput] = []
            for output in message.outputs:
                turn = self._turns.get(output.request_id)
                if turn is None:  # ended by an error, after it was dropped
                    sent.append(output)
                    continue
                row = rows[output.request_id] if starts is None else starts[rows[output.request_id]]
                turn.add(output, column[row : row + len(output.new_token_ids)])
                if output.finish_reason is not None:
                    del self._turns[output.request_id]
                    sent += turn.take()
                elif not turn.gathered:
                    sent += turn.take()
            message.outputs = sent


class AsyncGatheringScheduler(GatheringScheduler, AsyncScheduler):
    """For engines that schedule a step while the one before it runs: those on CUDA."""


def scheduler_of(is_asynchronous: bool) -> str:
    """The path of the class, for vLLM's `scheduler_cls`. `is_asynchronous`: vLLM's own choice, which a class that is
    no AsyncScheduler would undo."""
    one = AsyncGatheringScheduler if is_asynchronous else GatheringScheduler
    return f"{one.__module__}.{one.__qualname__}"


# --- in the worker's process ---


def log_probs_of(sampled: CompletionOutput) -> np.ndarray:
    """(num_tokens,) float32: the log-probabilities of a turn that has ended."""
    found = sampled.routed_experts
    return np.zeros(0, dtype=np.float32) if found is None else found


def mark_steps(llm: AsyncLLM, marks: Marks) -> None:
    """Adds a mark for each step of the engine. vLLM's own hook for that, a stat logger, would make it collect
    statistics for every token, and its queue of outputs leaves empty messages out."""
    client: Any = llm.engine_core
    client.decoder = _Marking(client.decoder, marks)


@dataclass(frozen=True)
class _Marking:
    """A decoder of the engine's messages. Those that answer a call are no step."""

    decoder: Any
    marks: Marks

    def decode(self, frames: Any) -> Any:
        message = self.decoder.decode(frames)
        if message.utility_output is None:
            self.marks.add()
        return message
