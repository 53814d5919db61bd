"""The scorer's process: the weights that it accepts, its model, its priority, its death."""

import math
import os
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest
import ray
import torch
from ray.exceptions import RayActorError
from transformers import Qwen2ForCausalLM

from squelch.actors.messages import WeightBundle
from squelch.actors.process.shell import threaded
from squelch.actors.scorer.actor import LEAST_PRIORITY, PARITY_BOUND, _step_back, by_group, load_model
from squelch.actors.scorer.fixed_model import check_scorer_model
from squelch.actors.scorer.pace import ScoringPace
from squelch.actors.weights import checksum
from squelch.cluster.control.calls import SCORER
from squelch.kit.archive.rows import packed, to_table
from squelch.kit.diagnosis.proxies import proxies_of_scores, usable
from squelch.kit.records.records import Group, Task, Ticket
from squelch.kit.scoring.drawing import draw_first_turn
from tests.kit.scoring.windows import CONFIG, trajectory, window
from tests.random_model import random_model

pytestmark = pytest.mark.ray

SHELL = threaded(SCORER.title, SCORER.target, {**SCORER.methods, "state": 1})
CALL_TIMEOUT_S = 180.0


def ticket(name: str) -> Ticket:
    return Ticket(name, 1, Task("none", 1), 4, 0)


def test_tables_come_apart_into_their_groups() -> None:
    tables = [to_table(Group(ticket(name), "k", trajectories)) for name, trajectories in window().items()]
    groups = by_group(tables)
    assert groups.keys() == window().keys()
    assert all(len(trajectories) == 4 for trajectories in groups.values())
    assert np.array_equal(groups["g3"][2].token_ids, window()["g3"][2].token_ids)


def tiny(folder: Path) -> tuple[str, Qwen2ForCausalLM]:
    model = random_model()
    model.save_pretrained(folder)
    return str(folder), model


def bundle_of(model: Qwen2ForCausalLM, version: int) -> WeightBundle:
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
        ids = torch.arange(3, 27)
        log_probs = model.eval()(ids[None]).logits[0, :-1].log_softmax(-1).gather(1, ids[1:, None])[:, 0]
    arrays = {name: parameter.detach().numpy().copy() for name, parameter in model.named_parameters()}
    chunks = (ray.put(dict(list(arrays.items())[:5])), ray.put(dict(list(arrays.items())[5:])))
    return WeightBundle(version, chunks, checksum(arrays.items()), ids.numpy(), log_probs.numpy())


@pytest.fixture(scope="module")
def cluster():
    path = str(Path(__file__).parents[3])
    ray.init(
        "local",
        num_cpus=1,
        include_dashboard=False,
        log_to_driver=False,
        runtime_env={"env_vars": {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"}},
    )
    yield
    ray.shutdown()


def test_the_actor_scores_published_weights_and_its_death_mid_batch_is_an_alarm(cluster: None, tmp_path: Path) -> None:
    model_dir, model = tiny(tmp_path)
    bundle = bundle_of(model, 3)
    scorer = SHELL.remote(model_dir, CONFIG, 0.7, 1)
    tables = [ray.put(packed(to_table(Group(ticket(name), "k", ts)))) for name, ts in window(3, 20).items()]

    metrics, state, scores = ray.get(scorer.score.remote(1, bundle, tables), timeout=CALL_TIMEOUT_S)
    assert metrics["scorer/parity"] < 1e-4 and metrics["scorer/version"] == 3
    assert (
        metrics["scorer/passes"] >= 2.0 and 0 <= metrics["scorer/pass_seconds"] + metrics["scorer/token_seconds"] < 60
    )
    assert state == ray.get(scorer.state.remote(), timeout=CALL_TIMEOUT_S)
    assert scores.schema.metadata[b"squelch.policy_version"] == b"3" and len(scores)
    assert 0 <= metrics["first_turn/retrieval_accuracy"] <= 1 and metrics["first_turn/num_prompts"] == 20

    forged = WeightBundle(4, bundle.chunks, "00", bundle.probe_ids, bundle.probe_log_probs)
    with pytest.raises(RuntimeError, match="version 4 have checksum"):
        ray.get(scorer.score.remote(2, forged, tables), timeout=CALL_TIMEOUT_S)
    for log_probs in (bundle.probe_log_probs - 1, bundle.probe_log_probs * np.nan):
        stale = WeightBundle(4, bundle.chunks, bundle.checksum, bundle.probe_ids, log_probs)
        with pytest.raises(RuntimeError, match="version 4 fail the scorer's parity probe"):
            ray.get(scorer.score.remote(2, stale, tables), timeout=CALL_TIMEOUT_S)
    with pytest.raises(ValueError, match="newest tokens have version 9"):
        ray.get(
            scorer.score.remote(2, bundle, [ray.put(packed(to_table(Group(ticket("a"), "k", [trajectory(0, 5, 9)]))))]),
            timeout=CALL_TIMEOUT_S,
        )

    pace = ScoringPace(every=1, timeout_s=CALL_TIMEOUT_S)
    assert pace.begin(3, time.monotonic())
    under_way = scorer.score.remote(3, bundle, tables * 200)
    before = ray.get(scorer.progress.remote(), timeout=CALL_TIMEOUT_S).marks
    while ray.get(scorer.progress.remote(), timeout=CALL_TIMEOUT_S).marks == before:
        assert ray.wait([under_way], timeout=0.02)[1], "the scoring ended before it could be interrupted"
    ray.kill(scorer)
    with pytest.raises(RayActorError) as death:
        ray.get(under_way, timeout=CALL_TIMEOUT_S)
    assert "scoring of step 3 failed" in pace.end("failed", str(death.value))
    assert not pace.busy and pace.begin(4, time.monotonic()), "training goes on and the next scorer may score"


def with_tokenizer(folder: Path, words: list[str]) -> Path:
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel

    folder.mkdir(exist_ok=True)
    Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token=words[0])).save(
        str(folder / "tokenizer.json")
    )
    (folder / "config.json").write_text("{}")
    return folder


