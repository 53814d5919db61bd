"""The estimate of a recipe's learner, from the command line."""

import pytest

from cluster.commands.memory import main


def test_a_recipes_estimate_is_printed_and_follows_the_overrides(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["qwen2.5-0.5b"]) == 0
    own = capsys.readouterr().out
    assert own.startswith("Qwen2.5-0.5B: ") and "GiB per rank (state" in own
    assert main(["qwen2.5-0.5b", "learner.ranks=4"]) == 0
    assert capsys.readouterr().out != own


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ([], "usage: python -m cluster.commands.memory"),
        (["qwen2.5-0.5x"], "qwen2.5-0.5b"),
        (["qwen2.5-0.5b", "model.path=/nowhere"], "model.path=/nowhere: give a local Hugging Face folder"),
    ],
)
def test_what_cannot_be_read_is_exit_code_2_and_says_what_would_be_right(
    arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert says in capsys.readouterr().err
