"""No code of the product reads a pickle, or could be made to by a file. `ruff` (S301) and `lint-imports` see the
direct ways; here are those that they do not see."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROOMS = ("actors", "cluster", "deploy", "envs", "learner")
FORBIDDEN = {
    "it unpickles": r"torch\.load|jit\.load",
    "its reader unpickles": r"^\s*(from|import) torch\.distributed\.checkpoint",
    "arrays of objects are pickles": r"allow_pickle\s*=\s*True|np\.load\((?![^\n]*allow_pickle=False)",
    "the ranks would exchange pickles": r"(broadcast|scatter|gather|send|recv)_object",
    "any class can be built": r"yaml\.(unsafe_load|full_load|UnsafeLoader|FullLoader|Loader)\b",
}


@pytest.mark.parametrize(("why", "pattern"), FORBIDDEN.items())
def test_no_reader_can_be_made_to_unpickle(why: str, pattern: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for room in ROOMS
        for path in (ROOT / "squelch" / room).rglob("*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if re.search(pattern, line)
    ]
    assert found == [], why
