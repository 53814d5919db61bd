"""The real loop: Ray, vLLM, the learner, the scorer, Parquet, a real Prometheus. What a run of five steps leaves.

That it repeats from its seed is shown in `test_stop_and_resume`, to the bit."""

import json
import math
import os
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest
import torch
from openai import APIConnectionError, OpenAI
from transformers import AutoModelForCausalLM, AutoTokenizer

from squelch.cluster.cli import main
from squelch.cluster.fleet import local_ray
from squelch.cluster.loop.persistence.checkpoint_folders import checkpoints
from squelch.kit.archive.reader import read_events, read_groups, read_metrics
from tests.e2e.replay import assert_replays
from tests.e2e.support import STEPS, Finished, Run, assert_sound, steps, summary, wait_gone
from tests.exposure import exposed, writable_by_others
from tests.prometheus import dashboard_queries, free_ports, need_prometheus

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1000)]
SERVER = "vllm.entrypoints.openai.api_server"
ALONE = {
    "VLLM_HOST_IP": "127.0.0.1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
}


def test_the_run_ends_well_and_leaves_no_process(whole: Finished) -> None:
    assert whole.code == 0, whole.run.text
    inspect, report = f"to see what it learned: squelch inspect {whole.folder}", whole.folder / "report.html"
    assert whole.run.lines[-3:] == [f"done: {whole.folder}", inspect, f"report: {report}"]
    found = summary(whole.folder)
    assert found["steps"] == STEPS and found["finished"] and found["policy_version"] >= 1
    assert found["success"]["before"]["step"] == 0 and found["success"]["after"]["step"] == STEPS
    assert whole.processes and not wait_gone(whole.processes)


def test_no_other_host_and_no_other_user_can_connect_to_a_process_of_the_run(whole: Finished) -> None:
    hidden = [address for address in whole.sockets if address.startswith(f"{local_ray.own_folder()}/")]
    assert len(hidden) >= 2 and len(whole.sockets) > 12, whole.sockets
    assert not exposed(whole.sockets)


def test_no_other_user_can_write_a_file_of_the_run_or_read_the_token_of_its_cluster(whole: Finished) -> None:
    token = Path.home() / ".ray" / "auth_token"
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (local_ray.own_folder(), token.parent, token)]
    assert not writable_by_others(whole.folder) and modes == [0o700, 0o700, 0o600]


def test_of_the_files_of_ray_only_logs_remain(whole: Finished) -> None:
    assert whole.left_by_ray == {"logs"}


def test_the_terminal_shows_what_the_run_says_and_its_folder_the_rest(whole: Finished) -> None:
    own = re.compile(r"step +\d+ ")  # of findings too, which have a severity
    others = [line for line in whole.run.lines if not own.match(line)]
    foreign = [line for line in others if re.search(r"pid=|WARNING|INFO|Triton|NUMA|shards|Gloo|ray", line)]
    assert not foreign
    logs = {path.stem for path in (whole.folder / "log").glob("*.log")}
    assert logs == {"control-endpoint", "driver", "env-0", "filter", "learner-0", "rollout-0", "scorer"}
    assert "EngineCore" in (whole.folder / "log" / "rollout-0.log").read_text()


def test_every_ticket_is_accounted_for_and_archived_and_every_task_played_once(whole: Finished) -> None:
    ledger = summary(whole.folder)["ledger"]
    assert ledger["balanced"] and ledger["counts"]["issued"] == 4 * STEPS == ledger["archived_groups"]
    rows = read_groups(whole.folder)
    assert rows.num_rows == 4 * STEPS * 8
    assert set(rows.column("decision").to_pylist()) <= {"kept", "dropped", "refused"}
    assert all(rows.column("reason").to_pylist())
    tasks = dict(zip(rows.column("group_id").to_pylist(), rows.column("task_seed").to_pylist(), strict=True))
    assert sorted(tasks.values()) == list(range(4 * STEPS))


def test_at_staleness_0_every_token_was_sampled_by_the_version_that_learns_from_it(whole: Finished) -> None:
    assert all(m["staleness_max"] == 0 for m in steps(whole.folder))
    trained = [m for m in steps(whole.folder) if m["optimizer_steps"] > 0]
    assert trained and all(m["learner/mismatch_abs"] < 1e-4 for m in trained)


