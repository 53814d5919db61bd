"""Files of each trainer that records ids, sampled by a tiny policy and scored under its checkpoints: faults that are
planted in the sampling are found and named, and clean files have none."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from squelch.kit.base.errors import UserError
from squelch.kit.checks.claims import Claims
from squelch.kit.checks.encoding import coder_of
from squelch.kit.checks.run import check
from squelch.kit.checks.weights.rows import WeightRows, cuts_tail
from squelch.kit.checks.weights.verdicts import NAMES
from squelch.kit.readers.formats import format_named
from squelch.kit.readers.weights import WeightsRule
from tests.kit.checks.bank import WRITERS, Rollout, run
from tests.kit.checks.tiny import LENGTH, play, save_training, step_of
from tests.kit.readers.trainer_files import jsonl
from tests.random_model import VOCABULARY

ROWS = 16
FORMS = ("nemo_rl", "slime", "verifiers")


@pytest.fixture(scope="module", params=FORMS)
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The name of a form, and the folder of its trainer's checkpoints."""
    folder, rule = tmp_path_factory.mktemp(request.param), rule_of(request.param)
    save_training(folder, rule.folder, rule.first)
    return request.param, folder


def rule_of(form: str) -> WeightsRule:
    found = format_named(form).weights
    assert found is not None
    return found


