"""The weight group with Gloo in NCCL's place: each member is a process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from squelch.actors.messages import GroupMember, TensorEntry
from squelch.actors.weight_group import ALIGNMENT, WeightGroup, buckets, num_bytes

JOIN_S = 1800.0
"""More than a test may take."""
TABLE = (
    TensorEntry("embedding", "bfloat16", (7, 3)),
    TensorEntry("scale", "float32", ()),
    TensorEntry("layer.weight", "float32", (5, 4)),
    TensorEntry("steps", "int64", (1,)),
)


def weights(version: int) -> list[tuple[str, torch.Tensor]]:
    made = torch.Generator().manual_seed(version)
    return [(e.name, torch.randn(e.shape, generator=made).mul(9).to(vars(torch)[e.dtype])) for e in TABLE]


@given(
    st.lists(st.tuples(st.sampled_from(["float32", "bfloat16", "int64"]), st.integers(0, 40)), max_size=12),
    st.integers(1, 300),
)
def test_buckets_hold_every_parameter_once_in_order_aligned_and_within_the_limit(sizes, limit) -> None:
    table = [TensorEntry(f"p{i}", dtype, (length,)) for i, (dtype, length) in enumerate(sizes)]
    found = buckets(table, limit)
    assert [entry for bucket in found for entry in bucket.entries] == table
    for bucket in found:
        assert bucket.num_bytes <= limit or len(bucket.entries) == 1
        ends = [offset + num_bytes(entry) for entry, offset in zip(bucket.entries, bucket.offsets, strict=True)]
        assert all(offset % ALIGNMENT == 0 for offset in bucket.offsets)
        assert all(end <= start for end, start in zip(ends, [*bucket.offsets[1:], bucket.num_bytes], strict=True))


# -- processes ---------------------------------------------------------------------------------------------------------


def receiver(pipe: Connection) -> None:
    """A rollout worker's engine process: joins a group, then receives a version a message; `leave` closes its group."""
    group: WeightGroup | None = None
    pipe.send("up")
    while (message := pipe.recv()) is not None:
        try:
            if isinstance(message, GroupMember):
                if group is not None:
                    group.close()
                group = None  # there is none if the next is not formed
                group = WeightGroup(message, "cpu")
                pipe.send("joined")
            else:
                pipe.send([(name, t.clone()) for bucket in group.receive(message) for name, t in bucket])
        except (RuntimeError, ValueError) as error:
            pipe.send(error)


class Receiver:
    def __init__(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["squelch.actors.weight_group"])
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=receiver, args=(theirs,), daemon=True)
        self.process.start()

    def answer(self) -> Any:
        assert self.pipe.poll(JOIN_S), "the receiver does not answer"
        return self.pipe.recv()


@pytest.fixture
def receivers():
    started: list[Receiver] = []

    def start(count: int) -> list[Receiver]:
        """Processes that are up: what they import must not count as time in which they do not join."""
        new = [Receiver() for _ in range(count)]
        started.extend(new)
        assert [one.answer() for one in new] == ["up"] * count
        return new

    yield start
    for one in started:
        one.process.kill()
        one.process.join()


def formed(members: Sequence[Receiver], number: int, timeout_s: float = JOIN_S, absent: int = 0) -> WeightGroup:
    """Rank 0's end of a new group with these members, and `absent` more that never join."""
    listener, size = socket.create_server(("127.0.0.1", 0)), len(members) + 1 + absent
    ranks = [
        GroupMember(number, "127.0.0.1", listener.getsockname()[1], rank, size, "gloo", timeout_s)
        for rank in range(len(members) + 1)
    ]
    for process, member in zip(members, ranks[1:], strict=True):
        process.pipe.send(member)
    group = WeightGroup(ranks[0], "cpu", listener)
    assert [member.answer() for member in members] == ["joined"] * len(members)
    return group


def broadcast(group: WeightGroup, members: Sequence[Receiver], version: int) -> None:
    for member in members:
        member.pipe.send(TABLE)
    group.send(weights(version), TABLE)
    for member in members:
        for (name, tensor), (sent, expected) in zip(member.answer(), weights(version), strict=True):
            assert name == sent and tensor.dtype == expected.dtype and torch.equal(tensor, expected)


@pytest.mark.slow
def test_a_group_is_formed_again_with_whoever_is_there(receivers: Callable[[int], list[Receiver]]) -> None:
    first, second = receivers(2)
    group = formed([first, second], 1)
    broadcast(group, [first, second], 1)
    broadcast(group, [first, second], 2)
    group.close()
    (third,) = receivers(1)
    second.process.kill()  # it leaves, and another joins under a new rank
    group = formed([third, first], 2)
    broadcast(group, [third, first], 3)
    group.close()
    group = formed([first], 3)
    broadcast(group, [first], 4)
    group.close()


@pytest.mark.slow
def test_a_member_that_dies_or_never_comes_ends_the_wait_of_the_others(
    receivers: Callable[[int], list[Receiver]],
) -> None:
    first, second = receivers(2)
    group = formed([first, second], 1)
    second.process.kill()
    second.process.join()
    first.pipe.send(TABLE)
    with pytest.raises(RuntimeError):
        for _ in range(2):  # a small broadcast may be over before the loss is noticed
            group.send(weights(1), TABLE)
    group.close()
    first.answer()
    with pytest.raises(RuntimeError, match="of the 3 members of weight group 2, 2 did not join within 6 s"):
        formed([first], 2, timeout_s=6.0, absent=1)
    assert isinstance(first.answer(), RuntimeError)
    group = formed([first], 3)
    broadcast(group, [first], 5)
    group.close()


@pytest.mark.slow
def test_a_member_that_joins_and_never_receives_is_waited_for_once_and_not_for_each_bucket(
    receivers: Callable[[int], list[Receiver]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("squelch.actors.weight_group.BUCKET_BYTES", 1 << 20)
    table = [TensorEntry(f"p{i}", "float32", (1 << 20,)) for i in range(100)]  # 8 s each are more than a test may take
    (member,) = receivers(1)
    group = formed([member], 1, timeout_s=8.0)
    os.kill(member.process.pid, signal.SIGSTOP)
    with pytest.raises(RuntimeError):
        group.send(((entry.name, torch.zeros(entry.shape)) for entry in table), table)
    group.close()


@pytest.mark.slow
def test_weights_that_do_not_match_the_table_are_refused_by_name(receivers: Callable[[int], list[Receiver]]) -> None:
    (member,) = receivers(1)
    group = formed([member], 1)
    with pytest.raises(ValueError, match=r"gathered .*scale .* but the table expects .*embedding"):
        group.send(weights(1)[1:], TABLE)
    group.close()


def test_a_type_that_torch_lacks_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="w has the type float33"):
        buckets([TensorEntry("w", "float33", (1,))])
