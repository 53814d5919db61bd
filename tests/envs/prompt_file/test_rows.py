"""Which rows are trained on and which are validation's."""

import json
from pathlib import Path

import pytest

from squelch.envs.prompt_file.rows import open_prompts


def file(path: Path, *prompts: str) -> str:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(json.dumps({"prompt": one}) + "\n" for one in prompts))
    return str(path)


def texts(data: str, split: str, validation: str | tuple[str, ...]) -> set[str]:
    prompts = open_prompts(data, "prompt", split, "tools", validation)
    return {prompts.of(seed).given for seed in range(8)}


def test_validation_has_the_files_that_are_given_whatever_their_names_and_they_are_not_trained_on(
    tmp_path: Path,
) -> None:
    train = file(tmp_path / "train.jsonl", "a", "b", "c", "shared")
    test, other = file(tmp_path / "test.jsonl", "shared", "x"), file(tmp_path / "aime-2024.jsonl", "y")
    assert texts(train, "validation", (test, other)) == {"shared", "x", "y"}
    assert texts(train, "train", (test, other)) == {"a", "b", "c"}


def test_of_a_folder_validation_has_the_split_for_it_or_else_that_for_tests(tmp_path: Path) -> None:
    train = file(tmp_path / "train.jsonl", "a", "b")
    file(tmp_path / "own" / "train.jsonl", "t")
    file(tmp_path / "own" / "test.jsonl", "x")
    assert texts(train, "validation", str(tmp_path / "own")) == {"x"}
    file(tmp_path / "both" / "test.jsonl", "x")
    file(tmp_path / "both" / "validation.jsonl", "v")
    assert texts(train, "validation", str(tmp_path / "both")) == {"v"}


def test_a_file_of_validation_that_is_not_there_is_named_by_its_option(tmp_path: Path) -> None:
    train = file(tmp_path / "train.jsonl", "a", "b")
    with pytest.raises(ValueError, match=r"environment\.options\.validation_data: .*gone\.jsonl: no such file"):
        open_prompts(train, "prompt", "train", "tools", str(tmp_path / "gone.jsonl"))