def test_every_version_that_reached_a_worker_is_another_policy(whole: Finished) -> None:
    sums = {e["version"]: e["checksum"] for e in read_events(whole.folder) if e["name"] == "weights"}
    assert len(set(sums.values())) == len(sums) > 1


def test_rollouts_are_what_was_fed_and_sampled(whole: Finished) -> None:
    rows = read_groups(whole.folder)
    assert pc.all(pc.equal(pc.list_value_length(rows["token_ids"]), pc.list_value_length(rows["loss_mask"]))).as_py()
    for row in rows.to_pylist()[:32]:
        sampled = {i for turn in row["turns"] for i in range(turn["sample_start"], turn["sample_end"])}
        assert sampled == {i for i, masked in enumerate(row["loss_mask"]) if masked}
        assert all(p <= 0 if i in sampled else p == 0 for i, p in enumerate(row["log_probs"]))


def test_every_step_made_again_from_the_archive_gives_the_same_parameters(whole, tiny_policy, tmp_path) -> None:
    assert_replays(whole.folder, tiny_policy, 1, STEPS, tmp_path)


def test_the_files_show_no_fault(whole, tiny_policy) -> None:
    assert_sound(whole.folder, tiny_policy)


def test_the_scorer_reports_the_proxies(whole: Finished) -> None:
    scored = [m for m in read_metrics(whole.folder) if m.get("first_turn/retrieval_accuracy") is not None]
    assert len(scored) == summary(whole.folder)["scorer"]["done"] >= 1, "the last step's scorer step has a record too"
    assert scored[0]["step"] <= scored[0]["scorer/step"] + 2, "the first metrics are exported within two steps"
    for m in scored:
        assert 0 <= m["first_turn/retrieval_accuracy"] <= 1
        total = m["first_turn/mi_est"] + m["first_turn/conditional_entropy"]
        assert math.isclose(total, m["first_turn/marginal_entropy"], abs_tol=1e-6)


def test_the_fixed_probe_is_read_before_training_and_after_the_last_step(whole: Finished) -> None:
    read = [m for m in read_metrics(whole.folder) if m.get("probe/mi") is not None]
    assert (read[0]["probe/step"], read[-1]["probe/step"]) == (0, STEPS)
    for m in read:
        assert m["probe/mi"] <= m["probe/ceiling"] == pytest.approx(math.log(4)) and m["probe/samples"] <= 8
        assert m["probe/hard/mi"] <= m["probe/hard/ceiling"] <= math.log(8) and m["probe/hard/pairs"] > 0
    assert read[0]["probe/mi_change"] == 0 != read[-1]["probe/mi_change"]
    assert summary(whole.folder)["probe"]["step"] == STEPS


def test_prometheus_fills_every_panel_that_a_run_must_fill(whole: Finished) -> None:
    need_prometheus()
    assert len(dashboard_queries()) > 20 and whole.unfilled == []


def test_prometheus_learns_that_the_run_has_ended(whole: Finished) -> None:
    need_prometheus()
    assert whole.code == 0 and whole.ended == [1]


