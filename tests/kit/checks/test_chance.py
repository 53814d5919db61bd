"""How often checks that depend on chance are wrong about healthy runs, on runs that are drawn by the thousand: each at
most as often as the catalogue says, and all together in at most 1% of the runs."""

from collections import Counter
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from squelch.kit.checks import tokens
from squelch.kit.checks.advantages import RULES, advantages
from squelch.kit.checks.catalogue import checks
from squelch.kit.checks.chance import BY_CHANCE
from squelch.kit.checks.claims import Claims
from squelch.kit.checks.collected import Collected, Group, Member
from squelch.kit.checks.ends import ends_missing
from squelch.kit.checks.fed_tokens import Fed
from squelch.kit.checks.groups import equal_completions, group_sizes
from squelch.kit.checks.rewards import failures_as_rewards
from squelch.kit.checks.run import check
from squelch.kit.checks.tokens import fed_tokens_learned
from squelch.kit.checks.turn_end import end_of
from squelch.kit.checks.weights import engine_values, temperature, verdicts
from squelch.kit.readers.formats import FORMATS
from tests.kit.checks.bank import END, WRITERS, Rollout, rollout, with_advantages
from tests.kit.readers.trainer_files import jsonl

RUNS, GROUPS, SIZE = 1000, 16, 8
SOUND = Claims(temperature=1.0, top_p=1.0)


def collected(groups: list[list[Member]], name: str = "slime") -> Collected:
    found = Collected(Path("x"), FORMATS[name], of_groups=True)
    for number, members in enumerate(groups):
        key = str(number).encode()
        found.groups[key] = Group(1, f"row {number}", {str(n).encode(): one for n, one in enumerate(members)})
    return found


def member(said: bytes, log_p: float | None = -20.0, **more: object) -> Member:
    fields = {"reward": 0.0, "advantage": None, "text": "x", "tokens": 20, "is_ids": True, "prompt": b"p"} | more
    rewards: dict[str, float | None] = {"reward": fields.pop("reward")}  # type: ignore[dict-item]
    return Member("row", b"p", b"p", said, log_p, int(fields["tokens"]), str(fields["text"]), bool(fields["is_ids"]),
                  None, rewards, fields["advantage"])  # fmt: skip


def drawn(rng: np.random.Generator, policy: np.ndarray) -> list[list[Member]]:
    """Completions of a policy over whole texts."""
    said = rng.choice(len(policy), (GROUPS, SIZE), p=policy)
    return [[member(str(one).encode(), float(np.log(policy[one]))) for one in own] for own in said]


def test_the_rates_are_those_of_the_code_and_add_up_to_less_than_one_in_a_hundred() -> None:
    rates = {
        **dict.fromkeys(("group_sizes", "equal_completions", "prompts_lost", "failures_as_rewards"), BY_CHANCE),
        **dict.fromkeys(("stale_weights", "recorded_versions"), verdicts.FALSE_RATE),
        "adapter_not_applied": verdicts.FALSE_RATE / 2,
        "temperature": temperature.FALSE_RATE,
        "engine_against_trainer": engine_values.FALSE_RATE,
        "fed_tokens_learned": tokens.CERTAIN,
    }
    assert {one.name: one.rate for one in checks().values() if one.rate} == pytest.approx(rates)
    assert sum(rates.values()) <= 0.01, "of a dump that has every column"


