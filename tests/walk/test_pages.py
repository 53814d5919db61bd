"""A page's blocks and marks, and what is refused."""

import pytest

from docs.writers import never_run
from squelch.cluster.cli import COMMANDS
from tests.walk.__main__ import GUIDE, IN_CI
from tests.walk.commands import commands
from tests.walk.pages import PageFault, read_page
from tests.walk.places import ROOT
from tests.walk.presumed import TABLE

WALKED = [*(f"{GUIDE}{name}.md" for name in (*IN_CI, "long-runs")), "README.md"]
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


@pytest.mark.parametrize("name", WALKED)
def test_every_page_of_cis_walk_can_be_read_and_presumes_only_what_the_table_has(name: str) -> None:
    found = read_page(name, (ROOT / name).read_text())
    for block in found.blocks:
        assert set(block.presumes) <= {*TABLE, "prompts"}
        assert block.kind != "commands" or commands(block.text)


def test_a_command_of_squelch_is_left_out_only_for_a_gpu_a_cluster_or_a_download() -> None:
    left_out = [
        (name, text)
        for name in WALKED
        for block in read_page(name, (ROOT / name).read_text()).blocks
        if block.kind == "commands"
        for _, text in commands(block.text)
        for start, reason in block.not_run.items()
        if text.startswith(start) and reason == "hours" and any(f"squelch {one}" in text for one in COMMANDS)
    ]
    assert left_out == []


def test_the_results_list_the_commands_that_are_never_run() -> None:
    page = never_run.PAGE.read_text()
    assert never_run.with_list(page) == page, "run `python -m docs.writers.never_run`"
