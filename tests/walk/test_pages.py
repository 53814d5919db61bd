"""A page's blocks and marks, and what is refused."""

import pytest

from docs.writers import never_run
from squelch.cluster.cli import COMMANDS
from tests.walk.commands import bound, commands
from tests.walk.pages import PageFault, read_page
from tests.walk.places import ROOT
from tests.walk.presumed import STARTED, TABLE

FENCED = {
    path.relative_to(ROOT).as_posix(): path.read_text()
    for path in (ROOT / "README.md", *sorted((ROOT / "docs" / "guide").glob("*.md")))
    if "```" in path.read_text()
}
MOST_NOT_RUN = 25
MODE = "# Title\n<!-- walk: wheel -->\n\n"


def page(*lines: str):
    return read_page("page.md", MODE + "\n".join(lines) + "\n")


def test_blocks_have_the_line_of_their_content_and_lose_a_lists_indent() -> None:
    found = page("- item:", "", "  ```python", "  if True:", "      run()", "  ```", "```", "squelch status", "```")
    assert [(block.line, block.kind) for block in found.blocks] == [(7, "python"), (11, "commands")]
    assert found.blocks[0].text == "if True:\n    run()\n"


def test_marks_belong_to_the_next_block() -> None:
    found = page(
        "<!-- walk: presumes out merged -->",
        "<!-- walk: exit 143 -->",
        "<!-- walk: not run: GPU: make setup KIND -->",
        "<!-- walk: not run: hours: make test -->",
        "```bash",
        "x",
        "```",
        "<!-- file: a.json -->",
        "```json",
        "{}",
        "```",
    )
    commanded, file = found.blocks
    assert (commanded.presumes, commanded.exit_code) == (("out", "merged"), 143)
    assert commanded.not_run == {"make setup KIND": "GPU", "make test": "hours"}
    assert (file.kind, file.file, file.presumes) == ("file", "a.json", ())


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["```", "a figure", "```"], "5: neither a command nor marked"),
        (["```json", "{}", "```"], "json needs the mark of its file"),
        (["<!-- walk: not run: too slow -->", "```bash", "x", "```"], "'too slow' is no reason"),
        (["<!-- walk: exit 2 -->"], "no block follows the mark"),
        (["<!-- walk: soon -->", "```bash", "x", "```"], "knows no mark 'soon'"),
        (["```bash", "x"], "does not end"),
        (["<!-- walk: checkout -->"], "one mark of the page's mode"),
    ],
)
def test_a_page_that_says_too_little_is_refused_with_the_line(lines: list[str], said: str) -> None:
    with pytest.raises(PageFault, match=said):
        page(*lines)


@pytest.mark.parametrize("name", FENCED)
def test_every_page_with_a_block_can_be_walked_and_presumes_only_what_the_table_has(name: str) -> None:
    for block in read_page(name, FENCED[name]).blocks:
        assert set(block.presumes) <= {*TABLE, *STARTED, "prompts"}
        assert block.kind != "commands" or commands(block.text)


def test_few_blocks_are_not_run_and_a_command_of_squelch_only_for_a_gpu_a_cluster_or_a_download() -> None:
    blocks = [block for name, text in FENCED.items() for block in read_page(name, text).blocks if block.not_run]
    assert 0 < len(blocks) <= MOST_NOT_RUN
    for block in blocks:
        of_squelch = [text for _, text in commands(block.text) if any(f"squelch {one}" in text for one in COMMANDS)]
        hours = [start for start, reason in block.not_run.items() if reason == "hours"]
        assert not any(text.startswith(start) for text in of_squelch for start in hours)


def test_a_block_that_another_page_walks_has_commands_of_that_page() -> None:
    blocks = [block for name, text in FENCED.items() for block in read_page(name, text).blocks if block.same_as]
    assert blocks
    for block in blocks:
        other = read_page(block.same_as, FENCED[block.same_as])
        files = {one.file for one in other.blocks if one.file}
        theirs = [text for one in other.blocks if one.kind == "commands" for _, text in commands(one.text)]
        for _, text in commands(block.text):
            assert {bound(text, {"FILE": file})[0] for file in files} & set(theirs)


def test_the_results_list_the_commands_that_are_never_run() -> None:
    page = never_run.PAGE.read_text()
    assert never_run.with_counts(page) == page, "run `python -m docs.writers.never_run`"
    assert never_run.listed() == never_run.DATA.read_text(), "run `python -m docs.writers.never_run`"
