"""Reward functions of the user: TRL's signature, sums, and what is refused by name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from squelch.envs.prompt_file import rewards
from squelch.envs.prompt_file.rows import Prompt

FILE = str(Path(__file__).with_name("user_rewards.py"))
TEXT = Prompt("2 + 3?", [{"role": "user", "content": "2 + 3?"}], {"answer": "5"}, "key")
CHAT = Prompt(TEXT.messages, TEXT.messages, {"answer": "5"}, "key")
SAID = ["it is 5", "6", "it is 5, as everybody knows"]
IDS = [[1, 2], [3], [4, 5, 6]]


def total(*names: str | tuple[str, float], prompt: Prompt = TEXT) -> list[float | str]:
    weighted = [(name, 1.0) if isinstance(name, str) else name for name in names]
    functions = [rewards.load(f"{FILE}:{name}", weight) for name, weight in weighted]
    return rewards.group_rewards(functions, prompt, SAID, IDS)


@pytest.mark.parametrize("prompt", [TEXT, CHAT])
def test_functions_get_the_whole_completions_and_are_summed_where_they_apply(prompt: Prompt) -> None:
    assert total("right", prompt=prompt) == [1.0, 0.0, 1.0]
    assert total(("right", 2.0), ("short", -0.5), prompt=prompt) == [1.5, -0.5, 2.0]


def test_where_no_function_applies_there_is_no_reward_rather_than_0() -> None:
    assert total("nothing", "short") == [1.0, 1.0, rewards.NONE_APPLIES]
    assert total("nothing") == [rewards.NONE_APPLIES] * 3


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("raising", r"raised KeyError: 'verdict' \(user_rewards.py, line \d+\)"),
        ("nan", "returned the reward nan; a finite number, or None, is needed"),
        ("words", "returned the reward '1.0'; a finite number"),
        ("one_text", "returned '1.0'; a list with a number"),
        ("too_few", "returned 2 rewards for 3 completions"),
        ("needs_more", "raised TypeError: .*unexpected keyword argument"),
    ],
)
def test_what_a_function_must_not_do_is_an_error_that_names_it(name: str, said: str) -> None:
    with pytest.raises(RuntimeError, match=f"the reward function .*user_rewards.py:{name} {said}"):
        total("right", name)


def test_a_function_is_found_in_a_file_in_a_module_and_beside_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rewards.load("tests.envs.prompt_file.user_rewards:right", 1.0).call(["q"], ["5"], ["5"], completion_ids=[[]])
    (tmp_path / "my_rewards_beside.py").write_text(
        "def right(completions, **_):\n    return [1.0] * len(completions)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", ["/nonexistent"])
    for name in ("my_rewards_beside.py:right", "my_rewards_beside:right"):
        assert rewards.load(name, 1.0).call(completions=[1, 2]) == [1.0, 1.0]


def test_a_function_that_a_module_imports_when_it_is_asked_for_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lazy = """
def __getattr__(name):
    if name == "right":
        return lambda completions, **_: [2.0] * len(completions)
    raise AttributeError(name)

def __dir__():
    return ["right"]
"""
    (tmp_path / "lazy_as_trl.py").write_text(lazy)
    monkeypatch.chdir(tmp_path)
    assert rewards.load("lazy_as_trl:right", 1.0).call(completions=[1, 2]) == [2.0, 2.0]
    with pytest.raises(ValueError, match=r"defines no function 'rihgt'; did you mean 'right'\?"):
        rewards.load("lazy_as_trl:rihgt", 1.0)


def test_a_function_that_is_not_there_is_refused_by_the_setting(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import no_such_package\n")
    for name, complaint in {
        f"{FILE}:rigth": "defines no function 'rigth'; did you mean 'right'?",
        "rewards.py": "is not of the form module:function or file.py:function",
        f"{tmp_path}/missing.py:right": "cannot be imported: there is no file",
        f"{tmp_path}/broken.py:right": r"cannot be imported: No module named 'no_such_package' \(broken.py, line 1\)",
    }.items():
        with pytest.raises(ValueError, match=f"environment.options.reward: .*{complaint}"):
            rewards.load(name, 1.0)


def test_the_example_pays_one_word_with_the_letter() -> None:
    prompt = Prompt(TEXT.messages, TEXT.messages, {"letter": "B"}, "key")
    functions = [rewards.load("squelch.envs.prompt_file.example:reward", 1.0)]
    assert rewards.group_rewards(functions, prompt, ["Bear.", "bear or cat", "Cat", ""], [[1]] * 4) == [1, 0.5, 0, 0]


def test_a_function_may_run_an_event_loop_of_its_own_in_every_group() -> None:
    for _ in range(2):
        assert total("runs_a_loop", "uses_the_current_loop", "short") == [3.0, 3.0, 2.0]


def test_what_a_module_holds_for_its_event_loop_serves_every_group() -> None:
    assert [total("one_at_a_time", "shares_a_task", "runs_a_loop") for _ in range(3)] == [[3.0] * 3] * 3


def test_what_waits_beside_a_function_that_raises_is_ended_with_its_group() -> None:
    ended = rewards.load(f"{FILE}:patient", 1.0).call.__globals__["ENDED"]
    with pytest.raises(
        RuntimeError, match=r"user_rewards.py:late raised KeyError: 'late' \(user_rewards.py, line \d+\)"
    ):
        total("patient", "late")
    assert ended == ["patient"]
    assert total("short", "right") == [2.0, 1.0, 1.0]


def test_a_function_of_a_file_may_import_what_lies_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "beside_the_rewards.py").write_text("ONE = 1.0\n")
    (tmp_path / "far_away.py").write_text(
        "import beside_the_rewards as b\n\ndef ones(completions, **_):\n    return [b.ONE]\n"
    )
    monkeypatch.setattr("sys.path", list(sys.path))
    assert rewards.load(f"{tmp_path}/far_away.py:ones", 1.0).call(completions=[1]) == [1.0]
