"""Generated files that differ from the code are found, named and mended."""

from pathlib import Path

import pytest

from squelch.deploy import generated

TEXTS = {Path("deploy/a.json"): "{}\n", Path("docs/b.md"): "# B\n"}


def test_a_file_that_differs_is_found_named_and_mended(tmp_path: Path) -> None:
    assert generated.write(TEXTS, tmp_path) == list(TEXTS)
    assert generated.stale(TEXTS, tmp_path) == []
    (tmp_path / "docs" / "b.md").write_text("# A\n")
    assert generated.stale(TEXTS, tmp_path) == [Path("docs/b.md")]
    assert generated.write(TEXTS, tmp_path) == [Path("docs/b.md")]
    assert (tmp_path / "docs" / "b.md").read_text() == "# B\n"


def test_check_exits_with_one_and_names_the_file_that_differs(capsys: pytest.CaptureFixture[str]) -> None:
    page = Path("docs/reference/glossary.md")
    as_it_is = {page: (generated.ROOT / page).read_text()}
    assert generated.command("squelch.deploy.some", lambda: as_it_is, ["--check"]) == 0
    assert generated.command("squelch.deploy.some", lambda: {page: "something else"}, ["--check"]) == 1
    assert capsys.readouterr().out == f"differs from the code: {page}\n"
