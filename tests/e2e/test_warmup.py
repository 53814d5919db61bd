"""A real warm-up, over Ray, the learner's rank and a rollout worker. What it decides is shown on fakes
(tests/cluster/loop/test_warming.py), its steps in tests/learner/test_imitation.py."""

import json
from pathlib import Path

import pytest

from squelch.kit.models.model_folder import check_model_folder
from tests.e2e.support import Run, children, wait_gone

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1000)]


def test_a_model_is_warmed_up_on_demonstrations_and_says_what_it_learned(tiny_policy: Path, tmp_path: Path) -> None:
    """The tiny policy after its very short warm-up knows little, so that a few demonstrations show."""
    out = tmp_path / "warm"
    settings = {"demonstrations": 96, "batch": 32, "held_out": 16, "check_every": 100, "tasks": 8, "samples": 4}
    settings |= {"learning_rate": 1e-3, "epochs": 2}
    run = Run(
        *("warmup", str(tiny_policy), str(out), "--recipe", "frozenlake"),
        *(f"model.warmup.{name}={value}" for name, value in settings.items()),
        *("learner.ranks=1", "rollout.kv_cache_gib=0.25", "rollout.max_num_seqs=64", "scorer.enabled=false"),
    )
    run.until(lambda line: line.startswith("warm-up    1/6"))
    started = children(run.process.pid)
    assert run.finish() == 0, run.text
    assert not wait_gone(started)
    check_model_folder(out)
    found = json.loads((out / "squelch_warmup.json").read_text())
    before, after = found["checks"][0], found["checks"][-1]
    assert after["held_out_loss"] < before["held_out_loss"] - 0.05, run.text
    assert f"done: {out}" in run.text and "true reasonings" in run.text
    changed = (tiny_policy / "model.safetensors").read_bytes() != (out / "model.safetensors").read_bytes()
    assert changed and (tiny_policy / "tokenizer.json").read_bytes() == (out / "tokenizer.json").read_bytes()