def files(folder: Path, trained: tuple[str, Path], late: int = 0, temperature: float = 1.0, rows: int = ROWS) -> Path:
    """Two steps in the trainer's form, sampled by the weights of `late` updates before."""
    form, saved = trained
    rule = rule_of(form)
    rollouts = []
    for step in (rule.first - rule.offset, rule.first - rule.offset + 1):
        number = rule.sampled_by(step) - late
        place = saved / ("base" if number < rule.first else rule.folder.format(number))
        found = play(place, rows, step, temperature)
        for k in range(rows):
            ids, drawn = found.completions[k].tolist(), found.log_probs[k].tolist()
            group = f"g{step * 10 + k // 4}"
            own = Rollout(step, k // 4, k % 4, group, "2+2?", found.prompts[k].tolist(), [(ids, True)], "four", k % 2)
            own.drawn = drawn
            rollouts.append(own)
    return WRITERS[form](folder, rollouts)


def verdicts(path: Path, trained: tuple[str, Path], **claims: object) -> dict[str, str]:
    found = check(path, checkpoints=trained[1], base=None, claims={"temperature": 1, "max_staleness": 0, **claims})
    return {one.name: one.verdict for one in found.results if one.name in NAMES}


def name_of_weights(form: str) -> str:
    return "recorded_versions" if form == "verifiers" else "stale_weights"


def test_files_of_a_clean_run_are_sound(trained: tuple[str, Path], tmp_path: Path) -> None:
    found = verdicts(files(tmp_path, trained), trained, dtype="float32")
    assert "fault" not in found.values()
    assert found[name_of_weights(trained[0])] == "sound"
    assert found["precision"] == found["logprobs_of_other_ids"] == "sound"
    assert ("engine_against_trainer" in found) == (trained[0] == "nemo_rl")


def test_files_of_a_run_whose_weights_came_late_are_stale(trained: tuple[str, Path], tmp_path: Path) -> None:
    path = files(tmp_path, trained, late=1)
    assert verdicts(path, trained)[name_of_weights(trained[0])] == "fault"
    if trained[0] != "verifiers":
        assert verdicts(path, trained, max_staleness=1)["stale_weights"] != "fault"


def test_files_of_a_run_at_another_temperature_say_so(trained: tuple[str, Path], tmp_path: Path) -> None:
    found = verdicts(files(tmp_path, trained, temperature=0.9), trained)
    assert found["temperature"] == "fault"
    assert found[name_of_weights(trained[0])] == "sound"
    assert (
        verdicts(files(tmp_path / "claimed", trained, temperature=0.9), trained, temperature=0.9)["temperature"]
        == "sound"
    )


def test_rows_that_cannot_be_scored_are_told(trained: tuple[str, Path], tmp_path: Path) -> None:
    form, saved = trained
    rollouts = run(steps=3)
    for one in rollouts:
        one.parts, one.drawn = [([VOCABULARY, 3], True)], [-1.0, -1.0]
    found = check(WRITERS[form](tmp_path, rollouts), checkpoints=saved)
    (note,) = [one for one in found.notes if one.startswith("not scored")]
    assert note.startswith("not scored, a token id outside the model's vocabulary: ")
    (one,) = [one for one in found.results if one.name == "stale_weights"]
    assert one.verdict == "unknown" and note in one.needs


def test_engine_and_trainer_are_compared_without_checkpoints_too(tmp_path: Path) -> None:
    """The bank's trainer is 0.003 nats below its engine; one at three times the temperature is another policy."""
    rollouts = run(tasks=8)
    healthy = check(WRITERS["nemo_rl"](tmp_path / "a", rollouts))
    assert {one.name: one.verdict for one in healthy.results}["engine_against_trainer"] == "sound"
    path = WRITERS["nemo_rl"](tmp_path / "b", rollouts)
    for file in path.glob("*.jsonl"):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        for row in rows:
            row["prev_logprobs"] = [[one / 3 - 0.5 for one in own] for own in row["prev_logprobs"]]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (off,) = [one for one in check(path).results if one.name == "engine_against_trainer"]
    assert off.verdict == "fault"
    assert "--checkpoints" in off.needs


def test_without_checkpoints_the_checks_of_weights_are_unknown(tmp_path: Path) -> None:
    rows = WeightRows(None, None, Claims())
    rows.offer({"prompt_ids": [1], "completion_ids": [2]}, "row 1", None)
    assert {one.verdict for one in rows.results()} == {"unknown"}
    assert all("--checkpoints" in one.needs for one in rows.results())
    with pytest.raises(UserError, match=r"step_\{\}"):
        WeightRows(tmp_path, None, Claims()).offer({"step": 3}, "row 1", format_named("nemo_rl"))
    (tmp_path / "step_2").mkdir()
    empty = WeightRows(tmp_path, None, Claims())
    empty.offer({"prompt_ids": [1], "completion_ids": [2], "step": 3}, "row 1", format_named("nemo_rl"))
    assert all("models in them" in one.needs for one in empty.results())


@pytest.mark.parametrize(
    "row",
    [
        {"prompt_ids": [1], "completion_ids": []},
        {"prompt_ids": [], "completion_ids": [1]},
        {"prompt_ids": [1], "completion_ids": [-1]},
        {"prompt_ids": [1], "completion_ids": ["x"]},
        {"prompt_ids": [1], "completion_ids": [2**40]},
        {"prompt": "no tokenizer", "completion": "is at hand"},
    ],
)
def test_rows_without_usable_ids_are_left_out(row: dict[str, object], tmp_path: Path) -> None:
    (tmp_path / "step_2").mkdir()
    rows = WeightRows(tmp_path, None, Claims())
    rows.offer({**row, "step": 1}, "row 1", format_named("nemo_rl"))
    assert {one.verdict for one in rows.results()} == {"unknown"}


@pytest.mark.parametrize("logprobs", [[None] * LENGTH, [0.5], ["x"] * LENGTH, "no list"])
def test_log_probabilities_that_are_none_are_not_recorded(logprobs: object, trained: tuple[str, Path]) -> None:
    form, saved = trained
    rows = WeightRows(saved, None, Claims(temperature=1.0, max_staleness=0))
    rule = rule_of(form)
    found = play(saved / "base", 8, 0)
    for k in range(8):
        ids = {"prompt_ids": found.prompts[k].tolist(), "completion_ids": found.completions[k].tolist()}
        row = {**ids, "step": rule.first - rule.offset, "logprobs": logprobs}
        rows.offer(row, f"row {k}", format_named(form))
    results = {one.name: one for one in rows.results()}
    assert results["recording_mode"].says == "No log-probabilities of the engine are recorded"


@pytest.mark.parametrize(
    ("claims", "expected"),
    [
        (Claims(), None),
        (Claims(top_p=1.0), None),
        (Claims(top_p=0.9), True),
        (Claims(top_k=50), True),
        (Claims(min_p=0.05), True),
        (Claims(top_p=1.0, top_k=-1, min_p=0.0), False),
    ],
)
def test_a_tail_is_whole_only_if_all_that_cut_it_are_known_to_be_off(claims: Claims, expected: bool | None) -> None:
    assert cuts_tail(claims) is expected


def save_chat_training(folder: Path) -> list[int]:
    """A trainer's folder with three checkpoints of a policy that has a tokenizer and a chat template; returns the ids
    of the prompt `MESSAGES`."""
    policy = Path(__file__).parents[3] / "earlier/policy"
    coder = coder_of(policy)
    assert coder is not None
    (rendered,) = coder.rendered([(MESSAGES, None)])
    assert rendered is not None
    model = AutoModelForCausalLM.from_pretrained(policy)
    for number in (1, 2, 3):
        target = folder / f"checkpoint-{number}"
        target.mkdir(exist_ok=True)
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            shutil.copy(policy / name, target / name)
        model.save_pretrained(target)
        step_of(model, number, 0.1)
    return rendered


MESSAGES = [{"role": "user", "content": "left right up"}]


@pytest.mark.parametrize("has_mask", [False, True])
def test_what_a_tool_says_within_a_completion_is_not_taken_for_sampled(tmp_path: Path, has_mask: bool) -> None:
    """What stands after the policy's turn fits other weights better: they wrote it."""
    fed = save_chat_training(tmp_path)
    coder = coder_of(tmp_path / "checkpoint-1")
    assert coder is not None
    end = coder.tokenizer.encode("<|end|>", add_special_tokens=False).ids
    rows = []
    for step in (1, 2):
        own = play(tmp_path / f"checkpoint-{step}", ROWS, step, prompt=fed)
        before = torch.cat([own.prompts, own.completions, torch.tensor([end] * ROWS)], 1)
        told = play(tmp_path / f"checkpoint-{step + 1}", ROWS, step, prompt=before)
        for said, after in zip(own.completions.tolist(), told.completions.tolist(), strict=True):
            row = {"prompt": MESSAGES, "completion_ids": [*said, *end, *after], "step": step}
            rows.append(row | ({"tool_mask": [1] * len(said) + [0] * len(end + after)} if has_mask else {}))
    path = jsonl(tmp_path / "ids.jsonl", rows)
    results = {one.name: one for one in check(path, checkpoints=tmp_path, claims={"temperature": 1}).results}
    assert results["stale_weights"].verdict == "sound", results["stale_weights"].says
    assert results["temperature"].verdict != "fault"


@pytest.mark.parametrize("as_text", [False, True])
def test_ids_that_a_reward_function_kept_are_scored_after_their_prompts_are_rendered(
    tmp_path: Path, as_text: bool
) -> None:
    """As TRL's users keep them: prompts as text or messages, completions as ids, and the checkpoint's number."""
    rendered = save_chat_training(tmp_path)
    coder = coder_of(tmp_path / "checkpoint-1")
    assert coder is not None
    prompt: Any = "left right up" if as_text else MESSAGES
    fed = coder.tokenizer.encode("left right up").ids if as_text else rendered
    found = {}
    for name, late in (("clean", 0), ("stale", 1)):
        rows = []
        for step in (2, 3):
            played = play(tmp_path / f"checkpoint-{step - late}", ROWS, step, prompt=fed)
            own = [{"prompt": prompt, "completion_ids": ids.tolist(), "step": step} for ids in played.completions]
            rows += own
        path = jsonl(tmp_path / f"{name}.jsonl", rows)
        results = check(path, checkpoints=tmp_path, claims={"temperature": 1}).results
        found[name] = {one.name: one.verdict for one in results}["stale_weights"]
    assert found == {"clean": "sound", "stale": "fault"}


def test_a_run_of_squelch_that_vllm_sampled_in_float32_fits_its_own_weights() -> None:
    """`tests/earlier`: step 1 was sampled by the initial policy, and step 2 by weights that were not saved."""
    run = Path(__file__).parents[3] / "earlier"
    found = check(run / "run/groups", checkpoints=run / "run/checkpoints", base=run / "policy")
    results = {one.name: one for one in found.results if one.name in NAMES}
    verdicts = {name: one.verdict for name, one in results.items()}
    sound = dict.fromkeys(("stale_weights", "recording_mode", "precision", "logprobs_of_other_ids"), "sound")
    assert verdicts == sound | {"temperature": "unknown"}
    assert results["precision"].size is not None
    assert results["precision"].size.value < 1e-6
    assert results["temperature"].size is not None
    assert results["temperature"].size.value == pytest.approx(1, abs=0.1)


def test_without_torch_the_missing_installation_is_named(
    tmp_path: Path, trained: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = files(tmp_path, trained)
    monkeypatch.delitem(sys.modules, "squelch.kit.checks.weights.scored", raising=False)
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(ValueError, match=r"scoring rows under weights needs .*torch.*install 'squelch-rl\[score\]'"):
        check(path, checkpoints=trained[1])
