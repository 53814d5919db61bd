"""Rows of a tiny policy, sampled by it and scored under its saved checkpoints: clean runs and planted faults."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import Qwen2ForCausalLM

from squelch.kit.base.errors import UserError
from squelch.kit.checks.weights.data import HEAD_MASS, Candidate, Sample, Scores, WeightClaims
from squelch.kit.checks.weights.likelihood import NODE_TEMPERATURES
from squelch.kit.checks.weights.scored import PICTURES, TOO_LONG, UNKNOWN_ID, candidates_in, score
from squelch.kit.checks.weights.verdicts import check_weights
from squelch.kit.readers.weights import WeightsRule
from tests.kit.checks.tiny import LENGTH, play, save_training
from tests.random_model import VOCABULARY, random_model

RULE = WeightsRule("checkpoint-{}", -1)
ROWS = 16


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A trainer's folder."""
    folder = tmp_path_factory.mktemp("run")
    save_training(folder)
    return folder


def played(folder: Path, step: int, seed: int, temperature: float = 1.0, rows: int = ROWS) -> list[Sample]:
    """Rows of a step, sampled by the model in the folder."""
    found, claimed = play(folder, rows, seed, temperature), RULE.sampled_by(step)
    return [
        Sample(
            row=f"step {step}, row {k}",
            step=step,
            rollout=(step, k),
            prompt=found.prompts[k].numpy(),
            completion=found.completions[k].numpy(),
            claimed=(claimed, claimed),
            engine=found.log_probs[k].numpy() if seed == RECORDED else None,
        )
        for k in range(rows)
    ]


IDS, RECORDED = 1, 2
"""Seeds of rows without and with recorded log-probabilities."""


def found(samples: list[Sample], candidates: list[Candidate], temperature: float = 1.0) -> dict[str, str]:
    claims = WeightClaims(temperature, False, "float32")
    results = check_weights(score(samples, candidates, temperature), claims)
    return {one.name: one.verdict for one in results}


@pytest.mark.parametrize("how", [IDS, RECORDED])
def test_a_clean_run_has_no_fault_and_one_whose_weights_came_a_step_late_is_stale(run: Path, how: int) -> None:
    candidates = candidates_in(run, RULE, run / "base")
    assert [(one.number, one.initial) for one in candidates] == [(0, True), (1, False), (2, False), (3, False)]
    clean = found([row for step in (2, 3) for row in played(run / f"checkpoint-{step - 1}", step, how)], candidates)
    assert "fault" not in clean.values()
    assert clean["stale_weights"] == "sound"
    late = [*played(run / "base", 2, how), *played(run / "checkpoint-1", 3, how)]
    assert found(late, candidates)["stale_weights"] == "fault"


@pytest.mark.parametrize("how", [IDS, RECORDED])
def test_another_temperature_is_found_and_is_no_stale_checkpoint(run: Path, how: int) -> None:
    candidates = candidates_in(run, RULE, run / "base")[:2]
    rows = 160 if how == IDS else ROWS
    hot = found(played(run / "checkpoint-1", 2, how, temperature=0.9, rows=rows), candidates)
    assert hot["temperature"] == "fault"
    assert hot["stale_weights"] != "fault"


@pytest.mark.parametrize("how", [IDS, RECORDED])
def test_an_adapter_that_the_engine_did_not_apply_is_found(run: Path, tmp_path: Path, how: int) -> None:
    from peft import LoraConfig, get_peft_model

    base = Qwen2ForCausalLM.from_pretrained(run / "base")
    torch.manual_seed(1)
    adapted = get_peft_model(base, LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"]))
    with torch.no_grad():
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.3)
    adapted.save_pretrained(tmp_path / "checkpoint-1")
    adapted.merge_and_unload().save_pretrained(tmp_path / "merged")
    candidates = candidates_in(tmp_path, RULE, run / "base")
    assert [(one.adapter, one.initial) for one in candidates] == [(False, True), (True, False)]
    clean = found(played(tmp_path / "merged", 2, how), candidates)
    assert "fault" not in clean.values()
    assert clean["adapter_not_applied"] == "sound"
    without = found(played(run / "base", 2, how), candidates)
    assert (without["adapter_not_applied"], without["stale_weights"]) == ("fault", "unknown")


