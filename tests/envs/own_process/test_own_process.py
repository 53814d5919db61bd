"""Environments in a process of their own: whatever one of them does costs its own trajectory, with the reason."""

from __future__ import annotations

import os
from typing import Any

import pytest

from squelch.envs.config import EnvironmentConfig, FormatConfig
from squelch.envs.contract import Environment
from squelch.envs.episode import Episode
from squelch.envs.format import well_formed
from squelch.envs.own_process.process import CallError, EnvironmentProcess, ProcessLost, Session, Target, TimedOut
from squelch.envs.registry import make, resolved
from squelch.envs.wording import PromptName
from tests.envs.own_process.counted import Counted
from tests.envs.own_process.unruly import Unruly, UnrulyInProcess

NOISE = {"noise_seed": 5}
QUICK = 3.0
UNRULY = f"{UnrulyInProcess.__module__}:UnrulyInProcess"


def target(timeout_s: float = 20.0) -> Target:
    return Target(UnrulyInProcess.inside, timeout_s, 8 * 2**30)


@pytest.fixture(scope="module")
def steady() -> Any:
    """A process that no test ends."""
    made = EnvironmentProcess(target())
    yield made
    made.close()


@pytest.fixture
def process() -> Any:
    made = EnvironmentProcess(target())
    yield made
    made.close()


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """The parent waits until the child's watchdog has written where the call was, however busy the machine is."""
    monkeypatch.setattr("squelch.envs.own_process.process.WATCHDOG_S", 60.0)


def session(process: EnvironmentProcess, seed: int = 1) -> Session:
    made = Session(process, "train", {})
    made.make()
    assert made.facts[0] == "Behave ."
    made.reset(seed, 5)
    return made


def test_an_environment_plays_in_its_process_as_it_does_here() -> None:
    isolated = UnrulyInProcess("validation", timeout_s=20)
    twin = Unruly("validation")
    assert isolated.rules() == twin.rules()
    shown, info = isolated.reset(seed=3, options=NOISE)
    assert (shown, info) == twin.reset(seed=3, options=NOISE)
    observation, *rest = isolated.step("go")
    assert observation.startswith("1 ") and rest == [0.5, False, False, {"success": False}]
    assert isolated.step("done")[2:] == (True, False, {"success": True})


def test_environments_of_one_process_do_not_share_the_global_generators(steady: EnvironmentProcess) -> None:
    alone = session(steady)
    expected = [alone.step("go")[0] for _ in range(4)]
    one, other = session(steady), session(steady, seed=2)
    mixed = []
    for _ in range(4):
        mixed.append(one.step("go")[0])
        other.step("go")
    assert mixed == expected and other.step("go")[0][2:] not in {text[2:] for text in expected}
    one.reset(1, 5)
    assert one.step("go")[0] == expected[0]


@pytest.mark.parametrize(
    ("action", "says"),
    [
        ("raise", "^LookupError: nothing here$"),
        ("leave", "^SystemExit: 1$"),
        ("words", "^ValueError: could not convert string to float: 'much'$"),
        ("forget", "^KeyError: 'success'$"),
        ("odd", "^TypeError: Object of type object is not JSON serializable$"),
        ("memory", "MemoryError"),
    ],
)
def test_an_error_fails_the_call_and_leaves_the_process_alive(
    steady: EnvironmentProcess, action: str, says: str
) -> None:
    one, other = session(steady), session(steady)
    with pytest.raises(CallError, match=says):
        one.step(action)
    assert other.step("go")[1] == 0.5 and steady.generation == 1


@pytest.mark.slow
@pytest.mark.parametrize(("action", "place"), [("hang", "step"), ("spin", "step"), ("hold", "step")])
def test_a_call_that_hangs_is_ended_in_time_and_costs_the_others_nothing(
    action: str, place: str, patient: None
) -> None:
    process = EnvironmentProcess(target(QUICK))
    hanging, other, twin = session(process), session(process), session(process)
    before = [other.step("go")[0], other.step("go")[0]]
    assert before == [twin.step("go")[0], twin.step("go")[0]]
    with pytest.raises(
        TimedOut, match=rf"step\(\) did not return within 3 s \(it was in unruly\.py, line \d+, {place}"
    ):
        hanging.step(action)
    assert other.step("go")[0].startswith("3 ") and process.generation == 2
    hanging.reset(1, 5)
    assert [hanging.step("go")[0], hanging.step("go")[0]] == before
    process.close()