def test_gradients_are_taken_apart_in_a_run_and_from_its_archive(whole: Finished, capsys) -> None:
    run_dir = whole.folder
    before, line = (next(m for m in steps(run_dir) if m["step"] == step) for step in (2, 3))
    assert line["gradients/groups"] == 7
    assert line["gradients/q6/reward_variance"] >= line["gradients/q1/reward_variance"]
    assert all(line[f"gradients/q{b}/entropy"] > 0 for b in range(1, 7))
    measured = json.loads((run_dir / "gradients" / "step-000003.json").read_text())
    assert len(measured["groups"]) == 7 and measured["version"] == before["policy_version"]
    assert main(["gradients", str(run_dir), "--step", "4", "--groups", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["versions"] == {str(found["version"]): 4} and len(found["groups"]) == 4
    assert main(["gradients", str(run_dir), "--step", "4", "--older", "weight", "--groups", "12"]) == 0
    assert "Norm of the bucket's mean gradient" in capsys.readouterr().out
    assert main(["gradients", str(run_dir), "--step", "4"]) == 2
    assert "4 groups were sampled by version" in capsys.readouterr().err


def test_status_says_that_the_run_is_over_and_its_last_step_is_checkpointed(whole: Finished, capsys) -> None:
    assert main(["status", str(whole.folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["state"] == "finished"
    saved = checkpoints(whole.folder)
    assert saved[-1][0] == STEPS and (saved[-1][1] / "hf" / "model.safetensors").is_file()


def test_eval_plays_the_fixed_tasks_with_a_checkpoint(whole: Finished) -> None:
    run = Run("eval", str(whole.folder), "--checkpoint", "last", "--tasks", "16", "--interventions", "--json")
    assert run.finish() == 0, run.text
    found, after = json.loads(run.lines[-1]), summary(whole.folder)["success"]["after"]
    assert found["tasks"] == 16 and found["checkpoint"] == f"step {STEPS}"
    assert found["success"] == after["success"], "the same weights, tasks and seeds"
    assert found["failed"] == {} and len(found["solved"]) == 16 * found["success"]
    effect = found["interventions"][""]
    assert effect["tasks"] + sum(effect["left_out"].values()) == 16 and "failed" not in effect["left_out"]
    assert effect["tasks"] > 4 and effect["change"]["low"] <= effect["change"]["value"] <= effect["change"]["high"]
    assert json.loads((whole.folder / "interventions" / f"step-{STEPS:06d}.json").read_text()) == found


@contextmanager
def vllm_serve(folder: Path, log: Path) -> Iterator[OpenAI]:
    """A client of vLLM's server, as evaluate.md starts it beside vLLM's CPU build; it knows nothing of Squelch."""
    words = ["--dtype", "float32", "--max-model-len", "256", "--enforce-eager", "--kv-cache-memory-bytes", str(2**26)]
    with log.open("w") as output:
        server = subprocess.Popen(
            [sys.executable, "-m", SERVER, "--model", folder, "--port", str(port := free_ports(1)[0]), *words],
            env=os.environ | ALONE, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            client = OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0)
            for _ in range(600):
                with suppress(APIConnectionError):
                    client.models.list()
                    break
                assert server.poll() is None, log.read_text()[-3000:]
                time.sleep(1)
            yield client
        finally:
            server.send_signal(signal.SIGINT)
            try:
                server.wait(60)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(server.pid, signal.SIGKILL)


def test_a_served_export_is_asked_and_answers_as_the_run_and_scores_as_transformers_does(
    whole: Finished, tmp_path: Path
) -> None:
    target = tmp_path / "policy"
    assert main(["export", str(whole.folder), str(target), "--checkpoint", "last", "--dtype", "bfloat16"]) == 0
    row = read_groups(whole.folder).slice(0, 1).to_pylist()[0]
    ids, fed = row["token_ids"][:64], row["token_ids"][: row["turns"][0]["sample_start"]]
    shown = AutoTokenizer.from_pretrained(target).decode(fed)
    messages = [{"role": role, "content": text} for role, text in re.findall(r"(?s)<\|(\w+)\|>(.*?)<\|end\|>", shown)]
    with vllm_serve(target, tmp_path / "serve.log") as client:
        scored = client.completions.create(
            model=str(target), prompt=ids, max_tokens=1, extra_body={"prompt_logprobs": 0}
        ).choices[0]
        said = client.chat.completions.create(
            model=str(target), messages=messages, temperature=0, max_tokens=48, extra_body={"return_token_ids": True}
        )
    assert said.prompt_token_ids == fed, "the run's prompt, its reasoning opened"
    assert json.loads((target / "config.json").read_text())["dtype"] == "bfloat16"
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    with torch.no_grad():
        log_probs = model(torch.tensor([ids])).logits[0, :-1].log_softmax(-1)
        greedy = model.generate(torch.tensor([fed]), do_sample=False, top_k=None, top_p=None, max_new_tokens=48)
    theirs = log_probs.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].numpy()
    served = [one[str(token)]["logprob"] for token, one in zip(ids[1:], scored.prompt_logprobs[1:], strict=True)]
    np.testing.assert_allclose(served, theirs, atol=1e-3)
    assert said.choices[0].token_ids == greedy[0, len(fed) :].tolist()
    after, card = summary(whole.folder)["success"]["after"], (target / "README.md").read_text()
    assert f"- step {STEPS}: {after['success']:.3f}, 95% [{after['low']:.3f}, {after['high']:.3f}]" in card
