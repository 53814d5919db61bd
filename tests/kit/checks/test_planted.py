"""A fault that is planted in a run is found in every form that has the columns, and named right; the clean run is
sound, and so is what healthy runs do."""

import copy
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer

from docs.writers.checks import formats_of
from squelch.kit.checks.catalogue import checks
from squelch.kit.checks.run import CHECKS, CheckResult, check
from tests.kit.checks.bank import END, WRITERS, Rollout, by_group, by_step, run, verifiers, with_advantages
from tests.kit.readers.trainer_files import jsonl

Plant = Callable[[list[Rollout]], None]
LIVE = Path(__file__).with_name("live")
WITH_TEMPERATURE = ["temperature=1", "top_p=1"]


def checked(name: str, folder: Path, rollouts: list[Rollout], claims: list[str] | None = None) -> CheckResult:
    path = WRITERS[name](folder, rollouts)
    return check(path, claims=claims or [], format="areal" if name == "areal" else None)  # its files lie in folders


def verdicts(found: CheckResult) -> dict[str, str]:
    return {one.name: one.verdict for one in found.results}


def cut_groups(rollouts: list[Rollout]) -> None:
    for own in by_step(rollouts).values():
        rollouts.remove(own[-1])


def split_group(rollouts: list[Rollout]) -> None:
    for one in rollouts[2:4]:
        one.group = "g900"


def mixed(rollouts: list[Rollout]) -> None:
    first, second = rollouts[3], rollouts[7]
    first.group, second.group = second.group, first.group
    with_advantages(rollouts)


def one_seed(rollouts: list[Rollout]) -> None:
    one, other = rollouts[8], rollouts[9]
    other.parts, other.drawn, other.text = one.parts, one.drawn, one.text


def leak(rollouts: list[Rollout]) -> None:
    for one in rollouts:
        if one.validation and one.task == 0:
            one.prompt, one.prompt_ids = rollouts[0].prompt, rollouts[0].prompt_ids


def no_reward(rollouts: list[Rollout]) -> None:
    rollouts[5].reward = float("nan")


def errors(rollouts: list[Rollout]) -> None:
    for place in (1, 6, 11, 17):
        rollouts[place].text, rollouts[place].reward = f"Error: request timed out after {place} s", 0.0
    with_advantages(rollouts)


def empty_group(rollouts: list[Rollout]) -> None:
    for one in rollouts[4:8]:
        one.text, one.reward = "", 0.0
    with_advantages(rollouts)


def swapped_advantages(rollouts: list[Rollout]) -> None:
    for one in rollouts[4:8]:
        one.advantage = -one.advantage


def all_learned(rollouts: list[Rollout]) -> None:
    for one in rollouts:
        one.learned = [True] * len(one.after)


def half_learned(rollouts: list[Rollout]) -> None:
    for one in rollouts[::2]:
        one.learned = [own and place > 1 for place, own in enumerate(one.sampled)]


def probabilities(rollouts: list[Rollout]) -> None:
    for one in rollouts:
        one.drawn = np.exp(one.drawn).tolist()


