"""What a list of groups says of each: the prompt's first words, the expected answer and a completion."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from squelch.cluster.inspector.groups import GroupIndex, Query
from squelch.cluster.inspector.previews import MOST_CHARACTERS, Preview, Previews
from squelch.cluster.inspector.texts import Pieces
from squelch.cluster.runs.folder import RunFolder
from squelch.envs.prompt_file.rows import open_prompts
from squelch.kit.archive.writer import Archive
from squelch.kit.records.records import Group, Task
from tests.cluster.inspector.small_run import HOSTILE, group, small_run, tokenizer, trajectory, write_step

Opener = Callable[[Path], TestClient]
PIECES = Pieces(tokenizer().encode(), "here")


def asked(folder: Path, data: Path, rows: list[dict[str, str]]) -> Path:
    """A run of `Prompts` over a file with these rows; a group for each training prompt."""
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    small_run(folder, 0)
    (folder / "config.yaml").write_text(f"environment: {{name: Prompts, options: {{data: {json.dumps(str(data))}}}}}\n")
    prompts, archive = open_prompts(str(data), "prompt", "train"), Archive(folder)
    plain = [group(1, seed, (0.0, 1.0)) for seed in range(2)]
    made = [_about(one, prompts.of(seed).key, str(prompts.of(seed).given)) for seed, one in enumerate(plain)]
    write_step(archive, 1, made)
    archive.close()
    return folder


def _about(one: Group, key: str, prompt: str) -> Group:
    ticket = replace(one.ticket, task=Task("Prompts", seed=one.ticket.task.seed))
    members = [trajectory(index, float(index), "I think", prompt, failed=index == 0) for index in range(2)]
    return replace(one, ticket=ticket, task_key=key, trajectories=members)


def previews_of(folder: Path, **settings: object) -> dict[str, Preview]:
    index = GroupIndex(RunFolder(folder).store)
    index.refresh()
    return Previews(RunFolder(folder), **settings).of(index.select(Query()).page(), PIECES)  # type: ignore[arg-type]


ROWS = [{"prompt": f"How much is {n} + {n}?  {HOSTILE}", "answer": str(2 * n)} for n in range(40)]


def test_a_group_says_prompt_expected_answer_and_completion(tmp_path: Path, open_run: Opener) -> None:
    folder = asked(tmp_path / "run", tmp_path / "rows.jsonl", ROWS)
    found = previews_of(folder)
    assert len(found) == 2
    for one in found.values():
        number = int(one.prompt.split()[3])
        assert (one.expected, one.completion) == (str(2 * number), "Up"), "of the trajectory that did not fail"
        assert (
            one.prompt.startswith(f"How much is {number} + {number}? <script>") and len(one.prompt) <= MOST_CHARACTERS
        )
    for path, count in (("/groups", 2), ("/search?text=think", 4)):
        text = open_run(folder).get(path).text
        assert text.count('<span class="dim">expected</span>') == count and "<script>window" not in text
        assert "\\u202e" in text and "\u202e" not in text


@pytest.mark.parametrize("change", ["gone", "other rows", "a folder", "no file"])
def test_an_answer_is_shown_only_from_the_file_that_has_the_groups_own_prompt(tmp_path: Path, change: str) -> None:
    data = tmp_path / "rows.jsonl"
    folder = asked(tmp_path / "run", data, ROWS)
    named: object = str(data)
    if change == "gone":
        data.unlink()
    elif change == "other rows":
        named = str(tmp_path / "secret.jsonl")
        Path(str(named)).write_text(
            "".join(json.dumps({"prompt": f"p{n}", "answer": "secret"}) + "\n" for n in range(40))
        )
    elif change == "a folder":
        named = str(tmp_path)
    else:
        named = {"a": 1}
    settings = {"environment": {"name": "Prompts", "options": {"data": named}}}
    (folder / "config.yaml").write_text(json.dumps(settings))
    found = previews_of(folder)
    assert len(found) == 2 and not any(one.expected for one in found.values())
    assert all(one.prompt and one.completion == "Up" for one in found.values())


def test_groups_without_a_preview_yet_are_asked_for_again_until_all_have_one(tmp_path: Path) -> None:
    folder, ticks = small_run(tmp_path / "run", 3), iter([0.0, 0.0, 9.0, 20.0, 20.0, 20.1])
    index = GroupIndex(RunFolder(folder).store)
    index.refresh()
    rows, previews = index.select(Query()).page(), Previews(RunFolder(folder), lambda: next(ticks))
    assert {name[:6] for name in previews.of(rows, PIECES)} == {"000003"}
    assert len(previews.of(rows, PIECES)) == 12


def test_a_damaged_part_leaves_its_groups_without_words_and_the_list_whole(tmp_path: Path, open_run: Opener) -> None:
    folder = small_run(tmp_path / "run", 2)
    browser = open_run(folder)
    (folder / "groups" / "step-000001.parquet").write_bytes(b"PAR1 half a part")
    text = browser.get("/groups").text
    assert text.count('<span class="dim">wrote</span>') == 4 and text.count("<tr data-row") == 8
    assert 'hx-trigger="load' not in text, "nothing is asked for again"
