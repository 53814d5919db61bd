"""Squelch in TRL's newest release: the run is unchanged, and what is said is what the commands say of the same ids."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from prometheus_client.parser import text_string_to_metric_families

from squelch.cluster.cli import main

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1000)]

GROUP, RHO = 4, 0.7
MI, D = "squelch/first_turn/mi_seq_est", "squelch/probe/link/dependence"
SHARE = f"{D}_share"


def found(runs: Path, part: str) -> dict[str, Any]:
    return json.loads((runs / part / "found.json").read_text())


def logged(log: list[dict[str, Any]], key: str) -> dict[int, float]:
    """The values of a key by step, where it was logged."""
    return {row["step"]: row[key] for row in log if key in row}


def ids_of(folder: Path) -> dict[str, list[Any]]:
    """What all ranks sampled, in their order."""
    parts = [pq.read_table(path).to_pydict() for path in sorted(folder.glob("ids-*.parquet"))]
    return {name: [value for part in parts for value in part[name]] for name in parts[0]}


def said(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main([*words, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def by_the_filter(rewards: list[float | None], folder: Path, capsys: pytest.CaptureFixture[str]) -> list[bool]:
    """Of each row, whether `squelch filter` keeps its group."""
    np.savez(folder / "rewards.npz", rewards=np.reshape(np.array(rewards, dtype=float), (-1, GROUP)))
    report = said(capsys, "filter", str(folder / "rewards.npz"), "--rho", str(RHO))
    return [group in report["kept"] for group in range(report["num_groups"]) for _ in range(GROUP)]


def test_observing_changes_no_parameter_optimizer_state_random_state_or_gradient(runs: Path) -> None:
    without, observed = found(runs, "plain"), found(runs, "observed")
    log = observed["log"]
    seconds, steps = logged(log, "squelch/seconds/score"), logged(log, "step_time")
    print(
        f"scoring at {len(seconds)} of 10 steps {sum(seconds.values()):.2f} s, TRL's steps {sum(steps.values()):.2f} s "
        f"(in all {observed['seconds']:.1f} s; without {without['seconds']:.1f} s)"
    )
    assert len(without["grad_norm"]) == 10
    for key in without.keys() - {"seconds"}:
        assert observed[key] == without[key], key


def test_mi_and_d_are_those_of_the_command_for_the_ids_and_the_weights_that_sampled(runs: Path, capsys) -> None:
    log = found(runs, "observed")["log"]
    mi, dependence, share = logged(log, MI), logged(log, D), logged(log, SHARE)
    assert sorted(mi) == [1, 4, 7, 10] and len(dependence) > 2
    for step in mi:
        folder = runs / "observed" / f"step-{step}"
        result = said(capsys, "score", str(folder / "ids-0.parquet"), "--model", str(folder))
        assert mi[step] == pytest.approx(result["mi_seq_est"], abs=1e-5)
        links = result["links"]
        assert dependence.get(step) == (None if links is None else pytest.approx(links["dependence"], abs=1e-5))
        assert share.get(step) == (None if links is None else pytest.approx(links["dependence_share"], abs=1e-5))
        assert logged(log, f"squelch/first_turn/regime/{result['regime']}")[step] == 1


def test_rows_that_the_users_reward_left_out_are_among_them_and_stay_out(runs: Path) -> None:
    tables = [pq.read_table(path).to_pydict() for path in (runs / "observed" / "completions").glob("*.parquet")]
    assert len(tables) == 10
    rewards, ours = ([value for table in tables for value in table[name]] for name in ("reward", "squelch"))
    left_out = np.isnan(np.array(rewards, dtype=float))
    assert 0 < left_out.sum() < len(left_out) / 2 and np.isnan(np.array(ours, dtype=float)).all()
    advantages = np.array([value for table in tables for value in table["advantage"]])
    assert (advantages[left_out] == 0).all() and (advantages[~left_out] != 0).any()


def test_metrics_have_the_names_of_a_run(runs: Path) -> None:
    observed = found(runs, "observed")
    samples = [one for family in text_string_to_metric_families(observed["metrics"]) for one in family.samples]
    exported = {(one.name, one.labels.get("scope"), one.labels.get("groups")): one.value for one in samples}
    assert exported["squelch_step", None, None] == exported["squelch_planned_steps", None, None] == 10
    assert exported["squelch_optimizer_steps_total", None, None] == 10
    assert exported["squelch_mi_seq_est_nats", "first_turn", None] == pytest.approx(logged(observed["log"], MI)[10])
    # the callback that read it came before TRL's log of the last step
    for name, key in (("squelch_learner_grad_norm", "grad_norm"), ("squelch_learner_entropy_nats", "entropy")):
        assert exported[name, None, None] == pytest.approx(logged(observed["log"], key)[9])
    assert exported["squelch_reward_mean", None, "all"] == pytest.approx(logged(observed["log"], "reward")[9])
    (info,) = (one.labels for one in samples if one.name == "squelch_run_info")
    assert info == {"run": "observed", "environment": "TRL", "filter": "none"}


def test_kept_groups_are_those_of_the_command_and_the_others_have_no_mask(runs: Path, tmp_path: Path, capsys) -> None:
    fractions = logged(found(runs, "filtered")["log"], "squelch/kept_fraction")
    assert sorted(fractions) == [1, 2, 3, 4]
    for step, fraction in fractions.items():
        table = pq.read_table(runs / "filtered" / "completions" / f"completions_{step:05d}.parquet").to_pydict()
        kept = by_the_filter(table["reward"], tmp_path, capsys)
        batch = ids_of(runs / "filtered" / f"step-{step}")
        assert 0 < fraction < 1 and np.mean(kept) == pytest.approx(fraction)
        assert not np.array(batch["kept"])[~np.array(kept)].any()
        assert any(batch["kept"]) and batch["num_items"][0] == sum(batch["unmasked"])


def test_a_completion_that_was_cut_and_masked_is_scored_by_its_ids(runs: Path, capsys) -> None:
    mi = logged(found(runs, "filtered")["log"], MI)
    folder = runs / "filtered" / "step-3"
    assert mi[3] == pytest.approx(
        said(capsys, "score", str(folder / "ids-0.parquet"), "--model", str(folder))["mi_seq_est"], abs=1e-5
    )


def test_a_run_that_is_resumed_says_what_the_whole_run_said(runs: Path) -> None:
    both = found(runs, "filtered")
    for key in (MI, "squelch/first_turn/mi_zscore", "squelch/kept_mass", "grad_norm"):
        assert logged(both["again"], key) == logged(both["log"], key), key


@pytest.mark.parametrize(
    ("script", "start", "flags"),
    [("thinking", "base", ()), ("lora", "base", ()), ("tools", "calls", ("--tools", "tools.json"))],
)
def test_a_script_logs_what_score_says_of_its_files_and_checkpoints(
    scripts: Path, capsys: pytest.CaptureFixture[str], script: str, start: str, flags: tuple[str, ...]
) -> None:
    folder, mi = scripts / script, logged(found(scripts, script), MI)
    chosen = [str(scripts / one) if one.endswith(".json") else one for one in flags]
    files = "ids_{}" if script == "tools" else "completions/completions_{:05d}"  # TRL's own has lost white space there
    assert sorted(mi) == list(range(1, len(list(folder.glob("completions/*.parquet"))) + 1))
    for step in sorted(mi)[:: max(1, len(mi) // 4)]:
        model = folder / f"checkpoint-{step - 1}" if step > 1 else scripts / start
        file = folder / f"{files.format(step - (script == 'tools'))}.parquet"
        result = said(capsys, "score", str(file), "--model", str(model), *chosen)
        assert mi[step] == pytest.approx(result["mi_seq_est"], abs=1e-5), (step, result["excluded"])


def test_of_a_lora_run_the_adapted_model_is_scored(runs: Path) -> None:
    adapted = found(runs, "adapted")
    mi = logged(adapted["log"], MI)
    assert [mi[step] for step in (1, 2, 3)] == pytest.approx([adapted["merged"][str(s)] for s in (1, 2, 3)], abs=1e-5)
    assert len(set(mi.values())) == 3


def test_samples_that_serve_several_steps_are_observed_and_filtered_once(runs: Path) -> None:
    log = found(runs, "several")["log"]
    assert sorted(logged(log, MI)) == sorted(logged(log, "squelch/kept_fraction")) == [1, 5]
    assert all(math.isfinite(value) for value in logged(log, "kl").values())


def test_with_tools_the_first_turn_is_scored_under_the_prompt_with_their_schemas(runs: Path, capsys) -> None:
    tools = found(runs, "tools")
    assert '"name": "double"' in tools["prompt"] and tools["outside"] > 0
    assert all(said.endswith("</tool_call><|im_end|>") for said in tools["said"])
    file, model = str(runs / "tools" / "first.parquet"), str(runs / "tools" / "step-1")
    result = said(capsys, "score", file, "--model", model, "--force")  # the script wrote these turns, not the model
    assert logged(tools["log"], MI)[1] == pytest.approx(result["mi_seq_est"], abs=1e-5)


def test_as_a_reward_function_the_observer_scores_the_same_with_tools_and_with_environments(runs: Path) -> None:
    tools = found(runs, "tools")
    wanted = logged(tools["log"], MI)[1]
    for name in ("tools", "environments"):
        log = tools[f"as a function, {name}"]
        assert logged(log, MI)[1] == pytest.approx(wanted, abs=1e-6), name
        assert logged(log, "squelch/not_scored") == {1: 0.0}


def test_rloo_is_observed_and_trainers_that_cannot_be_are_refused_as_they_are_made(runs: Path) -> None:
    others = found(runs, "others")
    mi = logged(others["log"], MI)
    assert [mi[step] for step in (1, 2)] == pytest.approx([others["mi"][str(step)] for step in (1, 2)], abs=1e-5)
    refused = others["refused"]
    assert "cannot watch TRL's DPOTrainer" in refused["DPO"]
    assert "AsyncGRPOTrainer; it computes rewards in another process" in refused["Async"]
    assert "and not with RLOOTrainer" in refused["RLOO with the mixin"]
    assert "the loss of GMPOTrainer" in refused["GMPO with the filter"]


@pytest.mark.parametrize("loss", ["dapo", "cispo", "vespo", "grpo", "sapo", "luspo", "dr_grpo", "bnpo"])
def test_a_masked_batch_has_the_gradient_of_its_kept_rows_alone(runs: Path, loss: str) -> None:
    """Half of the rows are kept. TRL averages some losses over rows: there `all` halves the gradient."""
    gradients = found(runs, "losses")
    for normalizer, share in (("kept", 1.0), ("all", 0.5 if loss in ("grpo", "sapo", "luspo", "dr_grpo") else 1.0)):
        whole, alone = np.array(gradients[f"{loss} {normalizer}"])
        assert np.abs(alone).max() > 1e-6
        np.testing.assert_allclose(whole, share * alone, rtol=1e-4, atol=1e-6 * np.abs(alone).max())


def test_two_ranks_decide_alike_on_the_groups_of_both(runs: Path, tmp_path: Path, capsys) -> None:
    """A group straddles: each rank has ten rows, in groups of four."""
    log = found(runs, "distributed")["log"]
    assert json.loads((runs / "distributed" / "other.json").read_text()) == found(runs, "distributed")["parameters"]
    for step in (1, 2):
        folder = runs / "distributed" / f"step-{step}"
        batch = ids_of(folder)
        table = pq.read_table(runs / "distributed" / "completions" / f"completions_{step:05d}.parquet").to_pydict()
        assert batch["kept"] == by_the_filter(table["reward"], tmp_path, capsys)
        assert set(batch["num_items"]) == {sum(batch["unmasked"])}
        both = tmp_path / f"both-{step}.parquet"
        pq.write_table(_table(batch), both)
        result = said(capsys, "score", str(both), "--model", str(folder))
        assert logged(log, MI)[step] == pytest.approx(result["mi_seq_est"], abs=1e-5)


def _table(batch: dict[str, list[Any]]) -> Any:
    import pyarrow as pa

    return pa.table({name: batch[name] for name in ("prompt_ids", "completion_ids")})


def test_prompts_completions_and_rewards_of_a_file_are_those_of_trls_trainer(runs: Path) -> None:
    trl, ours = (found(runs, "rewarded")[name] for name in ("trl", "squelch"))
    assert ours["prompt_ids"] == trl["prompt_ids"]
    assert ours["completions"] == trl["completions"]
    assert ours["rewards"] == pytest.approx(trl["rewards"], abs=1e-6)  # TRL's are float32
    assert len(set(trl["rewards"])) > 3, "the functions tell the answers apart"
