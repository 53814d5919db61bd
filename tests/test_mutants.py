"""Mutants: which changes are made of a text, that they are drawn alike, and what is known is not tried again."""

import ast
import json
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pytest

from tests import mutants
from tests.mutants import EQUIVALENT, OPERATORS, ROOMS, Change, changed, changes_of, drawn, files_for, noticed_by, tried

TEXT = '''"""Words 1 + 2."""
if TYPE_CHECKING:
    from a import b

def f(x: int = 3, y: "1 + 1" = None) -> "2 < 3":
    """No 4 + 5."""
    if x < 10 and not y:
        return max(x - 1, -x, *zip(x, y, strict=True))
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
        ("max(x - 1, -x, *zip(x, y, strict=True))", "min(x - 1, -x, *zip(x, y, strict=True))", "f"),
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
    assert all((mutants.ROOT / place).exists() for place in ROOMS[room][1:])


def test_a_mutant_is_tried_until_it_is_noticed_and_again_after_its_file_has_changed(
    tmp_path: Path, monkeypatch, capsys
) -> None:
    tried, out, answers = [], tmp_path / "out.jsonl", iter(["FAILED a", None, "FAILED b", None, "FAILED c"])

    def noticed(place: Path, room: str, change: Change, *_, **__) -> str | None:
        tried.append(change.says)
        return next(answers, None)

    monkeypatch.setattr(mutants, "copied", lambda place: None)
    monkeypatch.setattr(mutants, "IMPORTED", ())
    monkeypatch.setattr(mutants, "entered", lambda place, room, out: {})
    monkeypatch.setattr(mutants, "tried", noticed)
    count, (survivor,) = mutants.run(["filter"], 3, 0, out)
    assert count == len(tried) == 3
    assert mutants.main(["filter", "--each", "3", "--out", str(out)]) == 1 and len(tried) == 4
    assert tried[3] == tried[1]
    said = capsys.readouterr().out
    assert said.count(f"filter SURVIVES {survivor}") == 2 and "1 of 3 mutants survive" in said
    assert mutants.main(["filter", "--each", "3", "--out", str(out)]) == 0 and len(tried) == 5
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    out.write_text("".join(json.dumps(row | {"key": "old " + row["key"]}) + "\n" for row in rows))
    mutants.run(["filter"], 3, 0, out)
    assert len(tried) == 8


def test_a_modules_own_tests_come_first_and_files_that_import_it_last() -> None:
    named, own, others = files_for("control", "squelch/cluster/control/admission.py")
    assert named == ["tests/cluster/control/test_admission.py"] and "tests/cluster/control/test_ledger.py" in own
    assert "tests/cluster/loop/test_several_environments.py" in others and not {*named, *own} & {*others}


@pytest.fixture
def copy(tmp_path: Path, monkeypatch) -> Path:
    """A repository of one module with two tests, and a copy of it, whose path is returned."""
    for place in ("here", "copy"):
        (tmp_path / place / "squelch").mkdir(parents=True)
        (tmp_path / place / "squelch" / "__init__.py").touch()
        (tmp_path / place / "tests").mkdir()
        (tmp_path / place / "squelch" / "one.py").write_text("def one():\n    return 1\n")
        (tmp_path / place / "pytest.ini").write_text("[pytest]\nmarkers =\n    ray: r\n    slow: s\n")
        text = "from squelch.one import one\n\ndef test_good(): pass\n\ndef test_one(): assert one() == 1\n"
        (tmp_path / place / "tests" / "test_one.py").write_text(text)
    monkeypatch.setattr(mutants, "ROOT", tmp_path / "here")
    monkeypatch.setitem(ROOMS, "room", ("squelch", "tests"))
    return tmp_path / "copy"


def _know_the_room(root: Path) -> None:
    mutants.ROOT, ROOMS["room"] = root, ("squelch", "tests")


@pytest.fixture
def apart(copy: Path) -> Iterator[Callable]:
    """Calls a function in a process of its own, as the command does: a fork of a worker of pytest has the libraries
    and locks of every test before it, and may die of them."""
    with ProcessPoolExecutor(1, get_context("spawn"), _know_the_room, (mutants.ROOT,)) as pool:
        yield lambda function, *args: pool.submit(function, *args).result(timeout=120)


ONE = Change("squelch/one.py", 2, "one", 22, 23, "1", "2")


def test_the_copys_code_is_tested_and_the_test_that_notices_a_mutant_is_named(copy: Path, apart) -> None:
    assert apart(noticed_by, copy, ["tests/test_one.py"]) is None and apart(noticed_by, copy, []) is None
    assert apart(tried, copy, "room", ONE) == "FAILED tests/test_one.py::test_one"
    assert apart(noticed_by, copy, ["tests/test_one.py"]) is None, "the mutant is taken back"


def test_a_mutant_that_cannot_be_imported_is_noticed_and_one_that_no_test_meets_survives(copy: Path, apart) -> None:
    assert apart(tried, copy, "room", replace(ONE, after="1 +")) == "ERROR tests/test_one.py"
    (copy / "tests" / "test_one.py").write_text("from squelch.one import one\n\ndef test_good(): pass\n")
    assert apart(tried, copy, "room", ONE) is None


def test_a_test_that_fails_without_the_mutant_too_is_said(copy: Path, apart) -> None:
    (copy / "tests" / "test_one.py").write_text("def test_bad(): assert False\n")
    with pytest.raises(RuntimeError, match=r"without a change: FAILED tests/test_one.py::test_bad"):
        apart(tried, copy, "room", ONE)


def test_what_fails_before_any_test_runs_and_without_the_mutant_too_is_said(copy: Path, apart) -> None:
    (copy / "tests" / "conftest.py").write_text("raise EOFError('cut off')\n")
    with pytest.raises(RuntimeError, match=r"without a change: exit code 4(?s:.*)cut off"):
        apart(tried, copy, "room", ONE)


def test_the_tests_that_enter_a_function_are_found_once_and_run_first(
    copy: Path, apart, tmp_path: Path, monkeypatch
) -> None:
    text = """import pytest, threading
from squelch.one import one

@pytest.fixture(params=[1, 2])
def made(request): return one()

def test_made(made): pass

def test_none(): pass

def test_thread():
    (thread := threading.Thread(target=one)).start()
    thread.join()
"""
    for place in (copy, mutants.ROOT):
        (place / "tests" / "room").mkdir()
        (place / "tests" / "room" / "test_two.py").write_text(text)
    names = ["room/test_two.py::test_made", "room/test_two.py::test_thread", "test_one.py::test_one"]
    found = {"squelch/one.py one": [f"tests/{name}" for name in names]}
    out, ran = tmp_path / "entered.json", list[list[str]]()
    assert apart(mutants.entered, copy, "room", out) == found
    monkeypatch.setattr(mutants, "_test", lambda *_: mutants.os._exit(1))
    assert mutants.entered(copy, "room", out) == found, "read from the file"
    monkeypatch.setattr(mutants, "noticed_by", lambda place, tests, chosen: ran.append(tests))
    assert tried(copy, "room", ONE, found["squelch/one.py one"], slow=False) is None
    first = ["tests/test_one.py::test_one", *found["squelch/one.py one"][:2]]
    assert ran == [first, ["tests/test_one.py", "tests/room/test_two.py", *(f"--deselect={name}" for name in first)]]
    ran.clear()
    assert tried(copy, "room", ONE, slow=False) is None
    assert ran == [["tests/test_one.py"], ["tests/room/test_two.py"]]
    (mutants.ROOT / "tests" / "room" / "test_two.py").unlink()
    assert mutants.entered(copy, "room", out) == {"squelch/one.py one": ["tests/test_one.py::test_one"]}


def test_what_is_said_to_change_nothing_is_a_mutant_that_there_is() -> None:
    files = {mutant.partition(".py")[0] + ".py" for mutant in EQUIVALENT}
    there = {one.says for file in files for one in changes_of(file, (mutants.ROOT / file).read_text(encoding="utf-8"))}
    assert EQUIVALENT.keys() <= there


def test_every_operator_has_another() -> None:
    assert all(OPERATORS[one] is not one for one in OPERATORS)
