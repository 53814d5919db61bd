"""Which back end is chosen for whom: root or an ordinary user, with and without user namespaces and control groups.

Every row runs in a process of its own for which the conditions are real (`conditions.py`). docs/guide/sandbox.md shows
the rows. Not tried: version 2 of control groups with a delegated memory controller, AppArmor's and SELinux's
restrictions, a bwrap with root's rights (setuid), and other kernels.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from squelch.envs.sandbox import Pool
from tests.envs.sandbox import conditions

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root can make these conditions, and become another user"),
]
ROOT = Path(__file__).resolve().parents[3]
TOTAL = "a bound on the memory of all processes together"


@pytest.fixture(scope="module")
def folders() -> Iterator[dict[str, Path]]:
    """TMPDIR for root, of mode 0700, and for the ordinary user; the code where that user can read it."""
    with tempfile.TemporaryDirectory(prefix="squelch-test-") as made:
        found = {name: Path(made, name) for name in ("closed", "user", "code")}
        Path(made).chmod(0o755)
        found["closed"].mkdir(mode=0o700)
        found["user"].mkdir(mode=0o700)
        os.chown(found["user"], conditions.USER, conditions.USER)
        package = found["code"] / "squelch"
        shutil.copytree(ROOT / "squelch" / "envs", package / "envs", ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(ROOT / "squelch" / "__init__.py", package)
        shutil.copy(conditions.__file__, found["code"])
        yield found


def under(folders: dict[str, Path], *names: str, tmpdir: str | None = None) -> dict[str, Any]:
    """The outcome under these conditions."""
    place = {"TMPDIR": str(folders[tmpdir])} if tmpdir else {}
    script = folders["code"] / "conditions.py"
    done = subprocess.run(
        [sys.executable, "-B", str(script), *names],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": str(folders["code"]), **place},
        cwd=folders["code"],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_roots_programs_run_as_nobody(pool: Pool, folders: dict[str, Path]) -> None:
    found = under(folders)
    assert (found["backend"], found["identity"]) == (pool.backend.name, "nobody (65534)")
    assert found["uid_inside"] == 65534 and found["missing"] == list(pool.missing)


def test_roots_image_leaves_a_folder_that_nobody_cannot_enter(folders: dict[str, Path]) -> None:
    found = under(folders, tmpdir="closed")
    assert found["identity"] == "nobody (65534)" and found["image"] in ("/var/tmp", "/run")
    assert list(folders["closed"].iterdir()) == []


def test_roots_programs_are_refused_where_nobody_can_enter_no_folder(folders: dict[str, Path]) -> None:
    refused = under(folders, "closed_folders", tmpdir="closed")["refused"]
    for folder in (folders["closed"], "/var/tmp", "/run"):
        assert f"{folder}: nobody (65534), who runs the programs, cannot enter it" in refused


def test_without_control_groups_the_missing_bound_is_said(folders: dict[str, Path]) -> None:
    found = under(folders, "no_cgroups")
    assert found["identity"] == "nobody (65534)" and any(TOTAL in lack for lack in found["missing"])


def test_without_user_namespaces_nothing_runs_not_even_for_root(folders: dict[str, Path]) -> None:
    refused = under(folders, "no_user_namespaces")["refused"]
    assert "namespaces as nobody (65534): " in refused and "Operation not permitted" in refused
    assert "bubblewrap as nobody (65534): " in refused and "this user (0)" not in refused


def test_what_is_unsafe_does_not_run_as_root_either(folders: dict[str, Path]) -> None:
    found = under(folders, "no_user_namespaces", "unsafe")
    assert (found["backend"], found["uid_inside"]) == ("rlimits", 65534)


def test_host_root_by_another_number_is_refused(folders: dict[str, Path]) -> None:
    refused = under(folders, "root_by_another_number")["refused"]
    assert "as nobody (65534)" in refused and "as this user" not in refused


def test_an_ordinary_users_programs_run_as_that_user_outside(pool: Pool, folders: dict[str, Path]) -> None:
    found = under(folders, "plain_user", "proved", tmpdir="user")
    assert (found["backend"], found["identity"]) == (pool.backend.name, "this user (12345)")
    assert found["uid_inside"] == 65534 and any(TOTAL in lack for lack in found["missing"])
    assert found["broken"] == []


def test_an_ordinary_user_without_user_namespaces_is_refused(folders: dict[str, Path]) -> None:
    found = under(folders, "plain_user", "no_user_namespaces", tmpdir="user")
    assert "namespaces as this user (12345): " in found["refused"]


def test_an_ordinary_users_unsafe_programs_are_that_user(folders: dict[str, Path]) -> None:
    found = under(folders, "plain_user", "no_user_namespaces", "unsafe", tmpdir="user")
    assert (found["backend"], found["uid_inside"]) == ("rlimits", 12345)


def test_root_of_an_ordinary_users_container_runs_programs_as_that_user(pool: Pool, folders: dict[str, Path]) -> None:
    found = under(folders, "plain_user", "container_root", tmpdir="user")
    assert (found["backend"], found["identity"]) == (pool.backend.name, "this user (0)")
    assert found["uid_inside"] == 65534