PLANTED: dict[str, tuple[Plant, str, tuple[str, ...]]] = {
    "groups cut at a step's end": (
        cut_groups, "group_sizes", ("trl", "verl", "nemo_rl", "areal", "slime", "squelch", "art", "verifiers")
    ),
    "a group under two ids": (split_group, "group_sizes", ("verl", "areal", "slime", "squelch")),
    "members of two groups swapped": (mixed, "mixed_groups", ("verl", "slime", "verifiers", "columns")),
    "one seed for a group": (one_seed, "equal_completions", ("squelch", "verifiers", "nemo_rl", "slime", "art")),
    "a training prompt in validation": (leak, "validation_leak", ("verifiers", "nemo_rl", "slime")),
    "a reward that is missing": (
        no_reward, "rewards_missing",
        ("trl", "verl", "nemo_rl", "areal", "slime", "skyrl", "verifiers", "squelch", "art"),
    ),
    "errors as answers": (
        errors, "failures_as_rewards", ("trl", "verl", "areal", "skyrl", "slime", "verifiers", "chat", "columns")
    ),
    "nothing as an answer": (empty_group, "failures_as_rewards", ("trl", "verl", "areal", "skyrl", "chat")),
    "advantages of another group": (swapped_advantages, "advantages", ("trl", "nemo_rl", "verifiers")),
    "tool tokens learned": (all_learned, "fed_tokens_learned", ("squelch", "verifiers", "nemo_rl", "slime")),
    "sampled tokens without loss": (half_learned, "sampled_tokens_unlearned", ("squelch",)),
    "probabilities as log-probabilities": (
        probabilities, "logprobs_impossible", ("squelch", "verifiers", "nemo_rl", "slime", "art")
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRITERS)
def test_a_clean_run_is_sound_where_the_table_says_that_the_format_has_what_a_check_needs(name, tmp_path) -> None:
    found = checked(name, tmp_path, run(validation=6), WITH_TEMPERATURE)
    assert [fault.says for fault in found.faults] == []
    told = verdicts(found)
    wanted = {one.name for one in checks().values() if name in formats_of(one) and one.name in CHECKS}
    assert {one: told[one] for one in wanted} == dict.fromkeys(wanted, "sound")


@pytest.mark.parametrize(
    ("fault", "name"), [(fault, name) for fault, (_, _, names) in PLANTED.items() for name in names]
)
def test_a_planted_fault_is_found_in_every_form_and_named(fault, name, tmp_path) -> None:
    plant, expected, _ = PLANTED[fault]
    rollouts = run(steps=6, validation=6)
    plant(rollouts)
    found = checked(name, tmp_path, rollouts, WITH_TEMPERATURE)
    assert [one.name for one in found.faults] == [expected], [one.says for one in found.faults]
    (one,) = found.faults
    assert one.count and one.of and one.examples and one.size is not None and name in formats_of(checks()[expected])


@pytest.mark.parametrize("name", ["nemo_rl", "squelch", "art"])
def test_errors_as_answers_are_found_in_ids_alone_where_their_tokenizer_is_at_hand(name, tmp_path) -> None:
    rollouts, tokenizer = run(steps=6), Tokenizer.from_file(str(LIVE / "tokenizer" / "tokenizer.json"))
    errors(rollouts)
    for one in rollouts:
        one.prompt_ids = tokenizer.encode(f"<|begin|><|user|>{one.prompt}<|assistant|>", add_special_tokens=False).ids
        ids = tokenizer.encode(f"{one.text}<|end|>", add_special_tokens=False).ids
        one.parts, one.drawn = [(ids, True)], [0.0 if one.text.startswith("Error") else -1.5] * len(ids)
    path = WRITERS[name](tmp_path, rollouts)
    assert verdicts(check(path))["failures_as_rewards"] == "unknown"
    (one,) = check(path, base=LIVE / "tokenizer").faults
    assert (one.name, one.count) == ("failures_as_rewards", 4) and "timed out" in one.examples[0].text


@pytest.mark.parametrize("name", ["trl", "verifiers", "nemo_rl"])
def test_a_rule_that_changes_at_a_step_is_found_there_whatever_the_new_one_is(name, tmp_path) -> None:
    rollouts = run(steps=6)
    for own in by_step(rollouts).values():
        mean = np.mean([one.reward for one in own])
        for one in own:
            one.advantage = one.reward - float(mean) if one.step >= 4 else one.advantage
    (one,) = checked(name, tmp_path, rollouts).faults
    assert (one.name, one.step) == ("advantages", 4) and "step 4" in one.says


def test_every_pair_of_check_and_format_that_needs_no_more_than_the_files_is_planted() -> None:
    planted = {(check, name) for _, check, names in PLANTED.values() for name in names}
    told = {(one.name, name) for one in checks().values() for name in formats_of(one) if name in WRITERS}
    told = {(check, name) for check, name in told if check in CHECKS}
    no_text = {("failures_as_rewards", name) for name in ("nemo_rl", "squelch", "art")}
    assert told - planted <= no_text | {("mixed_groups", "squelch")}, "the archive writes a group with one task"


# -- healthy runs ------------------------------------------------------------------------------------------------------


def twice_in_a_step(rollouts: list[Rollout]) -> None:
    """A prompt that the data holds twice, or that was drawn again."""
    for one in rollouts[4:8]:
        one.prompt, one.prompt_ids = rollouts[0].prompt, rollouts[0].prompt_ids


def dynamic_sampling(rollouts: list[Rollout]) -> None:
    del rollouts[4:12]


def second_epoch(rollouts: list[Rollout]) -> None:
    for own in list(by_group(rollouts).values())[:6]:
        for one in own:
            again = copy.deepcopy(one)
            again.step, again.group = one.step + 6, f"g{int(one.group[1:]) + 500}"
            again.parts = [
                ([token + 1 if token not in (END,) else token for token in ids], own) for ids, own in one.parts
            ]
            again.text += " again"
            rollouts.append(again)


def failures(rollouts: list[Rollout]) -> None:
    for one in rollouts[1:24:6]:
        one.failed = True


def filtered(rollouts: list[Rollout]) -> None:
    for one in rollouts[4:12]:
        one.advantage = 0.0


def certain(rollouts: list[Rollout]) -> None:
    """A policy that always says the same, and knows it."""
    for own in by_group(rollouts).values():
        for one in own:
            one.parts, one.text = own[0].parts, own[0].text
            one.drawn = [-1e-4 * own for own in one.sampled]


def constant_rewards(rollouts: list[Rollout]) -> None:
    for one in rollouts:
        one.reward = 0.0
    with_advantages(rollouts)


def dr_grpo(rollouts: list[Rollout]) -> None:
    with_advantages(rollouts, lambda rewards: rewards - rewards.mean())


def rounded(rollouts: list[Rollout]) -> None:
    for one in rollouts:
        one.advantage = round(one.advantage, 3)


def negative_and_real_rewards(rollouts: list[Rollout]) -> None:
    rng = np.random.default_rng(5)
    for one in rollouts:
        one.reward = float(np.float32(rng.normal()))
    with_advantages(rollouts)


def off_policy_masked(rollouts: list[Rollout]) -> None:
    for one in rollouts[::3]:
        one.learned = [own and place > 4 for place, own in enumerate(one.sampled)]


def small_evaluation(rollouts: list[Rollout]) -> None:
    """A step of few groups of another size, as TRL writes evaluations."""
    last = [one for one in rollouts if one.step == 6 and not one.validation and one.task < 2]
    rollouts[:] = [one for one in rollouts if one.step < 6 or one.validation] + [one for one in last if one.member < 2]
    with_advantages(rollouts)


def smaller_evaluation(rollouts: list[Rollout]) -> None:
    """As TRL writes a step in which it evaluates: three groups of two, after what is left of the step's six of four."""
    last = [one for one in rollouts if one.step == 6 and not one.validation]
    evaluated = copy.deepcopy(last[:6])
    for place, one in enumerate(evaluated):
        one.group, one.prompt = f"g{900 + place // 2}", f"Problem {900 + place // 2}"
    rollouts[:] = [one for one in rollouts if one not in last] + last[6:] + evaluated
    with_advantages(rollouts)


def late_members(rollouts: list[Rollout]) -> None:
    """Groups whose last members newer weights sampled."""
    for one in rollouts[2:40:12]:
        one.step += 1


def errors_asked_for(rollouts: list[Rollout]) -> None:
    """Problems whose answers are names of errors; some are wrong."""
    for place, one in enumerate(rollouts):
        one.text, one.reward = ("TypeError", "KeyError")[place % 2], float(place % 3 == 0)
    with_advantages(rollouts)


def padding(rollouts: list[Rollout]) -> None:
    """Rows by which verl fills up a step's batch: no text, and no reward."""
    for number in range(3):
        one = copy.deepcopy(rollouts[0])
        one.group, one.member, one.prompt, one.text, one.reward = f"pad{'0a' * 16}", number, "", "", 0.0
        rollouts.append(one)


def second_tries(rollouts: list[Rollout]) -> None:
    """Wrong answers that are tried again: AReaL takes the first try for a part of the prompt."""
    for one in rollouts[::3]:
        one.prompt += f"<|assistant|>{one.text[::-1]}<|user|>Try again."


HEALTHY: dict[str, tuple[Plant, tuple[str, ...]]] = {
    "a prompt twice in a step": (twice_in_a_step, tuple(WRITERS)),
    "an evaluation of another size": (small_evaluation, ("trl",)),
    "a batch that is filled up": (padding, ("verl",)),
    "answers of several turns": (second_tries, ("areal",)),
    "an evaluation after a part of a step": (smaller_evaluation, ("trl",)),
    "groups that two versions sampled": (late_members, ("verifiers",)),
    "groups dropped whole": (dynamic_sampling, tuple(WRITERS)),
    "a second epoch": (second_epoch, tuple(WRITERS)),
    "failed rollouts": (failures, ("slime", "verifiers", "squelch")),
    "groups that a filter left out": (filtered, ("trl", "verifiers", "nemo_rl")),
    "errors that were asked for": (errors_asked_for, tuple(WRITERS)),
    "a policy that is certain": (certain, tuple(WRITERS)),
    "rewards that are all equal": (constant_rewards, tuple(WRITERS)),
    "advantages without a scale": (dr_grpo, ("trl", "verifiers", "nemo_rl")),
    "advantages of three decimals": (rounded, ("trl", "verifiers", "nemo_rl")),
    "rewards of any size": (negative_and_real_rewards, ("trl", "verifiers", "nemo_rl")),
    "a mask over off-policy tokens": (off_policy_masked, ("nemo_rl", "slime")),
}


@pytest.mark.parametrize(("what", "name"), [(what, name) for what, (_, names) in HEALTHY.items() for name in names])
def test_what_healthy_runs_do_is_no_fault(what, name, tmp_path) -> None:
    rollouts = run(steps=6, validation=6)
    HEALTHY[what][0](rollouts)
    for claims in ([], WITH_TEMPERATURE):
        found = checked(name, tmp_path / str(len(claims)), rollouts, claims)
        assert [(one.name, one.says) for one in found.faults] == []


@pytest.mark.parametrize("name", ["squelch", "verifiers", "nemo_rl", "slime"])
def test_a_leak_is_found_after_many_epochs_and_unknown_where_all_prompts_begin_alike(name, tmp_path) -> None:
    rollouts = run(steps=6, validation=6)
    for one in rollouts:  # each step plays the same six prompts
        if not one.validation:
            one.prompt, one.prompt_ids = rollouts[4 * one.task].prompt, rollouts[4 * one.task].prompt_ids
    leak(rollouts)
    assert [one.name for one in checked(name, tmp_path / "a", rollouts).faults] == ["validation_leak"]
    for one in rollouts:
        one.prompt, one.prompt_ids = "You are helpful.", [1, 2]
    found = checked(name, tmp_path / "b", rollouts)
    assert verdicts(found)["validation_leak"] == "unknown"


def test_areals_rollouts_of_several_turns_may_leave_no_row(tmp_path) -> None:
    """It skips those whose last token was fed; groups that two versions sampled are whole."""
    folder = WRITERS["areal"](tmp_path, run(steps=6))
    path = min(folder.glob("*/*.jsonl"))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    jsonl(path, [*rows[:-1], rows[-1] | {"tail_version": 2}])
    assert verdicts(check(folder, format="areal"))["group_sizes"] == "sound"
    jsonl(path, rows[:-1])
    assert verdicts(check(folder, format="areal"))["group_sizes"] == "fault"
    jsonl(path, [row | {"segments": [{"role": "gen", "len": 4, "text": "x"}]} for row in rows[:-1]])
    (one,) = [one for one in check(folder, format="areal").results if one.name == "group_sizes"]
    assert one.verdict == "unknown" and "fed" in one.needs


def test_rollouts_that_need_no_reward_are_not_said_to_have_one(tmp_path) -> None:
    rollouts = run()
    no_reward(rollouts)
    rollouts[5].advantage = 0.0
    (one,) = [one for one in checked("trl", tmp_path, rollouts).results if one.name == "rewards_missing"]
    assert (one.verdict, one.says[:43]) == ("sound", "71 of 72 rollouts have a finite reward, and")


def test_a_system_prompt_is_no_task_of_nemo_rl(tmp_path) -> None:
    """Its rows name the first message alone, which several data sets may share."""
    rollouts = run(steps=6, tasks=24, validation=6)
    for one in rollouts:
        one.prompt = f"System prompt {one.task % 6}."
    assert verdicts(checked("nemo_rl", tmp_path, rollouts))["validation_leak"] == "unknown"


def test_rollouts_in_flight_at_the_end_of_a_stream_are_no_fault(tmp_path) -> None:
    rollouts = run(steps=6)
    del rollouts[-5:]
    assert check(verifiers(tmp_path, rollouts)).faults == []


def test_cancelled_rollouts_of_a_stream_are_unknown_and_cuts_at_steps_ends_a_fault(tmp_path) -> None:
    rollouts = run(steps=6)
    for place in (90, 61, 33, 2):
        del rollouts[place]
    found = check(verifiers(tmp_path, rollouts))
    (one,) = [one for one in found.results if one.name == "group_sizes"]
    assert one.verdict == "unknown" and one.count == 4 and "cancelled" in one.needs


OWN_WRITERS = Path(__file__).parents[1] / "readers"


@pytest.mark.parametrize(
    "name",
    [
        "written/completions",
        "written/traces.jsonl",
        "art_files",
        "inspect_logs/log.eval",
        "inspect_logs/log.json",
        "agents_files/sums",
        "agents_files/atif.jsonl",
        "agents_files/conversations.jsonl",
        "agents_files/sharegpt.jsonl",
    ],
)
def test_files_of_the_programs_own_writers_have_no_fault(name) -> None:
    found = check(OWN_WRITERS / name)
    assert found.rows and [(one.name, one.says) for one in found.faults] == []