def test_a_process_that_ends_is_replaced_and_its_last_words_are_the_reason(process: EnvironmentProcess) -> None:
    one, other = session(process), session(process)
    expected = [session(process)]
    first = other.step("go")
    with pytest.raises(ProcessLost, match=r"ended in step\(\) with status 7; it last wrote: about to end"):
        one.step("end")
    assert other.step("go")[0].startswith("2 ") and first[0].startswith("1 ")
    assert expected[0].step("go") == first and process.generation == 2


def test_an_answer_without_bound_is_refused(process: EnvironmentProcess) -> None:
    with pytest.raises(ProcessLost, match=r"answered step\(\) with more than 16 MiB"):
        session(process).step("huge")


def test_an_environment_that_plays_differently_again_is_not_continued(process: EnvironmentProcess) -> None:
    one, other = session(process), session(process)
    other.step("go")
    other._history[-1].value[0] = "something else"
    with pytest.raises(ProcessLost):
        one.step("end")
    with pytest.raises(ProcessLost, match=r"call 2, step\(\) answered differently"):
        other.step("go")
    other.reset(1, 5)
    assert other.step("go")[0].startswith("1 ")


def test_what_is_printed_reaches_neither_the_terminal_nor_the_answers(
    steady: EnvironmentProcess, capfd: pytest.CaptureFixture[str]
) -> None:
    one = session(steady)
    assert one.step("print")[0].startswith("1 ") and one.step("go")[0].startswith("2 ")
    assert capfd.readouterr() == ("", "")


def test_an_error_in_the_constructor_is_the_options_error() -> None:
    with pytest.raises(ValueError, match=r"^environment\.options\.wrong: not this one$"):
        make(UNRULY, options={"wrong": "raise", "timeout_s": 20})
    with pytest.raises(ValueError, match=r"UnrulyInProcess cannot be made: .* ended in make\(\) with status 3"):
        make(UNRULY, options={"wrong": "exit", "timeout_s": 20})


def test_a_package_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(UnrulyInProcess, "needs", ("no_such_module", "nothing"))
    with pytest.raises(ValueError, match=r"needs the package no_such_module, .* pip install 'squelch-rl\[nothing\]'"):
        make(UNRULY)


def test_no_process_is_left_when_its_parent_closes_it(process: EnvironmentProcess) -> None:
    session(process)
    child = process._child
    assert child is not None
    process.close()
    assert child.process.returncode is not None
    with pytest.raises(ProcessLookupError):
        os.kill(child.process.pid, 0)


@pytest.mark.parametrize("options", [{"slip_rate": 0.0}, {"slip_rate": 0.5}, {"slip_rate": 0.5, "shared_slip": True}])
def test_an_environment_declares_the_same_noise_in_its_process(options: dict[str, Any]) -> None:
    here = make("FrozenLake", "train", options)
    there = make("OwnProcess", "train", {"environment": "FrozenLake", "options": options})
    for name in ("stochastic", "shared_noise"):
        assert getattr(there, name) == getattr(here, name)


@pytest.mark.parametrize("turns", [3, 7])
def test_an_environment_has_in_its_process_the_turns_and_the_notes_that_follow_from_its_options(turns: int) -> None:
    name = f"{Counted.__module__}:Counted"
    here = EnvironmentConfig(name=name, options={"turns": turns})
    there = EnvironmentConfig(name="OwnProcess", options={"environment": name, "options": {"turns": turns}})
    one, other = (make(config.name, options=config.options) for config in (here, there))
    assert resolved(there, other).format == resolved(here, one).format
    assert (other.max_turns, other.max_actions_per_turn) == (turns, 2)
    assert other.notes() == one.notes() == [f"{turns} turns"]


def test_a_module_that_ends_its_process_is_imported_there_only() -> None:
    ending = f"{Counted.__module__.rpartition('.')[0]}.ending:Ending"
    with pytest.raises(ValueError, match=r"cannot be made: .* ended in make\(\) with status 4"):
        make("OwnProcess", options={"environment": ending})


def test_an_environment_that_may_not_be_played_says_so_from_its_process() -> None:
    made = make("OwnProcess", options={"environment": f"{Counted.__module__}:Counted", "options": {"turns": 13}})
    with pytest.raises(ValueError, match=r"^environment\.options\.turns: 13 is unlucky$"):
        made.notes()


TAXI = {"id": "Taxi-v4", "actions": ["South", "North", "East", "West", "Pickup", "Dropoff"]}
ODD_TEXTS = ("", " ", "Left", " lEFT ", "fly", "south", "Pickup\n", "1 + 2", "\x00\ud800", "left" * 250_000)


