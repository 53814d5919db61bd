"""The folder of compiled code belongs to this user alone."""

import os
from pathlib import Path

import pytest

from squelch.kit.process.compile_cache import VARIABLE, own_compile_cache


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr("platformdirs.user_cache_path", lambda name: tmp_path / name)
    return tmp_path


def test_the_folder_is_the_users_and_exists(home: Path) -> None:
    assert own_compile_cache() == {VARIABLE: str(home / "squelch" / "compiled")}
    assert (home / "squelch" / "compiled").stat().st_mode & 0o777 == 0o700


def test_a_folder_that_the_user_named_is_kept(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    monkeypatch.setenv(VARIABLE, str(home / "mine"))
    assert own_compile_cache() == {}


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_can_write_is_not_used(monkeypatch: pytest.MonkeyPatch, home: Path, mode: int) -> None:
    taken = home / "torchinductor_me"
    taken.mkdir()
    taken.chmod(mode)
    monkeypatch.setenv(VARIABLE, str(taken))
    assert own_compile_cache() == {VARIABLE: str(home / "squelch" / "compiled")}
    (home / "squelch" / "compiled").chmod(mode)
    with pytest.raises(RuntimeError, match="can be written by one"):
        own_compile_cache()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_not_used(monkeypatch: pytest.MonkeyPatch, home: Path) -> None:
    taken = home / "torchinductor_me"
    taken.mkdir(mode=0o755)
    os.chown(taken, 65534, 65534)
    monkeypatch.setenv(VARIABLE, str(taken))
    assert own_compile_cache() == {VARIABLE: str(home / "squelch" / "compiled")}