def test_scores_are_those_of_a_plain_forward(run: Path) -> None:
    (sample,) = played(run / "base", 1, RECORDED, rows=1)
    mask = np.arange(LENGTH) % 3 > 0
    masked = Sample(sample.row, 1, 0, sample.prompt, sample.completion, sampled=mask)
    (own, other), scores = scored_both(run, masked)
    with torch.inference_mode():
        ids = torch.from_numpy(np.concatenate([sample.prompt, sample.completion]))[None]
        logits = Qwen2ForCausalLM.from_pretrained(run / "base").eval()(ids).logits[0, 3:-1].double().numpy()[mask]
    targets = sample.completion[mask]
    for values, temperatures in ((own.nodes, NODE_TEMPERATURES), (own.exact, scores.temperatures)):
        for found_, one in zip(values, temperatures, strict=True):
            expected = logits / one - np.log(np.exp(logits / one).sum(axis=1, keepdims=True))
            assert found_ == pytest.approx(expected[np.arange(len(targets)), targets], abs=2e-4)
    masses = np.exp(logits / 0.7)
    masses /= masses.sum(axis=1, keepdims=True)
    above = [row[row > row[target]].sum() for row, target in zip(masses, targets, strict=True)]
    assert own.above == pytest.approx(np.array(above), abs=1e-4)
    plain = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    for row, target, head, place in zip(plain, targets, own.head, own.place, strict=True):
        order = np.argsort(-row)
        inside = [int(one) for one in order[:8] if row[row > row[one]].sum() < HEAD_MASS]
        assert np.isfinite(head).sum() == len(inside)
        assert place == (inside.index(int(target)) if target in inside else -1)
        assert np.exp(head[: len(inside)]) == pytest.approx(row[inside] / row[order[0]], rel=1e-3)
    assert np.array_equal(np.isfinite(own.head), np.isfinite(other.head))


def scored_both(run: Path, sample: Sample) -> tuple[Iterator, Scores]:
    candidates = candidates_in(run, RULE, run / "base")[:2]
    scores = score([sample], candidates, 0.7)
    return (row[0] for row in scores.tokens), scores


def test_rows_that_no_model_could_have_sampled_are_left_out_and_counted(run: Path) -> None:
    good = Sample("good", 1, 0, np.array([1]), np.array([2, 3]))
    long = Sample("long", 1, 1, np.zeros(40, dtype=int), np.zeros(40, dtype=int))
    unknown = Sample("unknown", 1, 2, np.array([1]), np.array([VOCABULARY]))
    scores = score([long, good, unknown], candidates_in(run, RULE))
    assert [one.row for one in scores.samples] == ["good"]
    assert scores.left_out == {TOO_LONG: 1, UNKNOWN_ID: 1}


def test_rows_that_show_pictures_are_left_out_and_counted(tmp_path: Path) -> None:
    model = random_model()
    model.config.image_token_id = 5
    model.save_pretrained(tmp_path / "checkpoint-1")
    seen = [Sample(f"{prompt}", 1, k, np.array(prompt), np.array([2, 3])) for k, prompt in enumerate(([1, 5], [1, 4]))]
    scores = score(seen, candidates_in(tmp_path, RULE))
    assert [one.row for one in scores.samples] == ["[1, 4]"] and scores.left_out == {PICTURES: 1}


def test_a_folder_that_is_no_model_is_the_users_error(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    broken = Candidate(1, "checkpoint-1", tmp_path)
    with pytest.raises(UserError, match=str(tmp_path)):
        score([Sample("good", 1, 0, np.array([1]), np.array([2, 3]))], [broken])


def test_a_checkpoint_is_found_below_its_folder_and_one_without_a_model_is_left_out(run: Path, tmp_path: Path) -> None:
    (tmp_path / "checkpoint-1" / "actor").mkdir(parents=True)
    (tmp_path / "checkpoint-1" / "actor" / "model").symlink_to(run / "base")
    (tmp_path / "checkpoint-2").mkdir()
    deep = tmp_path / "checkpoint-3" / "actor"
    Qwen2ForCausalLM.from_pretrained(run / "base").save_pretrained(deep)
    assert [(one.number, one.path) for one in candidates_in(tmp_path, RULE)] == [(3, deep)]