@pytest.mark.parametrize("shape", [0.02, 0.3, 3.0])
@pytest.mark.parametrize("texts", [30, 3000, 50_000])
def test_equal_completions_of_any_policy_are_hardly_ever_a_fault(shape, texts) -> None:
    rng, faults = np.random.default_rng([texts, int(100 * shape)]), 0
    for _ in range(RUNS // 10):
        policy = rng.gamma(shape, size=texts) + 1e-300
        found = [equal_completions(collected(drawn(rng, policy / policy.sum())), SOUND) for _ in range(3)]
        faults += sum(one.verdict == "fault" for one in found)
    assert faults <= 3, f"{faults} of {3 * RUNS // 10}: at most 1 in 1,000 is meant"


def test_one_copy_of_an_improbable_completion_is_enough_and_its_probability_decides() -> None:
    for log_p, verdict in ((-20.0, "fault"), (-2.0, "sound")):
        groups = [[member(f"{g} {n}".encode(), -18.0) for n in range(SIZE)] for g in range(GROUPS)]
        groups[3][:2] = [member(b"the same", log_p), member(b"the same", log_p)]
        assert equal_completions(collected(groups), SOUND).verdict == verdict
        assert equal_completions(collected(groups), Claims()).verdict == "unknown", "tempered or not is not known"
    half = Claims(temperature=1.0, top_p=0.5)
    assert equal_completions(collected(groups), half).verdict == "sound", "a nucleus makes each token likelier"


@pytest.mark.parametrize(
    ("claims", "verdict"),
    [
        (Claims(temperature=1.0, top_p=1.0, top_k=-1, min_p=0.0), "fault"),
        (Claims(temperature=1.0), "unknown"),
        (Claims(temperature=1.0, top_p=1.0, top_k=20), "unknown"),
        (Claims(temperature=1.0, top_p=1.0, min_p=0.1), "unknown"),
    ],
)
def test_equal_completions_need_the_sampler_to_be_known_unless_the_format_records_its_own(claims, verdict) -> None:
    groups = [[member(f"{g} {n}".encode(), -18.0) for n in range(SIZE)] for g in range(GROUPS)]
    groups[3][:2] = [member(b"the same"), member(b"the same")]
    assert equal_completions(collected(groups), claims).verdict == verdict
    assert equal_completions(collected(groups, "squelch"), claims).verdict == "fault"


def test_empty_texts_of_a_policy_that_ends_at_once_are_no_fault() -> None:
    rng, faults = np.random.default_rng(1), 0
    for _ in range(RUNS):
        empty = rng.random((GROUPS, SIZE)) < 0.01
        groups = [
            [member(b"" if gone else b"x", None, text="" if gone else "x", is_ids=False) for gone in own]
            for own in empty
        ]
        faults += failures_as_rewards(collected(groups, "verl"), SOUND).verdict == "fault"
    assert faults <= 3, "at its very limit of 1%: at most 1 in 1,000 is meant"


def test_empty_texts_that_fill_a_group_are_a_fault_where_chance_fills_none() -> None:
    for size, groups, verdict in ((4, 36, "fault"), (3, 36, "fault"), (2, 36, "unknown"), (3, 900, "unknown")):
        found = [[member(b"x", None, text="x", is_ids=False) for _ in range(size)] for _ in range(groups)]
        found[7] = [member(b"", None, text="", is_ids=False) for _ in range(size)]
        assert failures_as_rewards(collected(found, "verl"), SOUND).verdict == verdict, (size, groups)


def test_an_end_token_alone_is_an_empty_text_unless_its_recorded_probability_is_that_of_a_policy_that_ends_at_once():
    for log_p, verdict in ((None, "fault"), (0.0, "fault"), (-9.0, "fault"), (-1.0, "sound")):
        found = [[member(b"x") for _ in range(4)] for _ in range(36)]
        found[7] = [member(b"", log_p, text="", tokens=1) for _ in range(4)]
        assert failures_as_rewards(collected(found), SOUND).verdict == verdict, log_p


def turns_of(rng: np.random.Generator, lost: float) -> Collected:
    """Answers that end with one of up to two end tokens, or a stop string of one to four ids, whose last id may be
    merged with the next; a share of them loses its end. Some end alike, as answers to one problem do."""
    words, size = int(rng.integers(20, 500)), int(rng.integers(2, 9))
    stops = [rng.integers(2, words, int(rng.integers(1, 5))).tolist() for _ in range(int(rng.integers(0, 4)))]
    stopped, found = rng.uniform(0, 0.6) * bool(stops), Collected(Path("x"), FORMATS["slime"], of_groups=True)
    for number in range(GROUPS):
        answer, members = rng.integers(2, words, 3).tolist(), dict[bytes, Member]()
        for place in range(size):
            ids = [*rng.integers(2, words, int(rng.integers(5, 40))).tolist(), *(answer if rng.random() < 0.5 else [])]
            ids += stops[int(rng.integers(len(stops)))] if rng.random() < stopped else []
            ends = [at for stop in stops for at in range(len(ids) + 1) if ids[:at][-len(stop) :] == stop]
            if ends:
                ids = ids[: min(ends)]
                ids[-1] = ids[-1] if rng.random() > 0.1 else words + int(rng.integers(9))
            elif rng.random() >= lost:
                ids.append(int(rng.random() < 0.1))
            row = {"completion_ids": ids, "ended": True}
            members[bytes([place])] = replace(member(b"x"), prompt=bytes([number]), end=end_of(row, None))
            found.sample.append(("row", row))
        found.groups[bytes([number])] = Group(1, "row", members)
    return found


def test_stop_strings_and_several_end_tokens_are_hardly_ever_taken_for_lost_ends() -> None:
    rng = np.random.default_rng(11)
    clean = Counter(ends_missing(turns_of(rng, 0.0), SOUND, None).verdict for _ in range(RUNS // 2))
    lost = Counter(ends_missing(turns_of(rng, 0.3), SOUND, None).verdict for _ in range(RUNS // 4))
    assert not clean["fault"] and clean["sound"], clean
    assert lost["fault"] >= RUNS // 10 and lost["sound"] <= RUNS // 100, lost


def test_rollouts_cancelled_at_random_are_hardly_ever_taken_for_groups_cut_at_steps_ends() -> None:
    rng, faults = np.random.default_rng(7), 0
    for _ in range(2 * RUNS):
        found = Collected(Path("x"), FORMATS["verifiers"], of_groups=True)
        for step in range(4):
            for number in range(3):
                members = {bytes([n]): member(b"x") for n in range(4) if rng.random() > 0.05}
                if members:
                    found.groups[bytes([step, number])] = Group(step, "row", members)
        faults += group_sizes(found, Claims(group_size=4)).verdict == "fault"
    assert faults <= 5, f"{faults} of {2 * RUNS}: at most 1 in 1,000 is meant"


def test_engine_and_trainer_at_the_largest_healthy_divergence_are_hardly_ever_a_fault() -> None:
    rng, faults, length = np.random.default_rng(8), 0, 40
    for run in range(4 * RUNS):
        rollouts = 8 + run % 5
        off = rng.normal(size=(rollouts, length)) * np.sqrt(2 * engine_values.LARGEST_KL)
        off *= rng.uniform(0.4, 1.6, (rollouts, 1)) / np.sqrt(1.12)  # some rollouts differ more than others
        engine = -rng.exponential(size=off.size)
        clusters = np.repeat(np.arange(rollouts), length)
        found = engine_values.disagreement(engine, engine + off.ravel(), clusters)
        faults += found is not None and found.verdict == "fault"
    assert faults <= 3, f"{faults} of {4 * RUNS}: at most 1 in 10,000 is meant"


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_each_rule_explains_its_own_advantages_and_not_those_of_swapped_rewards(rule, kind) -> None:
    rng, wrong = np.random.default_rng(2), 0
    for run in range(60):
        rewards = rng.integers(0, 4, (GROUPS, SIZE)).astype(float) if run % 2 else rng.normal(size=(GROUPS, SIZE)) + 3
        batch = float(rewards.std(ddof=1))
        values = [RULES[rule](own, batch)[0] for own in rewards]
        clean = _with_advantages(rewards, values, kind)
        wrong += advantages(clean, SOUND).verdict == "fault"
        swapped = [values[1], values[0], *values[2:]]
        if np.ptp(values[0]) > 0 and not np.allclose(values[0], values[1]):
            found = advantages(_with_advantages(rewards, swapped, kind), SOUND)
            assert found.verdict == "fault" and found.count in (1, 2), (rule, found)
    assert wrong == 0


def _with_advantages(rewards: np.ndarray, values: list[np.ndarray], kind: type) -> Collected:
    return collected(
        [
            [member(b"", reward=float(kind(r)), advantage=float(kind(a))) for r, a in zip(own, given, strict=True)]
            for own, given in zip(rewards, values, strict=True)
        ],
        "trl",
    )


def two_rewards(rule: str, kind: type = np.float32, weights: tuple[float, float] = (1.0, 0.25)) -> list[list[Member]]:
    """Groups of two rewards, of which the second is equal within most groups."""
    rng, parts = np.random.default_rng(3), []
    for number in range(GROUPS):
        own = rng.normal(size=(SIZE, 2))
        own[:, 1] = own[0, 1] if number % 3 else own[:, 1]
        parts.append(own)
    sums = [own @ weights for own in parts]
    values = [(one - one.mean()) / (one.std(ddof=1) + 1e-4) for one in sums]
    if rule == "gdpo":
        each = [((own - own.mean(0)) / (own.std(0, ddof=1) + 1e-4)).sum(axis=1) for own in parts]
        whole = np.concatenate(each)
        values = [(one - whole.mean()) / (whole.std(ddof=1) + 1e-4) for one in each]
    groups = []
    for own, given in zip(parts, values, strict=True):
        members = [member(b"", advantage=float(kind(one))) for one in given]
        for one, pair in zip(members, own.tolist(), strict=True):
            one.rewards = dict(zip(("right", "form"), pair, strict=True))
        groups.append(members)
    return groups


@pytest.mark.parametrize("rule", ["grpo", "gdpo"])
@pytest.mark.parametrize("kind", [np.float32, np.float16, lambda one: round(one, 2)])
def test_advantages_of_several_rewards_are_explained_by_the_weights_that_they_have(rule, kind) -> None:
    groups = two_rewards(rule, kind, (1.0, 0.25))
    found = advantages(collected(groups, "trl"), SOUND)
    assert found.verdict == "sound" and found.says.startswith(f"The rule {rule}")
    for one in groups[3]:
        one.advantage = -one.advantage
    found = advantages(collected(groups, "trl"), SOUND)
    assert (found.verdict, found.count) == ("fault", 1), found


@pytest.mark.parametrize("rule", ["gdpo", "grpo_batch"])
def test_a_rule_over_a_step_is_not_judged_where_a_group_of_the_step_is_not_known(rule) -> None:
    """TRL gives a rollout that no function scores the advantage 0, and leaves it out of the step's deviation."""
    rng, found = np.random.default_rng(6), Collected(Path("x"), FORMATS["trl"], of_groups=True)
    for step in range(4):
        rewards = rng.normal(size=(6, SIZE, 2)) * (1.0, 0.25)
        rewards[1, ::2, 1] = np.nan  # rows of another kind
        if step in (1, 2):
            rewards[2, 3] = np.nan
        values = step_advantages(rewards, rule)
        for number, (own, given) in enumerate(zip(rewards.tolist(), values.tolist(), strict=True)):
            members = {bytes([n]): member(b"", advantage=one) for n, one in enumerate(given)}
            for one, pair in zip(members.values(), own, strict=True):
                one.rewards = {n: None if np.isnan(r) else r for n, r in zip(("right", "form"), pair, strict=True)}
            found.groups[bytes([step, number])] = Group(step, f"row {step} {number}", members)
    one = advantages(found, SOUND)
    assert (one.verdict, one.of) == ("sound", 12) and rule in one.says, one
    first = next(iter(found.groups.values()))
    for one in first.members.values():
        one.advantage = -one.advantage
    assert advantages(found, SOUND).count == 1


def step_advantages(rewards: np.ndarray, rule: str) -> np.ndarray:
    """(groups, n) as TRL computes them with NaN for what was not scored."""
    unscored = np.isnan(rewards).all(axis=2)
    if rule == "gdpo":
        mean, std = np.nanmean(rewards, axis=1, keepdims=True), np.nanstd(rewards, axis=1, ddof=1, keepdims=True)
        rewards = (rewards - mean) / (std + 1e-4)
    sums = np.where(unscored, np.nan, np.nansum(rewards, axis=2))
    baseline = np.nanmean(sums) if rule == "gdpo" else np.nanmean(sums, axis=1, keepdims=True)
    return np.nan_to_num((sums - baseline) / (np.nanstd(sums, ddof=1) + 1e-4))


def test_claimed_weights_of_rewards_are_in_the_order_of_the_file_and_as_many() -> None:
    groups = two_rewards("grpo")
    assert advantages(collected(groups, "trl"), Claims(reward_weights=(1.0, 0.25))).verdict == "sound", "right, form"
    assert advantages(collected(groups, "trl"), Claims(reward_weights=(0.25, 1.0))).verdict == "fault"
    one = advantages(collected(groups, "trl"), Claims(reward_weights=(1.0,)))
    assert one.verdict == "unknown" and "1 weights are claimed, and the rewards are right, form" in one.says


def test_a_certain_policy_after_its_stop_string_is_not_taken_for_fed_tokens() -> None:
    """Runs whose texts end with a stop string's token, which stands within them too, before certain tokens."""
    rng, faults = np.random.default_rng(4), 0
    for _ in range(200):
        fed = Fed()
        for n in range(40):
            ids = [*rng.integers(10, 99, 12).tolist(), 5, *rng.integers(10, 99, 6).tolist(), 5]
            certain = rng.random() < 0.9  # of all tokens of this run alike
            drawn = [0.0 if certain or rng.random() < 0.5 else -0.7 for _ in ids]
            said = {"ids": ids, "mask": [1] * len(ids), "sampled": None, "logprobs": drawn, "trained": None}
            fed.take(said, f"row {n}", is_whole=True)
        found = Collected(Path("x"), FORMATS["slime"], fed=fed)
        faults += fed_tokens_learned(found, SOUND).verdict == "fault"
    assert faults == 0


# -- whole dumps -------------------------------------------------------------------------------------------------------

DUMPS = 12
PROMPTS, A_STEP, EPOCHS = 40, 6, 3
LIMIT = 60
"""New tokens of a rollout."""
FEW_TEXTS = (2, 30, 3000)
"""How many first turns a policy has for a prompt."""


def healthy(seed: int, name: str) -> list[Rollout]:
    """A run that each check is near to call faulty: a policy of few texts, or one that ends at once as often as is
    allowed; epochs that leave out their rest; failed, cancelled and cut rollouts."""
    rng, found, number = np.random.default_rng(seed), list[Rollout](), 0
    size, texts = int(rng.integers(2, 7)), FEW_TEXTS[seed % len(FEW_TEXTS)]
    for step in range(EPOCHS * (PROMPTS // A_STEP)):
        if step % (PROMPTS // A_STEP) == 0:
            order = rng.permutation(PROMPTS)
        for task, prompt in enumerate(order[A_STEP * (step % (PROMPTS // A_STEP)) :][:A_STEP].tolist()):
            rewards = rng.integers(0, 2, size).astype(float)
            own = [rollout(rng, step + 1, task, member, prompt, float(rewards[member])) for member in range(size)]
            for one in own:
                one.group = f"g{number}"
                _say(one, rng, prompt, texts)
                if name in ("trl", "verl", "chat") and rng.random() < 0.01:
                    one.text = ""
                _end(one, rng, seed)
            found, number = found + own, number + 1
    for member in range(6 * size):
        one = rollout(rng, step + 1, member // size, member % size, PROMPTS + member // size, 0.0)
        one.group, one.validation = f"g{number + member // size}", True
        found.append(one)
    with_advantages(found)
    if name == "verifiers":
        found = [one for one in found if rng.random() > 0.02]
    if name in ("verifiers", "slime", "squelch"):
        for one in found:
            one.failed = bool(rng.random() < 0.02)
    return found


@lru_cache
def _policy(prompt: int, texts: int) -> np.ndarray:
    """The probability of each of a prompt's texts, the same in every run."""
    policy = np.random.default_rng([prompt, texts]).gamma(0.3, size=texts) + 1e-12
    return policy / policy.sum()


def _say(one: Rollout, rng: np.random.Generator, prompt: int, texts: int) -> None:
    """Draws the first turn from the policy's texts for the prompt."""
    policy = _policy(prompt, texts)
    place = int(rng.choice(texts, p=policy))
    ids = [*np.random.default_rng([prompt, place]).integers(100, 6000, 9).tolist(), END]
    before = len(one.parts[0][0])
    one.parts[0] = (ids, True)
    one.drawn = [float(np.log(policy[place])) / len(ids)] * len(ids) + one.drawn[before:]


def _end(one: Rollout, rng: np.random.Generator, seed: int) -> None:
    """Some last turns are cut at the limit, and of every third run's, a stop string ends some."""
    ids, drawn = one.parts[-1][0], rng.random()
    before = len(one.after) - len(ids)
    if drawn < 0.05:
        ids, one.is_cut = rng.integers(100, 6000, LIMIT - before).tolist(), True
    elif drawn < 0.3 and seed % 3 == 0:
        ids = [*ids[:-1], 61, 62, 63 if rng.random() < 0.9 else 64]
    one.parts[-1] = (ids, True)
    one.drawn = [*one.drawn[:before], *(-rng.exponential(1.2, len(ids))).tolist()]


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITERS)
def test_dumps_of_healthy_runs_have_no_fault(name, tmp_path) -> None:
    data = jsonl(
        tmp_path / "prompts.jsonl", [{"prompt": f"Problem {n}: what is {n} and {n + 3}?"} for n in range(PROMPTS)]
    )
    claims = ["temperature=1", "top_p=1", "dynamic_sampling=false", f"max_tokens={LIMIT}"]
    faults = []
    for seed in range(DUMPS):
        path = WRITERS[name](tmp_path / str(seed), healthy(seed, name))
        found = check(path, claims=claims, data=data, format="areal" if name == "areal" else None)
        faults += [(seed, one.name, one.says) for one in found.faults]
    assert faults == []
