"""The checks of `make check` that read the code without running it; `make test` runs them through these tests."""

import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = Path(sysconfig.get_path("scripts"))
pytestmark = pytest.mark.slow


CHECKS = [
    ["ruff", "check", "."],
    ["ruff", "format", "--check", "."],
    ["lint-imports"],
    ["pyrefly", "check", "--python-interpreter-path", sys.executable],
]


@pytest.mark.parametrize("words", CHECKS, ids=lambda words: " ".join(words[:2]))
def test_the_code_passes_static_checks(words: list[str]) -> None:
    program, *arguments = words
    done = subprocess.run(
        [SCRIPTS / program, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_modules_import_one_another_in_a_circle_not_even_for_types_alone() -> None:
    graph = grimp.build_graph("squelch", cache_dir=None)
    left = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    while free := {module for module, imported in left.items() if not imported & left.keys()}:
        left = {module: imported for module, imported in left.items() if module not in free}
    assert not left, "these modules, or modules that they import, import one another"


def test_no_pattern_repeats_a_group_possessively() -> None:
    """Python before 3.11.5, which Debian 12 has, matches them wrongly: an atomic group around does the same."""
    possessive = re.compile(r"\)(?:[+*?]|\{+\d+(?:,\d*)?\}+)\+")
    assert possessive.search(r"(?:ab)++") and possessive.search("(?:ab){{1,8}}+") and not possessive.search(r"(?>a+)+")
    names = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [ROOT / name for name in names.stdout.split() if name != str(Path(__file__).relative_to(ROOT))]
    lines = [(file, line) for file in files for line in file.read_text().splitlines() if possessive.search(line)]
    assert not lines


def test_every_test_that_is_listed_as_slow_exists() -> None:
    listed = [line.split("::") for line in (ROOT / "tests/slow.txt").read_text().split()]
    missing = [
        line for line in listed if not re.search(rf"^ *(async )?def {line[-1]}\(", (ROOT / line[0]).read_text(), re.M)
    ]
    assert not missing and listed == sorted(listed)


def test_no_module_is_named_by_its_rooms_bare_name_in_a_string() -> None:
    """The linter bans the imports; a string that names a package for its files or its import it does not see."""
    named = re.compile(
        r"""\b(files|import_module|find_spec|PackageLoader)\(f?["'](actors|cluster|deploy|envs|learner)\b"""
    )
    names = subprocess.run(["git", "ls-files", "*.py"], cwd=ROOT, capture_output=True, text=True, check=True)
    files = [ROOT / name for name in names.stdout.split()]
    assert not [(file, line) for file in files for line in file.read_text().splitlines() if named.search(line)]
