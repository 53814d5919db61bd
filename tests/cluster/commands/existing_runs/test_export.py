"""`squelch export` writes a folder that plain transformers loads, with a card made from the run."""

import os
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from squelch.cluster.cli import main
from squelch.cluster.commands.existing_runs.export import _regime
from tests.earlier import lay


def _umask() -> int:
    os.umask(now := os.umask(0))
    return now


@pytest.mark.parametrize("dtype", [None, "bfloat16"])
def test_an_exported_checkpoint_is_loaded_by_plain_transformers(tmp_path: Path, capsys, dtype: str | None) -> None:
    run, target = lay(tmp_path), tmp_path / "policy-of-mine"
    more = ["--dtype", dtype] if dtype else []
    assert main(["export", str(run), str(target), "--checkpoint", "last", *more]) == 0
    said = capsys.readouterr().out
    assert "run at step 2" in said and f"hf upload OWNER/policy-of-mine {target}" in said
    source = run / "checkpoints" / "step-2" / "hf"
    assert {path.stat().st_mode & 0o777 for path in target.iterdir()} == {0o666 & ~_umask()}, "others may read it"
    own, theirs = (AutoModelForCausalLM.from_pretrained(one, dtype="auto") for one in (target, source))
    assert own.dtype == (torch.bfloat16 if dtype else theirs.dtype)
    ids = AutoTokenizer.from_pretrained(target)("up", return_tensors="pt").input_ids
    assert ids.tolist() == AutoTokenizer.from_pretrained(source)("up", return_tensors="pt").input_ids.tolist()
    with torch.no_grad():
        assert torch.allclose(own(ids).logits.float(), theirs(ids).logits, atol=0.05 if dtype else 0.0)
    assert main(["export", str(run), str(target)]) == 2 and "exists" in capsys.readouterr().err


def test_the_card_has_settings_success_with_intervals_and_the_regime(tmp_path: Path) -> None:
    run, target = lay(tmp_path), tmp_path / "out"
    assert main(["export", str(run), str(target), "--checkpoint", "2"]) == 0
    card = (target / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: transformers\n") and "# run, step 2" in card
    assert "learner.optimizer.learning_rate: " in card and "Regime at the last scored step: `template`." in card
    assert "- step 0: 0.125, 95% [0.022, 0.471]\n- step 2: " in card


def test_an_export_asks_for_turns_as_the_run_did(tmp_path: Path) -> None:
    run, target = lay(tmp_path), tmp_path / "out"
    assert main(["export", str(run), str(target), "--checkpoint", "2"]) == 0
    asked = [{"role": "user", "content": "up"}]
    prompt = AutoTokenizer.from_pretrained(target).apply_chat_template(
        asked, add_generation_prompt=True, tokenize=False
    )
    assert (
        prompt.endswith("<|assistant|><think>") and "ends a prompt with `<think>`" in (target / "README.md").read_text()
    )
    found = GenerationConfig.from_pretrained(target)
    assert (found.temperature, found.top_k, found.eos_token_id) == (1.0, 0, [2])


def test_a_regime_is_that_of_the_scored_step_whichever_line_has_it() -> None:
    lines = [{"step": 1}, {"step": 2, "scorer/step": 1.0, "first_turn/regime/template": 1.0}]
    assert (_regime(lines, 1), _regime(lines, 0)) == ("template", None)


@pytest.mark.parametrize("checkpoint", ["7", "smollm2"])
def test_a_run_without_a_checkpoint_has_nothing_to_export(tmp_path: Path, capsys, checkpoint: str) -> None:
    run = lay(tmp_path)
    assert main(["export", str(run), str(tmp_path / "out"), "--checkpoint", checkpoint]) == 2
    assert "has best, last, initial and steps [2]" in capsys.readouterr().err and not (tmp_path / "out").exists()
