"""What is typed of a block."""

import pytest

from squelch.cluster.config import load
from tests.walk.commands import bound, commands, in_background, left_out, shortened


def test_lines_that_a_backslash_or_a_quote_joins_are_one_command() -> None:
    text = "a 1 \\\n    2\n\n# only a comment\nb 'x\ny'   # why\n"
    assert commands(text) == [(0, "a 1 \\\n    2"), (4, "b 'x\ny'   # why")]
    assert commands("#!/bin/bash\na\nb\n") == [(0, "#!/bin/bash\na\nb\n")]
    with pytest.raises(ValueError, match="does not end"):
        commands("a 'b\n")


def test_placeholders_are_bound_as_words_the_longest_first() -> None:
    bindings = {"FILE": "tasks.jsonl", "HOST:6379": "127.0.0.1:1", "HOST": "there"}
    assert bound("a FILE data=FILE, http://HOST:6379 FILE.py PROFILE", bindings) == (
        "a tasks.jsonl data=tasks.jsonl, http://127.0.0.1:1 FILE.py PROFILE",
        ["HOST:6379", "FILE"],
    )


def test_settings_that_shorten_come_before_a_commands_own() -> None:
    typed = shortened("nice .venv/bin/squelch train ./mixed.yaml loop.steps=9 > log")
    assert typed.startswith("nice .venv/bin/squelch train ./mixed.yaml loop.steps=1 ")
    assert typed.endswith(" loop.steps=9 > log")
    assert "loop.steps=2 " in shortened("squelch train frozenlake name=mine --resume")
    assert "loop.steps" not in shortened("nohup squelch train frozenlake > log 2>&1 &"), "the page ends it"
    assert "model.warmup.demonstrations" in shortened("squelch submit smollm2-countdown")
    script = shortened("#!/bin/bash\nexec squelch train smollm2-countdown name=$name $resume\n")
    assert "model.warmup=null" in script and "demonstrations" not in script and script.endswith(" name=$name $resume\n")
    assert "model.warmup.demonstrations" in shortened("squelch warmup smollm2 out --recipe smollm2-countdown")
    assert "max_tokens" in shortened("squelch train prompts a=b")
    assert "max_tokens" not in shortened("squelch train prompts environment.options.reward=a.py:b")
    assert "wandb_mode=offline" in shortened("squelch train frozenlake recorder.loggers=[wandb]")
    assert "tiny" in shortened("squelch train frozenlake") and "tiny" not in shortened("squelch train prompts a=b")
    assert shortened("make train        # trains").startswith("make train ARGS='loop.steps=1 ")
    assert shortened("squelch filter rewards.npz") == "squelch filter rewards.npz"


@pytest.mark.parametrize("recipe", ["frozenlake", "prompts", "smollm2-countdown", "countdown model.path=smollm2"])
@pytest.mark.parametrize("start", ["", "#!/bin/bash\n"])
def test_settings_that_shorten_suit_the_recipes(start: str, recipe: str) -> None:
    name, *overrides = shortened(f"{start}squelch train {recipe}").split("squelch train ")[1].split()
    assert load(name, overrides).loop.steps == 1


def test_a_command_is_left_out_by_its_beginning() -> None:
    assert left_out("make test   # all", {"make test": "hours"}) == "hours"
    assert left_out("make train", {"make test": "hours"}) is None
    assert left_out("anything", {"": "Docker"}) == "Docker"


def test_a_command_runs_in_the_background_if_it_ends_so() -> None:
    assert in_background("nohup a > log 2>&1 &   # the driver") and not in_background("a && b")
