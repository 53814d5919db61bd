"""What is kept of a rollout's turns, and of files of evaluations."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from squelch.kit.checks import collected
from squelch.kit.checks.collected import collect
from squelch.kit.checks.run import check
from tests.kit.readers.trainer_files import jsonl

GROUPS, SIZE = 6, 4


def calls() -> Iterator[dict[str, Any]]:
    """Two calls of each rollout, in the format `columns`, which knows no rollouts."""
    for group in range(GROUPS):
        for member in range(SIZE):
            first = f"Problem {group}"
            ids = [9, 10 + group]
            shared = {"prompt_id": f"g{group}", "step": 1, "right": float(member % 2)}
            yield shared | {"turn": 0, "prompt": first, "completion": f"call {member}", "prompt_ids": ids}
            later = f"{first} call {member}"
            yield shared | {"turn": 1, "prompt": later, "completion": "4", "prompt_ids": [*ids, 20 + member, 5]}


def test_a_later_turn_that_stands_alone_is_no_rollout_of_another_prompt(tmp_path: Path) -> None:
    found = check(jsonl(tmp_path / "rows.jsonl", list(calls())))
    assert {one.name: one.verdict for one in found.results}["mixed_groups"] == "sound" and not found.faults


def test_of_turns_in_any_order_the_first_is_the_rollout_and_may_be_sampled(tmp_path: Path) -> None:
    """A conversation's turns come with the one that is scored alone, its last, at their end."""
    said = [("user", "What is 2 and 2?"), ("assistant", "Let me see."), ("user", "Well?"), ("assistant", "It is 4.")]
    rows = [{"messages": [{"role": role, "content": f"{text} {n}"} for role, text in said]} for n in range(3)]
    found = collect(jsonl(tmp_path / "rows.jsonl", rows), prompts=True)
    members = list(found.members)
    assert [one.text for one in members] == [f"It is 4. {n}" for n in range(3)]
    assert [one.prompt in found.prompts for one in members] == [True] * 3 and len(found.sample) == 3


def test_the_prompt_of_a_later_turn_is_not_digested_where_its_group_is_known(tmp_path: Path, monkeypatch) -> None:
    """Together the prompts of a long rollout grow with the square of its turns."""
    digested, digest = [], collected._digest
    monkeypatch.setattr(collected, "_digest", lambda value: digested.append(value) or digest(value))
    collect(jsonl(tmp_path / "rows.jsonl", list(calls())))
    assert {len(one) for one in digested if isinstance(one, list) and isinstance(one[0], int) and one[0] == 9} == {2}


def test_a_file_of_an_evaluation_is_read_once_wherever_it_lies(tmp_path: Path) -> None:
    row = {"idx": 0, "rewards": [1.0], "token_ids": [[1, 2]], "token_loss_mask": [[0, 1]], "input_lengths": [2]}
    empty = {**row, "token_loss_mask": [[0, 0]]}
    for place in (tmp_path / "a", tmp_path / "b" / "logs"):
        jsonl(place / "train_data_step1.jsonl", [row, row])
        jsonl(place / "val_data_step1.jsonl", [row, empty])
    for folder in ("a", "b"):
        for name in (None, "nemo_rl"):
            if (folder, name) != ("b", None):  # no file is in the folder itself
                assert collect(tmp_path / folder, name).notes == ["left out, nothing was sampled: 1"]