def test_a_fixed_scorer_with_another_tokenizer_or_none_is_refused_by_name(tmp_path: Path) -> None:
    policy, same = with_tokenizer(tmp_path / "policy", ["a", "b"]), with_tokenizer(tmp_path / "same", ["a", "b"])
    check_scorer_model(None, policy)
    check_scorer_model(str(same), policy)
    other = with_tokenizer(tmp_path / "other", ["b", "a"])
    with pytest.raises(
        ValueError, match=r"scorer\.model=.*other: its tokenizer is not the policy's \(2 pieces differ; 'a'"
    ):
        check_scorer_model(str(other), policy)
    (same / "config.json").unlink()
    with pytest.raises(ValueError, match=r"scorer\.model=.*same: no config\.json there"):
        check_scorer_model(str(same), policy)


def test_a_fixed_model_scores_every_version_and_never_loads_the_policy(
    cluster: None, tmp_path: Path, tiny_policy: Path
) -> None:
    from transformers import AutoModelForCausalLM

    folder = tmp_path / "fixed"
    shutil.copytree(tiny_policy, folder)
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(0.5)
    model.save_pretrained(folder)
    unusable = WeightBundle(3, (), "00", np.zeros(2, dtype=np.int64), np.zeros(1))
    config = CONFIG.model_copy(update={"model": str(folder)})
    scorer = SHELL.remote(str(tiny_policy), config, 0.7, 1, 0, "plain", str(folder))
    process = ray.get(scorer.__ray_call__.remote(lambda _: os.getpid()), timeout=CALL_TIMEOUT_S)
    assert os.SCHED_IDLE not in policies(process), "a run's start waits until the model is loaded"
    tables = [ray.put(packed(to_table(Group(ticket(name), "k", ts)))) for name, ts in window(5, 6).items()]
    metrics, *_ = ray.get(scorer.score.remote(1, unusable, tables), timeout=CALL_TIMEOUT_S)
    assert metrics["scorer/version"] == -1 and math.isnan(metrics["scorer/parity"])
    assert metrics["first_turn/num_samples"] == 12 and metrics["first_turn/version_mismatch"] == 0.0
    assert os.SCHED_IDLE in policies(process)

    from squelch.kit.scoring.cross_scoring import CrossScorer

    draw = draw_first_turn(window(5, 6), CONFIG.max_prompts, CONFIG.samples_per_prompt, (1, 1, 0), 5)
    matrix = CrossScorer(model, CONFIG.token_budget, 0.7).matrix(draw.prompts, draw.reasonings)
    lengths = np.array([len(z) for z in draw.reasonings])
    expected = proxies_of_scores(usable(matrix, lengths, draw.source, column_weights=draw.weights))
    assert metrics["first_turn/conditional_entropy"] == pytest.approx(expected.conditional_entropy, abs=1e-4)
    ray.kill(scorer)


def policies(process: int) -> set[int]:
    """The scheduling policies of a process's threads."""
    return {os.sched_getscheduler(int(task.name)) for task in Path(f"/proc/{process}/task").iterdir()}


@pytest.mark.parametrize(
    ("num_gpus", "refused", "idle", "niceness"),
    [(0, False, True, 0), (0, True, False, LEAST_PRIORITY), (1, False, False, 0)],
)
def test_the_scorer_on_a_cpu_yields_to_every_other_process(
    num_gpus: int, refused: bool, idle: bool, niceness: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    if refused:
        monkeypatch.setattr(os, "sched_setscheduler", refuse)
    found: list[tuple[int, int]] = []

    def thread() -> None:  # policy and niceness are a thread's own on Linux
        found.append((os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)))
        _step_back(CONFIG.model_copy(update={"num_gpus": num_gpus}))
        found.append((os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)))

    worker = threading.Thread(target=thread)
    worker.start()
    worker.join()
    started, runs = found
    assert runs == (os.SCHED_IDLE if idle else started[0], niceness or started[1])


def refuse(*_: object) -> None:
    raise PermissionError("not here")


def test_bfloat16_weights_score_nearly_as_float32_does(tmp_path: Path) -> None:
    from squelch.kit.scoring.cross_scoring import CrossScorer

    folder, _ = tiny(tmp_path)
    draw = draw_first_turn(window(0, 20), 64, 2, (1, 1, 0), 0)
    found = {}
    for dtype in ("float32", "bfloat16"):
        model = load_model(folder, CONFIG.model_copy(update={"dtype": dtype}))
        assert {parameter.dtype for parameter in model.parameters()} == {getattr(torch, dtype)}
        found[dtype] = CrossScorer(model, CONFIG.token_budget, 0.7).matrix(draw.prompts, draw.reasonings)
    lengths = np.array([[len(z)] for z in draw.reasonings])
    difference = np.abs(found["bfloat16"] - found["float32"]) / lengths
    assert 0 < difference.mean() < PARITY_BOUND["float32"]


def test_a_scorer_that_is_to_use_a_gpu_where_there_is_none_says_what_to_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(RuntimeError, match=r"scorer\.num_gpus=0\.5, but .* no CUDA device .*scorer\.num_gpus=0"):
        load_model(tiny(tmp_path)[0], CONFIG.model_copy(update={"num_gpus": 0.5}))
