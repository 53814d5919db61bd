"""How a run ends that meets an error on the way: one paragraph for the user, and no trace of a fault of ours lost."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray.exceptions import RayTaskError

from actors.archive import ArchiveError
from cluster import run
from cluster.config import load
from cluster.errors import UserError


def ending(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: Exception) -> Callable[[], int]:
    """`train` of a run whose loop raises the error; nothing is started."""

    async def fail(*_: object) -> int:
        raise error

    for name in ("check_address", "connect", "disconnect", "_check_scorer"):
        monkeypatch.setattr(run, name, lambda *_: None)
    monkeypatch.setattr(run, "prepare_model", lambda *_: tmp_path)
    monkeypatch.setattr(run, "_open_recorder", lambda _: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(run, "_train", fail)
    config = load("frozenlake", [f"runs_dir={tmp_path}", "name=it"])
    return lambda: run.train(config, False, lambda _: None)


def test_a_value_error_that_may_be_ours_is_one_paragraph_that_says_where_its_trace_is(monkeypatch, tmp_path) -> None:
    train = ending(monkeypatch, tmp_path, ValueError("operands could not be broadcast\n  together"))
    with pytest.raises(UserError) as ended:
        train()
    kept = tmp_path / "it" / "failure.log"
    assert str(ended.value) == f"operands could not be broadcast together (trace: {kept})"
    assert "in fail\n    raise error" in kept.read_text()


def test_the_trace_of_another_process_is_kept_and_its_last_word_said(monkeypatch, tmp_path) -> None:
    remote = RayTaskError("step", "Traceback:\n  File 'far.py', line 7", ValueError("too wide")).as_instanceof_cause()
    train = ending(monkeypatch, tmp_path, remote)
    with pytest.raises(UserError, match=r"^too wide \(trace: .*failure\.log\)$"):
        train()
    assert "File 'far.py', line 7" in (tmp_path / "it" / "failure.log").read_text()


@pytest.mark.parametrize("error", [UserError("filter: no"), ArchiveError("no space is left")])
def test_what_is_surely_the_users_is_said_as_it_is_and_leaves_no_trace(monkeypatch, tmp_path, error) -> None:
    with pytest.raises(UserError, match=f"^{error}$"):
        ending(monkeypatch, tmp_path, error)()
    assert not (tmp_path / "it" / "failure.log").exists()


def test_a_trace_that_cannot_be_written_hides_nothing(monkeypatch, tmp_path) -> None:
    (tmp_path / "it" / "failure.log").mkdir(parents=True)
    with pytest.raises(UserError, match=r"^too wide \(its trace cannot be written to .*: Is a directory\)$"):
        ending(monkeypatch, tmp_path, ValueError("too wide"))()