def both(name: str, options: dict[str, Any], prompt: PromptName = "tiny") -> tuple[Environment, Environment]:
    """An environment here, and the same in a process of its own."""
    inside = {"environment": name, "options": options, "timeout_s": 60}
    return make(name, options=options, prompt=prompt), make("OwnProcess", options=inside, prompt=prompt)


@pytest.mark.parametrize(
    ("name", "options"), [("FrozenLake", {}), ("Gymnasium", TAXI), ("docs.examples.sort_words:SortWords", {})]
)
def test_an_environment_reads_a_policys_text_in_its_process_as_it_does_here(name: str, options: dict[str, Any]) -> None:
    here, there = both(name, options)
    assert [there.read_action(text) for text in ODD_TEXTS] == [here.read_action(text) for text in ODD_TEXTS]
    episodes = [Episode(env, 3, 0, FormatConfig(max_turns=4)) for env in (here, there)]
    assert episodes[0].start() == episodes[1].start()
    for said in ("south", "right", "%"):
        played, outcome = (episode.act(well_formed("so", [said])) for episode in episodes)
        assert outcome == played
    assert (outcome.format_valid, outcome.format_penalty, outcome.num_actions) == (False, -0.1, 0)


def test_an_environment_judges_in_its_process_which_actions_are_the_same() -> None:
    for env in both("Countdown", {}):
        assert env.same_action("2 + 3", "( 3 + 2 )") and not env.same_action("2 + 3", "5")
    assert make("OwnProcess", options={"environment": f"{Counted.__module__}:Counted"}).same_action("a", "a")


def test_a_text_is_read_again_in_no_successor_but_by_an_environment_in_its_state(process: EnvironmentProcess) -> None:
    one, other = session(process), session(process)
    assert other.ask("read_action", " go ") == "go" and other.ask("read_action", " ") is None
    first = other.step("go")
    with pytest.raises(ProcessLost):
        one.step("end")
    assert other.ask("read_action", "steps") == "1 steps", "the step was replayed"
    assert [call.method for call in other._history] == ["reset", "step"] and first[0].startswith("1 ")


def test_a_text_that_cannot_be_read_fails_the_call_with_the_reason(process: EnvironmentProcess) -> None:
    one, other = session(process), session(process)
    with pytest.raises(CallError, match=r"^LookupError: cannot read$"):
        one.ask("read_action", "unreadable")
    with pytest.raises(ProcessLost, match=r"ended in read_action\(\) with status 9"):
        one.ask("read_action", "deadly")
    assert other.step("go")[0].startswith("1 ")


@pytest.mark.slow
def test_a_text_that_is_read_without_end_is_given_up_in_time(patient: None) -> None:
    process = EnvironmentProcess(target(QUICK))
    one = session(process)
    with pytest.raises(TimedOut, match=r"read_action\(\) did not return within 3 s \(it was in unruly\.py"):
        one.ask("read_action", "endless")
    process.close()


@pytest.mark.parametrize("prompt", ["tiny", "natural"])
def test_an_environment_speaks_the_style_that_is_set_in_its_process_too(prompt: PromptName) -> None:
    options = {"observation_format": "grid_coord"} if prompt == "natural" else {}
    here, there = (Episode(env, 3, 0, FormatConfig()).start() for env in both("FrozenLake", options, prompt))
    assert there == here
    assert ("example of one turn" in there[0]["content"]) == ("player: row" in there[1]["content"]) == bool(options)


def test_options_that_a_style_cannot_express_are_refused_for_the_environment_inside() -> None:
    options = {"environment": "FrozenLake", "options": {"observation_format": "grid_coord"}, "timeout_s": 60}
    with pytest.raises(
        ValueError, match=r"^environment\.options\.observation_format=grid_coord needs environment\.prompt"
    ):
        make("OwnProcess", options=options)


def test_a_class_that_imports_numpy_late_draws_the_same_from_the_same_seed_in_every_process() -> None:
    """Found by a reviewer: the first reset of each process drew from an unseeded generator."""
    shown = []
    for _ in range(2):
        made = EnvironmentProcess(Target("tests.envs.own_process.late:Late", 20.0, 8 * 2**30))
        try:
            own = Session(made, "train", {})
            own.make()
            shown.append([own.reset(seed, 5)[0] for seed in (7, 8, 7)])
        finally:
            made.close()
    assert shown[0] == shown[1] and shown[0][0] == shown[0][2] != shown[0][1]
