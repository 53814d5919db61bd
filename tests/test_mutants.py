"""Mutants: which changes are made of a text, that they are drawn alike, and what is known is not tried again."""

import ast
import json
from pathlib import Path

import pytest

from tests import mutants
from tests.mutants import OPERATORS, ROOMS, changed, changes_of, drawn

TEXT = '''"""Words 1 + 2."""
if TYPE_CHECKING:
    from a import b

def f(x: int = 3, y: "1 + 1" = None) -> "2 < 3":
    """No 4 + 5."""
    if x < 10 and not y:
        return max(x - 1, -x)
    return f"{x + 1}" if x is None else "é" + str(x)
'''


def test_the_code_that_runs_is_changed_and_no_words_or_annotations() -> None:
    found = [(change.before, change.after, change.function) for change in changes_of("f.py", TEXT)]
    assert found == [
        ("3", "4", "f"),
        ("x < 10", "x <= 10", "f"),
        ("x < 10 and not y", "x < 10 or not y", "f"),
        ("10", "11", "f"),
        ("not y", "y", "f"),
        ("max(x - 1, -x)", "min(x - 1, -x)", "f"),
        ("x - 1", "x + 1", "f"),
        ("1", "2", "f"),
        ("-x", "x", "f"),
        ('f"{x + 1}" if x is None else "é" + str(x)', "'é' + str(x) if x is None else f'{x + 1}'", "f"),
        ("x is None", "x is not None", "f"),
    ]


def test_a_mutant_differs_from_the_text_in_its_change_alone() -> None:
    for change in changes_of("f.py", TEXT):
        mutant = changed(TEXT, change)
        assert ast.dump(ast.parse(mutant)) != ast.dump(ast.parse(TEXT)), change
        data = mutant.encode()
        assert data.startswith(TEXT.encode()[: change.start]) and data.endswith(TEXT.encode()[change.end :])


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_has_mutants_in_many_functions_and_tests_of_its_own(room: str) -> None:
    found = drawn(room, 20, 0)
    assert found == drawn(room, 20, 0) != drawn(room, 20, 1)
    assert len(found) == 20 and len({(one.file, one.function) for one in found}) >= 15
    assert (mutants.ROOT / ROOMS[room][1]).is_dir()


def test_a_mutant_is_tried_once_and_again_after_its_file_has_changed(tmp_path: Path, monkeypatch, capsys) -> None:
    tried, out = [], tmp_path / "out.jsonl"
    monkeypatch.setattr(mutants, "copied", lambda place: None)
    monkeypatch.setattr(mutants, "tried", lambda place, room, change: tried.append(change.says))
    assert len(mutants.run(["filter"], 3, 0, out)) == 3 and len(tried) == 3
    assert mutants.main(["filter", "--each", "3", "--out", str(out)]) == 1 and len(tried) == 3
    assert capsys.readouterr().out.count("SURVIVES") == 6
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    out.write_text("".join(json.dumps(row | {"key": "old " + row["key"]}) + "\n" for row in rows))
    mutants.run(["filter"], 3, 0, out)
    assert len(tried) == 6


def test_what_fails_in_a_copy_is_named_and_what_passes_is_not(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_good(): pass\ndef test_bad(): assert False\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\nmarkers =\n    ray: r\n    slow: s\n")
    assert mutants.noticed_by(tmp_path, ["test_a.py"]) == "FAILED test_a.py::test_bad"
    assert mutants.noticed_by(tmp_path, ["test_a.py::test_good"]) is None and mutants.noticed_by(tmp_path, []) is None


def test_every_operator_has_another() -> None:
    assert all(OPERATORS[one] is not one for one in OPERATORS)
