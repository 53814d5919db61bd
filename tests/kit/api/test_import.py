"""`import squelch` loads nothing, each part of the API only what it needs, and names that go are announced."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import squelch

HEAVY = frozenset({"accelerate", "gymnasium", "matplotlib", "ray", "torch", "transformers", "vllm"})
ROOMS = ("actors", "cluster", "deploy", "envs", "kit", "learner", "trl")


def loaded(code: str) -> set[str]:
    """The modules of a new process that ran this code."""
    words = [sys.executable, "-c", f"import sys; {code}; print(*sys.modules)"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=180, check=True)
    return set(done.stdout.splitlines()[-1].split())


def test_import_squelch_loads_no_room_and_no_package_but_the_standard_librarys() -> None:
    found = loaded("import squelch; dir(squelch); squelch.__version__")
    assert not {f"squelch.{room}" for room in ROOMS} & found
    assert not {"numpy", "pyarrow", "pydantic", *HEAVY} & found


@pytest.mark.parametrize(
    "code",
    [
        "squelch.filter([[0, 1], [1, 1]])",
        "squelch.mi([[[-1.0, -3.0]], [[-3.0, -1.0]]], [[1], [1]])",
        "(squelch.score, squelch.Monitor)",
    ],
)
def test_what_needs_no_model_loads_neither_torch_nor_ray(code: str) -> None:
    assert not HEAVY & loaded(f"import squelch; {code}")


def test_every_public_name_exists_and_says_what_it_is() -> None:
    for name in squelch.__all__:
        assert getattr(squelch, name).__doc__ and name in dir(squelch)
    with pytest.raises(AttributeError, match=r"no attribute 'filters'; public are CheckResult, EmaState, .*score"):
        squelch.filters  # noqa: B018


def test_the_version_is_that_of_the_distribution() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert squelch.__version__ == project["version"]


def test_a_name_that_will_be_removed_works_and_names_its_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(squelch.DEPRECATED, "keep_groups", squelch.Deprecated("filter", "0.3"))
    with pytest.warns(DeprecationWarning, match=r"squelch.keep_groups will be removed in squelch-rl 0.3; use"):
        assert squelch.keep_groups is squelch.filter


def test_every_announced_removal_has_a_public_successor() -> None:
    assert all(one.successor in squelch.__all__ for one in squelch.DEPRECATED.values())
