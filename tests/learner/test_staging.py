"""What ranks on other disks write ends up on the driver's disk, whole or not at all."""

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from squelch.kit.base.disk import partial_path
from squelch.learner import staging
from squelch.learner.staging import Staging, sees


class Hosts:
    """Ranks whose hosts are folders: each sees its own host's cache, and the driver's disk if its host is `driver`."""

    def __init__(self, base: Path, *hosts: str) -> None:
        self.base, self.hosts = base, hosts
        self.damage = self.breaks = False
        self.sealing = base
        """The path of rank 0, which seals it."""

    def each(self, method: str, timeout_s: float, arguments: Sequence[tuple[Any, ...]]) -> list[Any]:
        return [self.ask(rank, method, timeout_s, *own) for rank, own in enumerate(arguments)]

    def ask(self, rank: int, method: str, timeout_s: float, *arguments: Any) -> Any:
        os.environ["SQUELCH_CACHE"] = str(self.base / self.hosts[rank])
        calls = {"sees": self._sees, "save": self._save, "read_staged": self._read}
        if method in calls:
            return calls[method](rank, *arguments)
        names = {"stage": "create", "staged": "entries", "unstage": "remove"}
        return getattr(Staging(arguments[0]), names[method])()

    def notify(self, method: str, *arguments: Any) -> None:
        for rank in range(len(self.hosts)):
            self.ask(rank, method, 1.0, *arguments)

    def _sees(self, rank: int, folder: str, token: str) -> bool:
        return self.hosts[rank] == "driver" and sees(Path(folder), token)

    def _read(self, rank: int, token: str, name: str, number: int) -> bytes:
        return b"damaged" if self.damage else Staging(token).read(name, number)

    def _save(self, rank: int, path: str, step: int) -> None:
        """As a checkpoint is written: each rank its shard, the last call seals what rank 0 has on its disk."""
        shard = partial_path(Path(path)) / "sharded" / f"{rank}.bin"
        shard.parent.mkdir(parents=True, exist_ok=True)
        shard.write_text(f"step {step} of rank {rank}")
        if rank == 0:
            self.sealing = Path(path)
        if rank == len(self.hosts) - 1:
            if self.breaks:
                raise ValueError("no space left")
            sealed = partial_path(self.sealing)
            (sealed / "loop.json").write_text(str(step))
            shutil.rmtree(self.sealing, ignore_errors=True)
            sealed.rename(self.sealing)


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUELCH_CACHE", "")


def written(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): p.read_text() for p in sorted(folder.rglob("*")) if p.is_file()}


WHOLE = {"loop.json": "7", "sharded/0.bin": "step 7 of rank 0", "sharded/1.bin": "step 7 of rank 1"}


@pytest.mark.parametrize(
    "hosts", [("driver", "driver"), ("driver", "b"), ("a", "driver"), ("a", "b"), ("a", "a")], ids="-".join
)
def test_every_rank_s_files_reach_the_driver_wherever_they_are_written(tmp_path, hosts):
    ranks, path = Hosts(tmp_path, *hosts), tmp_path / "run" / "checkpoints" / "step-7"
    for step in (6, 7):  # the second replaces the first
        staging.write(ranks, hosts, path, "save", 5.0, step)
    assert written(tmp_path / "run" / "checkpoints") == {f"step-7/{name}": text for name, text in WHOLE.items()}
    assert not [left for host in ("a", "b") for left in (tmp_path / host / "staging").glob("*/*")]


@pytest.mark.parametrize("fault", ["damage", "breaks"])
def test_a_write_that_fails_leaves_the_older_folder_and_nothing_else(tmp_path, fault):
    ranks, path = Hosts(tmp_path, "driver", "b"), tmp_path / "run" / "step-7"
    staging.write(ranks, ranks.hosts, path, "save", 5.0, 7)
    setattr(ranks, fault, True)
    with pytest.raises(ValueError, match=r"arrived damaged|no space left"):
        staging.write(ranks, ranks.hosts, path, "save", 5.0, 8)
    assert written(tmp_path / "run") == {f"step-7/{name}": text for name, text in WHOLE.items()}
    assert not list((tmp_path / "b" / "staging").glob("*/*"))


def test_a_disk_of_the_driver_that_refuses_is_named(tmp_path):
    (tmp_path / "run").touch()
    with pytest.raises(ValueError, match=r"run/step-7 could not be written: "):
        staging.write(Hosts(tmp_path, "a"), ["a"], tmp_path / "run" / "step-7", "save", 5.0, 7)


def test_a_late_rank_stays_a_late_rank(tmp_path, monkeypatch):
    ranks = Hosts(tmp_path, "a")

    def late(rank: int, *arguments: Any) -> None:
        raise TimeoutError("learner rank 0 did not finish save within 5 s")

    monkeypatch.setattr(ranks, "_save", late)
    with pytest.raises(TimeoutError, match="rank 0 did not finish save"):
        staging.write(ranks, ["a"], tmp_path / "run" / "step-7", "save", 5.0, 7)


def test_what_a_killed_rank_left_is_removed_by_the_next_write_of_its_run_only(tmp_path, monkeypatch):
    ranks, path, other = Hosts(tmp_path, "a", "b"), tmp_path / "run" / "step-7", tmp_path / "other" / "step-7"
    monkeypatch.setattr(ranks, "notify", lambda *_: None)  # the ranks died: nobody removes what they have staged
    for place in (path, other, path):
        staging.write(ranks, ranks.hosts, place, "save", 5.0, 7)
    assert [len(list((tmp_path / host / "staging").iterdir())) for host in ("a", "b")] == [2, 2]
