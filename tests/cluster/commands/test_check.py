"""`squelch check` prints what is wrong with a run or with other trainers' files; its exit code says if that is bad."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from squelch.cluster.cli import main
from squelch.kit.archive.writer import Archive
from squelch.kit.findings.finder import Finding
from squelch.kit.findings.view import Example
from squelch.kit.findings.words import plain
from tests.kit.checks.bank import by_step, run, verl


def a_run(folder: Path, **metrics: float) -> Path:
    """A run of an earlier release with 8 steps of these metrics."""
    folder.mkdir()
    (folder / "config.yaml").write_text("seed: 0\n")
    archive = Archive(folder)
    for step in range(1, 9):
        archive.metrics(step, {"total_steps": 8, "success": 0.0, "seconds/step": 1.0, **metrics})
    archive.close()
    return folder


def completions(folder: Path, *, right: float, steps: int = 3) -> Path:
    """Files as TRL writes them: 8 prompts of 4 completions a step, of which a share is right."""
    folder.mkdir()
    for step in range(1, steps + 1):
        rows = [
            {
                "step": step,
                "prompt": f"What is {prompt} + {step}?",
                "completion": f"The sum of {prompt} and {step} is what I give here: number {place} of them all",
                "right": float(place < 4 * right),
                "advantage": 0.0,
            }
            for prompt in range(8)
            for place in range(4)
        ]
        path = folder / f"completions_{step:05d}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def checked(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["check", *words])
    return code, capsys.readouterr().out


def test_a_format_of_a_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = a_run(tmp_path / "run")
    assert main(["check", str(folder), "--format", "trl"]) == 2
    assert "--format is for files of other trainers" in capsys.readouterr().err


def test_a_run_with_a_critical_finding_exits_with_1_and_its_row_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = a_run(tmp_path / "run")
    example = Example("000002-001", "agent_error: no connection")
    found = Finding("trajectories_fail", "critical", 1, 2, "4 trajectories failed", examples=(example,))
    (folder / "findings.json").write_text(json.dumps({"findings": [plain(found, "squelch inspect runs/x")]}))
    code, text = checked(capsys, str(folder))
    assert code == 1 and "1 finding, 1 critical\n" in text and "trajectories_fail (critical, since step 1)" in text
    assert "example: 000002-001: agent_error: no connection" in text and "    squelch inspect runs/x" in text
    code, text = checked(capsys, str(folder), "--json")
    (one,) = json.loads(text)["findings"]
    assert code == 1 and one["command"] == "squelch inspect runs/x" and one["page"] == "docs/guide/agents.md"
    assert checked(capsys, str(folder), "--ignore", "trajectories_fail")[0] == 0


def test_a_text_that_a_run_repeats_is_shown_from_its_archive(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(Path(__file__).parents[2] / "earlier" / "run", tmp_path / "run"))
    for step, shown in ((1, "</think> <answer>"), (9, "the same text")):
        example = Example("000001-000 0", "the same text")
        found = Finding("one_text", "warning", 1, step, "One text was sampled", examples=(example,))
        (folder / "findings.json").write_text(json.dumps({"findings": [plain(found)]}))
        code, text = checked(capsys, str(folder))
        (line,) = [line for line in text.splitlines() if "example: 000001-000 0: " in line]
        assert code == 0 and shown in line


def test_a_run_of_an_earlier_release_is_judged_by_its_metrics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    failing = {"trajectories": 0.0, "trajectories_failed": 4.0, "failures/agent_error": 4.0}
    code, text = checked(capsys, str(a_run(tmp_path / "failing", **failing)))
    assert code == 1 and text.startswith(f"{tmp_path}/failing: 1 finding, 1 critical")
    assert "4 trajectories failed, 100% of the step, all with agent_error" in text
    assert "This run is of a release without findings" in text
    unsolved = {"tasks_all_fail": 1.0, "tasks_all_succeed": 0.0, "zero_variance_groups": 8.0, "num_groups": 8.0}
    code, text = checked(capsys, str(a_run(tmp_path / "unsolved", **unsolved)))
    assert code == 0 and "none_solved (warning, since step 1)" in text, "8 steps suffice where there are no more"
    code, text = checked(capsys, str(a_run(tmp_path / "well", success=0.5)))
    assert code == 0 and text.startswith(f"{tmp_path}/well: 0 findings")


def test_other_trainers_files_are_followed_through_their_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, text = checked(capsys, str(completions(tmp_path / "constant", right=0.0)), "--json")
    found = {one["name"]: one for one in json.loads(text)["findings"]}
    assert code == 1 and found["reward_constant"]["severity"] == "critical"
    assert found["equal_rewards"]["examples"][0]["row"] == "completions_00003.jsonl row 1"
    assert found["equal_rewards"]["since"] == 1
    code, text = checked(capsys, str(completions(tmp_path / "varied", right=0.5)))
    assert code == 0 and ": 0 findings" in text


def test_texts_that_a_limit_of_tokens_cut_and_rollouts_that_failed_are_found_in_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """slime's rows say both."""
    rows = [
        {
            **{"prompt": f"task {n // 4}", "tokens": [1, 2, 3 + n, 4], "response": "x", "response_length": 2},
            **{"loss_mask": [1, 1], "group_index": n // 4, "index": n, "reward": float(n % 2), "rollout_id": 3},
            "status": "failed" if n < 16 else "truncated",
        }
        for n in range(32)
    ]
    path = tmp_path / "rollout_3.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, text = checked(capsys, str(path), "--json")
    found = {one["name"]: one for one in json.loads(text)["findings"]}
    assert code == 1 and found["turns_cut"]["severity"] == "critical"
    assert (
        found["trajectories_fail"]["severity"] == "warning" and "50% of the step" in found["trajectories_fail"]["says"]
    )
    assert found["trajectories_fail"]["examples"][0]["text"] == "failed by slime"


def test_a_file_of_one_step_shows_one_text_for_its_prompts_with_the_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "own.jsonl"
    rows: list[dict[str, Any]] = [
        {"prompt": f"task {n}", "completion": "<think>I go left</think> left", "reward": n % 2} for n in range(16)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, text = checked(capsys, str(path))
    assert code == 0 and "one_text (warning)" in text and "<think>I go left</think> left" in text


def test_what_is_neither_a_run_nor_a_file_is_refused_and_so_is_an_unknown_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", str(tmp_path / "nothing")]) == 2
    assert main(["check", str(completions(tmp_path / "files", right=0.5)), "--ignore", "one_txt"]) == 2
    assert "did you mean `one_text`" in capsys.readouterr().err


def test_a_fault_of_files_is_printed_like_a_critical_finding_and_unknown_says_what_would_decide(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rollouts = run()
    for own in by_step(rollouts).values():
        rollouts.remove(own[-1])
    place = str(verl(tmp_path, rollouts))
    code, text = checked(capsys, place)
    assert code == 1 and ": 1 fault, " in text and "group_sizes (fault, since step 1)" in text
    assert (
        "  usual causes: a batch that ends within a group" in text and "  docs/reference/checks.md#group_sizes" in text
    )
    assert "example: 1.jsonl row 21: 3 of 4 rollouts" in text and "  size: 0.1667 [" in text
    assert "unknown  prompts_lost" in text and "; needs --data PROMPTS" in text
    code, text = checked(capsys, place, "--json", "--ignore", "group_sizes")
    found = {one["name"]: one for one in json.loads(text)["checks"]}
    assert code == 0 and "group_sizes" not in found and found["rewards_missing"]["verdict"] == "sound"
    assert main(["check", place, "--claim", "group_sise=4"]) == 2
    assert "Did you mean 'group_size'?" in capsys.readouterr().err


def test_a_run_of_our_own_is_checked_with_its_settings_and_tokenizer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = Path(shutil.copytree(Path(__file__).parents[2] / "earlier" / "run", tmp_path / "run"))
    code, text = checked(capsys, str(folder), "--json")
    found = {one["name"]: one for one in json.loads(text)["checks"]}
    assert code == 0 and not [one for one in found.values() if one["verdict"] == "fault"]
    assert found["claims"]["says"].startswith(
        "The run claims: group_size 4 (config.yaml), temperature 1.0 (config.yaml)"
    )
    exact = ("group_sizes", "mixed_groups", "equal_completions", "rewards_missing", "failures_as_rewards",
             "fed_tokens_learned", "sampled_tokens_unlearned", "logprobs_impossible", "prompt_start")  # fmt: skip
    assert {found[name]["verdict"] for name in exact} == {"sound"}
