"""What a run claims is read from options and from the trainer's settings beside its files."""

from pathlib import Path

import pytest

from squelch.kit.base.errors import UserError
from squelch.kit.checks.claims import claims_of, claims_result, given_claims
from squelch.kit.checks.run import check
from tests.kit.checks.bank import run, verl
from tests.kit.readers.trainer_files import jsonl


def settings(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return folder


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (".hydra/config.yaml", "actor_rollout_ref:\n  rollout:\n    n: 4\n    temperature: 0.7\n    top_p: 0.9\n"),
        ("config.yaml", "gconfig:\n  n_samples: 4\n  temperature: 0.7\n  top_p: 0.9\n"),
        (
            "config.yaml",
            "grpo:\n  num_generations_per_prompt: 4\npolicy:\n  generation:\n    temperature: 0.7\n    top_p: 0.9\n",
        ),
        ("orch.toml", "rollouts_per_example = 4\n[sampling]\ntemperature = 0.7\ntop_p = 0.9\n"),
    ],
)
def test_the_settings_of_each_trainer_are_found_above_its_files(tmp_path, name, text) -> None:
    place = settings(tmp_path, name, text) / "a" / "b"
    place.mkdir(parents=True)
    found = claims_of(place, {})
    assert found.known == {"group_size": 4, "temperature": 0.7, "top_p": 0.9}
    assert claims_result(found).says == (
        f"The run claims: group_size 4 ({Path(name).name}), temperature 0.7 ({Path(name).name}), top_p 0.9 "
        f"({Path(name).name})"
    )
    assert claims_of(place, {"temperature": 1.0}).temperature == 1.0, "an option has precedence"


def test_settings_that_cannot_be_read_claim_nothing(tmp_path) -> None:
    for text in ("a: [", "\x00", "- 1\n- 2\n", "gconfig: {n_samples: many}"):
        assert claims_of(settings(tmp_path, "config.yaml", text), {}).known == {}
    assert claims_result(claims_of(tmp_path, {})).verdict == "unknown"


def test_an_unknown_claim_or_value_is_refused_with_the_names() -> None:
    assert given_claims(["dynamic_sampling=false", "reward_weights=1,0.5"]) == {
        "dynamic_sampling": False,
        "reward_weights": (1.0, 0.5),
    }
    with pytest.raises(UserError, match=r"Did you mean 'temperature'\?"):
        given_claims(["temprature=1"])
    for word in ("group_size=four", "top_p", "dynamic_sampling=perhaps"):
        with pytest.raises(UserError, match="--claim"):
            given_claims([word])


def test_a_group_size_that_is_claimed_and_not_kept_is_a_fault(tmp_path) -> None:
    found = check(verl(tmp_path, run()), claims={"group_size": 8})
    (fault,) = found.faults
    assert fault.name == "group_sizes" and fault.count == fault.of == 18
    assert check(verl(tmp_path, run()), claims=["group_size=2"]).faults == [], "a prompt twice in a step"


def test_bad_files_are_a_value_error_that_names_them(tmp_path) -> None:
    with pytest.raises(ValueError, match="nothing"):
        check(tmp_path / "nothing.jsonl")
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(ValueError, match="holds no rows of a training"):
        check(tmp_path / "empty.jsonl")


@pytest.mark.parametrize(
    "ids", [["a", "b"], [1.5, 2], [-1, 2], [[1], [2]], [1, [2]], [10**30, 1], [2**40, 1], [None, 1], [True, "x"]]
)
def test_ids_that_are_none_are_refused_with_their_row(tmp_path, ids) -> None:
    row = {"tokens": ids, "response": "x", "response_length": 1, "prompt": "p", "reward": 1.0, "group_index": 0}
    path = jsonl(tmp_path / "rows.jsonl", [row])
    with pytest.raises(ValueError, match=r"row 1: its token ids must be a list of whole numbers"):
        check(path)


def test_settings_as_deep_as_they_are_long_claim_nothing(tmp_path) -> None:
    settings(tmp_path, "config.toml", ".".join(["a"] * 50_000) + " = 1\n")
    settings(tmp_path, "orch.toml", "a = " + "[" * 50_000)
    assert claims_of(tmp_path, {}).known == {}


@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        ("config.yaml", "async_training: {staleness_threshold: 0.5}", {"max_staleness": 1}),
        (
            "config.yaml",
            "async_training: {staleness_threshold: 0.5, trigger_parameter_sync_step: 4}",
            {"max_staleness": 7},  # a sync late, and up to three steps after the next
        ),
        ("config.yaml", "gconfig: {max_new_tokens: 512, stop: [</a>]}", {"max_tokens": 512, "stop_strings": True}),
        ("config.yaml", "policy: {generation: {max_new_tokens: '${x}', stop_strings: null}}", {}),
        ("config.yaml", "gconfig: {max_new_tokens: 0, stop: []}", {"stop_strings": False}),
        ("orch.toml", "max_off_policy_steps = inf", {}),
        ("orch.toml", "max_off_policy_steps = nan", {}),
        ("config.yaml", "gconfig: {temperature: 0, top_p: -1, n_samples: 0.5}", {}),
        ("config.yaml", "gconfig: {temperature: .nan, top_p: .inf, n_samples: .inf}", {}),
        (
            "orch.toml",
            "[orchestrator.eval.sampling]\ntemperature = 0.3\n[orchestrator.train.sampling]\ntemperature = 0.7\n",
            {"temperature": 0.7},
        ),
    ],
)
def test_settings_that_no_training_can_have_claim_nothing_and_shares_are_steps(tmp_path, name, text, wanted) -> None:
    assert claims_of(settings(tmp_path, name, text), {}).known == wanted


@pytest.mark.parametrize(
    "word",
    ["temperature=0", "temperature=nan", "top_p=-1", "top_p=1.5", "min_p=2", "group_size=0.5", "max_staleness=inf",
     "reward_weights=1,nan"],
)  # fmt: skip
def test_a_claim_out_of_its_range_is_refused(word) -> None:
    with pytest.raises(UserError, match=f"--claim {word}: .* is no value of {word.partition('=')[0]}"):
        given_claims([word])


def test_claims_of_a_mapping_are_values(tmp_path) -> None:
    given = {"reward_weights": [1, 0.5], "group_size": 4, "dynamic_sampling": False}
    found = check(verl(tmp_path, run()), claims=given).claims.known
    assert found == {"reward_weights": (1.0, 0.5), "group_size": 4, "dynamic_sampling": False}
    for bad in ({"temprature": 1}, {"group_size": None}, {"group_size": [4]}):
        with pytest.raises(ValueError, match="--claim"):
            check(tmp_path / "verl", claims=bad)


@pytest.mark.parametrize("value", [None, "x", [], {}, [1, "x"], [10**400, -1.0], [[1]], "NaN", 10**400, {"a": []}])
@pytest.mark.parametrize(
    "key", ["rollout_log_probs", "loss_mask", "reward", "group_index", "weight_versions", "status"]
)
def test_odd_values_are_checked_or_refused(tmp_path, key, value) -> None:
    row = {"tokens": [1, 2, 3], "response": "x", "response_length": 2, "prompt": "p", "reward": 1.0, "group_index": 0}
    path = jsonl(tmp_path / "rows.jsonl", [row, {**row, key: value}, row])
    try:
        assert check(path).rows >= 2
    except ValueError as error:
        assert "row 2" in str(error)
