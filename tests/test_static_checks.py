"""The checks of `make check` that read the code without running it; `make test` runs them through these tests."""

import ast
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import grimp
import pytest

from tests.tracked import tracked

ROOT = Path(__file__).parents[1]
SCRIPTS = Path(sysconfig.get_path("scripts"))
pytestmark = pytest.mark.slow
CLOCK = re.compile(r"\btime\.(monotonic|perf_counter|time)\(\)")

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
    files = [ROOT / path for path in tracked() if path.suffix == ".py" and ROOT / path != Path(__file__)]
    lines = [(file, line) for file in files for line in file.read_text().splitlines() if possessive.search(line)]
    assert not lines


def test_no_test_asserts_how_long_something_took() -> None:
    """It would hold on a quiet machine only: the work itself waits for longer than a test may take, or for ever, if the
    code does what it must not. Of real runs the guide says how soon a fault is named, with much room."""

    def is_a_time(node: ast.AST) -> bool:
        return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub) and bool(CLOCK.search(ast.unparse(node)))

    files = [path for path in tracked() if path.match("test_*.py") and path.parts[:2] != ("tests", "e2e")]
    asserts = (
        (path, node)
        for path in files
        for node in ast.walk(ast.parse((ROOT / path).read_text(encoding="utf-8")))
        if isinstance(node, ast.Assert)
    )
    assert [(path, node.lineno) for path, node in asserts if any(map(is_a_time, ast.walk(node.test)))] == []


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
    files = [ROOT / path for path in tracked() if path.suffix == ".py"]
    assert not [(file, line) for file in files for line in file.read_text().splitlines() if named.search(line)]
