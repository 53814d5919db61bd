"""`squelch score --scorer` and `squelch.score(..., scorer=True)`: retrieval, a bound and questions, but no regime."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

import squelch
from squelch.cluster.cli import main
from squelch.kit.api.completions import SUMMARY
from squelch.kit.api.evidence import EvidenceResult
from squelch.kit.api.samples import Reasonings
from squelch.kit.commands.score_evidence import evidence_json, evidence_text
from squelch.kit.diagnosis.evidence import DEPENDS, NOT_SHOWN, evidence_of
from squelch.kit.diagnosis.proxies import usable
from tests.kit.commands.test_score import jsonl, output, refusal, rows, words
from tests.kit.commands.test_score_options import spoken, stranger

__all__ = ["rows", "stranger", "words"]  # fixtures


def test_another_model_gives_retrieval_and_questions_and_no_regime(tiny_policy, rows, tmp_path, capsys) -> None:
    file, by = jsonl(tmp_path / "r.jsonl", rows), ("--scorer", str(tiny_policy))
    found = output(capsys, "score", file, *by)
    assert found["verdict"] in (DEPENDS, NOT_SHOWN) and not {"regime", "mi_est", "templates"} & found.keys()
    assert (found["num_prompts"], found["num_samples"], found["retrieval_chance"]) == (7, 21, 1 / 7)
    assert any("whatever its reward" in each and "Reasonings of a prompt: 3" in each for each in found["questions"])
    model = AutoModelForCausalLM.from_pretrained(tiny_policy, dtype=torch.float32)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tiny_policy)
    live = squelch.score(
        model, tokenizer, [row["prompt"] for row in rows], [row["completion"] for row in rows], scorer=True
    )
    assert live.verdict == found["verdict"] and list(live.questions) == found["questions"]
    assert live.metrics()["retrieval_accuracy"] == pytest.approx(found["retrieval_accuracy"])
    shown = evidence_of(usable(live.matrix, np.ones(21), live.samples.source))
    assert live.metrics()["retrieval_accuracy_p_value"] == shown.null.p_value
    assert main(["score", file, *by]) == 0
    text = capsys.readouterr().out
    assert "which did not sample it" in text and found["verdict"] in text
    assert "regime" not in text and "template" not in text
    own = live.samples.source
    shown = "\n".join(
        evidence_text(replace(live, evidence=evidence_of(usable(9.0 * np.eye(7)[own], np.ones(21), own))))
    )
    assert f"{DEPENDS}, if the answer to each question is yes" in shown and all(
        each in shown for each in live.questions
    )


def test_the_bound_is_printed_from_eight_prompts_on() -> None:
    matrix, own = 3.0 * np.eye(16) + np.random.default_rng(0).normal(size=(16, 16)), np.arange(16)
    samples = Reasonings([own] * 16, [own] * 16, ["z"] * 16, own, own)
    shown = EvidenceResult(matrix, samples, evidence_of(usable(matrix, np.ones(16), own)), ("Is it?",), ())
    bound, printed = shown.evidence.bound, evidence_json(shown)["bound"]
    assert bound is not None and f"{bound.value:.4f}" in "\n".join(evidence_text(shown))
    assert (printed["nats"], printed["prompts"]) == (bound.value, 8)
    few = replace(shown, evidence=evidence_of(usable(matrix[:7, :7], np.ones(7), np.arange(7))))
    assert few.evidence.bound is None and evidence_json(few)["bound"] is None
    assert "MI, at least" not in "\n".join(evidence_text(few))


def test_a_model_that_does_not_read_the_prompts_shows_nothing(tiny_policy, rows, tmp_path, capsys) -> None:
    same = [{**row, "completion": rows[2]["completion"]} for row in rows]
    found = output(capsys, "score", jsonl(tmp_path / "r.jsonl", same), "--scorer", str(tiny_policy))
    assert found["verdict"] == NOT_SHOWN and found["null"]["retrieval_accuracy"]["p_value"] == 1.0


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--turns", "all"), "would not be independent"),
        (("--temperature", "0.7"), "--temperature is about the policy's own weights"),
        (("--no-links",), "--no-links is about the policy's own weights"),
        (("--compat", "ragen"), "--compat is about"),
        (("--half-width", "0.1"), "--half-width is about"),
        (("--force",), "--force is about"),
        (("--templates", "3"), "--templates is about"),
    ],
)
def test_flags_about_the_policys_weights_are_refused(flags, says, tiny_policy, rows, tmp_path, capsys) -> None:
    file, by = jsonl(tmp_path / "r.jsonl", rows), ("--scorer", str(tiny_policy))
    assert says in refusal(capsys, "score", file, *by, *flags)
    assert "--out is about" in refusal(capsys, "score", file, *by, "--out", str(tmp_path / "m.npz"))


def test_a_flag_names_the_folder_that_cannot_be_used(rows, tmp_path, capsys) -> None:
    file = jsonl(tmp_path / "r.jsonl", rows)
    assert refusal(capsys, "score", file, "--scorer", str(tmp_path / "none")).startswith(
        f"squelch: --scorer {tmp_path}"
    )
    with pytest.raises(SystemExit):
        main(["score", file, "--scorer", "a", "--model", "b"])
    assert "not allowed with argument" in capsys.readouterr().err


def test_weights_that_cannot_have_sampled_the_text_lead_to_the_scorer(stranger, rows, tmp_path, capsys) -> None:
    file = jsonl(tmp_path / "r.jsonl", rows)
    assert f"without its weights, --scorer {stranger}" in refusal(capsys, "score", file, "--model", str(stranger))
    assert output(capsys, "score", file, "--scorer", str(stranger))["verdict"] in (DEPENDS, NOT_SHOWN)


def test_a_summary_is_no_reasoning(tiny_policy, rows, tmp_path, capsys) -> None:
    """As OpenAI's Responses, OpenRouter's details and inspect_ai's redacted blocks hold it."""
    said: list[dict[str, Any]] = [row | {"completion": row["completion"][:1]} for row in spoken(rows)]
    blocks = [
        {"content": [{"type": "reasoning", "text": "short", "summary": [{"type": "summary_text", "text": "short"}]}]},
        {"content": "hello", "reasoning": "short", "reasoning_details": [{"type": "reasoning.summary"}]},
        {"content": [{"type": "reasoning", "reasoning": "gAAAAB", "redacted": True}]},
    ]
    for row, block in zip(said, blocks, strict=False):
        row["completion"] = [{"role": "assistant", **block}]
    kept = [{"type": "reasoning", "text": rows[3]["completion"], "summary": []}]
    said[3]["completion"] = [{"role": "assistant", "content": kept}]
    for flag in ("--scorer", "--model"):
        found = output(capsys, "score", jsonl(tmp_path / "r.jsonl", said), flag, str(tiny_policy))
        assert found["excluded"][SUMMARY] == 3, json.dumps(found["excluded"])


def test_arguments_about_the_policys_weights_are_refused(tiny_policy, rows) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_policy, dtype=torch.float32)
    tokenizer: Any = PreTrainedTokenizerFast.from_pretrained(tiny_policy)
    given = [row["prompt"] for row in rows], [row["completion"] for row in rows]
    score: Any = squelch.score
    with pytest.raises(ValueError, match="would not be independent"):
        score(model, tokenizer, *given, scorer=True, turns="all")
    for idle in ({"temperature": 0.5}, {"compat": "ragen"}, {"links": False}, {"force": True}):
        with pytest.raises(ValueError, match=f"`{next(iter(idle))}` is about the model that sampled"):
            score(model, tokenizer, *given, scorer=True, **idle)
