"""Who programs run as: never root of the host, under whatever number it appears."""

from __future__ import annotations

import os

import pytest

from squelch.envs.sandbox import identity
from squelch.envs.sandbox.identity import NOBODY, Identity, identities, is_host_root, outside_id


@pytest.mark.parametrize(
    ("uid", "uid_map", "outside"),
    [
        (0, "         0          0 4294967295\n", 0),
        (1000, "0 0 4294967295\n", 1000),
        (0, "0 1000 1\n", 1000),
        (1000, "1000 0 1\n", 0),
        (65534, "0 1000 1\n1 100000 65536\n", 165533),
        (7, "0 1000 1\n", None),
    ],
)
def test_a_user_is_looked_up_in_the_namespace_above(uid: int, uid_map: str, outside: int | None) -> None:
    assert outside_id(uid, uid_map) == outside


def test_host_root_is_known_without_proc(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    monkeypatch.setattr(identity, "OWNED_BY_ROOT", tmp_path / "missing")
    assert is_host_root() == (os.geteuid() == 0)


def test_programs_of_host_root_run_as_nobody_or_not_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "is_host_root", lambda: True)
    assert identities() == [Identity(NOBODY)]


def test_root_of_a_user_namespace_prefers_nobody_and_others_stay_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(identity, "is_host_root", lambda: False)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert identities() == [Identity(NOBODY), Identity(None)]
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert identities() == [Identity(None)] and str(Identity(None)) == "this user (1000)"
