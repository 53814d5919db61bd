"""What must hold of the memory that a process may still take."""

from pathlib import Path

import psutil
import pytest

from squelch.actors.process import free_memory

LIMITS = [("memory.max", "memory.current", "inactive_file", "max")]
LIMITS += [("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file", str(2**63 - 4096))]


def make_group(folder: Path, names: tuple[str, str, str], limit: str, used: int, idle: int) -> None:
    """A control group's files, as the kernel shows them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / names[0]).write_text(f"{limit}\n")
    (folder / names[1]).write_text(f"{used}\n")
    (folder / "memory.stat").write_text(f"anon 1\n{names[2]} {idle}\n")


@pytest.mark.parametrize(("limit_file", "used_file", "idle", "unlimited"), LIMITS)
def test_the_tightest_limit_of_the_group_and_those_above_it_counts(
    limit_file: str, used_file: str, idle: str, unlimited: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = (limit_file, used_file, idle)
    monkeypatch.setattr(free_memory, "MOUNT", tmp_path)
    monkeypatch.setattr(free_memory, "own_group", lambda: (tmp_path / "pod" / "one", limit_file, ""))
    make_group(tmp_path / "pod" / "one", names, unlimited, 700, 0)
    assert free_memory.free_memory() == pytest.approx(psutil.virtual_memory().available, rel=0.2)
    make_group(tmp_path / "pod", names, "1000", 900, 300)
    assert free_memory.free_memory() == 400, "the group above, whose idle pages of files are given back"
    make_group(tmp_path / "pod" / "one", names, "800", 700, 50)
    assert free_memory.free_memory() == 150
    make_group(tmp_path / "pod" / "one", names, "800", 900, 0)
    assert free_memory.free_memory() == 0


def test_without_control_groups_it_is_what_the_host_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(free_memory, "own_group", lambda: (None, "", "none is mounted"))
    assert free_memory.free_memory() == pytest.approx(psutil.virtual_memory().available, rel=0.2)


def test_the_memory_of_this_process_is_at_most_the_hosts() -> None:
    assert 0 < free_memory.free_memory() <= psutil.virtual_memory().total
