"""Joining the ranks' process group is bounded."""

import socket

import pytest

from squelch.learner import process_group


def unused_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_gives_up_on_others_that_do_not_come(rank: int) -> None:
    with pytest.raises(RuntimeError):
        process_group.start(rank, 2, "127.0.0.1", unused_port(), 1.0, "cpu")
