from contextlib import contextmanager

import pytest
import torch

from squelch.learner.snapshot import Pages, Snapshot


class Streams:
    """CUDA's streams, as far as `Pages` uses them, and the order in which work is enqueued."""

    def __init__(self) -> None:
        self.work: list[str] = []
        self.current = self.compute = Stream(self, "compute")

    @contextmanager
    def on(self, stream: "Stream"):
        before, self.current = self.current, stream
        yield
        self.current = before


class Stream:
    def __init__(self, streams: Streams, name: str) -> None:
        self.streams, self.name = streams, name

    def wait_stream(self, other: "Stream") -> None:
        self.streams.work.append(f"{self.name} waits for {other.name}")

    def synchronize(self) -> None:
        pytest.fail("the host waits")


def test_copies_run_beside_the_compute_stream_and_only_the_streams_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    streams = Streams()
    monkeypatch.setattr(torch.cuda, "Stream", lambda device: Stream(streams, "copies"))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: streams.current)
    monkeypatch.setattr(torch.cuda, "stream", streams.on)
    monkeypatch.setattr(Pages, "copy", lambda *_: streams.work.append(f"copy on {streams.current.name}"))
    pages, parameter = Pages(torch.device("cuda")), torch.nn.Parameter(torch.ones(3))
    Snapshot.of(torch.optim.AdamW([parameter]), pages)
    streams.work.append(f"micro-batch on {streams.current.name}")
    pages.wait()
    streams.work.append(f"optimizer step on {streams.current.name}")
    assert streams.work == [
        "copies waits for compute",
        "copy on copies",
        "micro-batch on compute",
        "compute waits for copies",
        "optimizer step on compute",
    ]


def test_a_restored_optimizer_and_its_parameters_are_the_old_ones_to_the_bit() -> None:
    parameter, pages = torch.nn.Parameter(torch.linspace(-1, 1, 5)), Pages(torch.device("cpu"))
    optimizer = torch.optim.AdamW([parameter], lr=0.1)
    for taken in range(2):
        before = parameter.detach().clone()
        state = {name: value.clone() for name, value in optimizer.state.get(parameter, {}).items()}
        snapshot = Snapshot.of(optimizer, pages)
        pages.wait()
        parameter.grad = torch.ones(5)
        optimizer.step()
        assert (parameter != before).all()
        snapshot.restore()
        assert (parameter == before).all()
        assert optimizer.state.get(parameter, {}).keys() == state.keys() and bool(state) == (taken > 0)
        assert all((optimizer.state[parameter][name] == value).all() for name, value in state.items())
        optimizer.step()
