"""`learner.token_budget: auto` becomes a number once, at the start of a run."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.exceptions import RayError

from squelch.cluster.commands.plan_memory import RANK_RUNTIME_GIB
from squelch.cluster.config import RunConfig, changes, dump, load, settings_of
from squelch.cluster.fleet import bootstrap, gpu_memory, token_budget
from squelch.cluster.fleet.demand import Node
from squelch.kit.base.errors import UserError
from squelch.kit.models.model_folder import model_config
from squelch.learner import memory
from squelch.learner.config import LearnerConfig
from squelch.learner.model_shapes import published
from tests.learner.models import make_model

GIB, SHAPE = memory.GIB, published("Qwen2.5-0.5B")


def no_gpu(config: RunConfig) -> int:
    raise AssertionError("the settings say how much memory a rank has")


AUTO = "learner.token_budget=auto"
LEARNER = LearnerConfig(num_gpus=1, dtype="bfloat16")


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 200 * GIB), st.integers(0, 100 * GIB), st.sampled_from([512, 3000, 100_000]))
def test_an_automatic_budget_is_never_above_the_memory_and_grows_with_it(room: int, more: int, longest: int) -> None:
    small, large = (memory.fitting_tokens(SHAPE, LEARNER, 1, 0, longest, has) for has in (room, room + more))
    assert longest <= small <= large <= max(longest, memory.MOST_TOKENS)
    assert small == longest or memory.estimate(SHAPE, LEARNER.with_tokens(small), 1).total <= room


def test_on_a_cpu_it_is_what_recipes_had_and_a_number_stays() -> None:
    for words, tokens in (
        ([AUTO], 8192),
        ([AUTO, "rollout.max_model_len=9000"], 9000),
        (["learner.token_budget=2048"], 2048),
    ):
        config = load("frozenlake", words)
        assert token_budget.settled(config, None, None).token_budget == tokens == config.tokens_fed


def test_the_number_is_written_and_a_resumed_run_keeps_it(tmp_path: Path) -> None:
    said: list[str] = []
    words = [f"runs_dir={tmp_path}", "name=run", "learner.num_gpus=1", "rollout.num_gpus=1"]
    folder, config = make_model(tmp_path), load("frozenlake", [*words, AUTO, "learner.max_memory_gib=4"])
    found = token_budget.choose_token_budget(config, folder, False, said.append, 0, no_gpu)
    assert isinstance(found.learner.token_budget, int) and "learner.max_memory_gib" not in said[0]
    assert said == [f"learner.token_budget={found.learner.token_budget}, for 4.0 GiB of a GPU per rank"]
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.yaml").write_text(dump(config))  # as a sweep writes it before the run's first start
    assert token_budget.choose_token_budget(config, folder, True, said.append, 0, no_gpu) == found
    (tmp_path / "run/config.yaml").write_text(
        dump(found.model_copy(update={"learner": found.learner.with_tokens(999)}))
    )
    assert token_budget.choose_token_budget(config, folder, True, said.append, 0, no_gpu).learner.token_budget == 999
    assert changes(settings_of(tmp_path / "run/config.yaml"), config) == []  # not the user's change
    chosen = load("frozenlake", [*words, "learner.token_budget=4096"])
    assert token_budget.choose_token_budget(chosen, folder, True, said.append, 0, no_gpu) == chosen


def test_memory_below_the_longest_trajectory_is_refused_with_the_figure(tmp_path: Path) -> None:
    words = [
        AUTO,
        "learner.num_gpus=1",
        "rollout.num_gpus=1",
        "learner.max_memory_gib=0.01",
        "rollout.max_model_len=4000",
    ]
    config, folder = load("frozenlake", words), make_model(tmp_path)
    assert memory.RUNTIME == RANK_RUNTIME_GIB * GIB
    with pytest.raises(UserError, match=r"^learner\.token_budget=auto: the learner needs .* GiB .*, has 0\.0: "):
        token_budget.choose_token_budget(config, folder, False, lambda line: None, 0, no_gpu)


def on_gpus(monkeypatch: pytest.MonkeyPatch, kinds: dict[str, float | Exception | None], gpus: float = 1) -> list[dict]:
    """A cluster with a node of each kind of GPU, which says that its GPU has so many GiB, sees none (None), or fails
    so; a kind of 0 GiB is busy. Returns the options with which GPUs were asked."""
    asked: list[dict] = []
    waits: list[float] = []

    def remote(**options: Any) -> Any:
        asked.append(options)
        return lambda function: SimpleNamespace(remote=lambda learner: options["label_selector"][KIND])

    def answer(task: str) -> int | None:
        if isinstance(found := kinds[task], Exception):
            raise found
        return None if found is None else int(found * gpus * GIB)

    def wait(tasks: list[str], num_returns: int, timeout: float) -> tuple[list[str], list[str]]:
        waits.append(timeout)
        ready = [task for task in tasks if kinds[task] != 0][:num_returns]
        return ready, [task for task in tasks if task not in ready]

    nodes = [Node("10.0.0.1", {"GPU": 8}, {KIND: kind, "pool": "learner"}) for kind in kinds]
    others = [Node("10.0.0.2", {"GPU": 8}, {KIND: "T4"}), Node("10.0.0.3", {"CPU": 8}, {"pool": "learner"})]
    monkeypatch.setattr(gpu_memory, "alive_nodes", lambda: [*nodes, *others])
    fake = SimpleNamespace(
        remote=remote, wait=wait, get=answer, cancel=lambda task: asked.append({"cancelled": task, "waits": waits})
    )
    monkeypatch.setattr(gpu_memory, "ray", fake)
    return asked


KIND = gpu_memory.GPU_LABEL
POOL = ["learner.label_selector={pool: learner}", "cluster.address=10.0.0.1:6379", "learner.ranks=1"]


def with_gpu(*words: str, gpus: float = 1) -> RunConfig:
    return load("frozenlake", [f"learner.num_gpus={gpus}", f"rollout.num_gpus={gpus}", AUTO, *POOL, *words])


def test_a_gpu_of_each_kind_that_ranks_may_get_is_asked_and_the_smallest_counts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = on_gpus(monkeypatch, {"A100": 80, "L4": 24}, gpus=0.5)
    config = with_gpu(gpus=0.5)
    assert gpu_memory.memory_of_a_gpu(config) == 12 * GIB
    assert [one["label_selector"] for one in asked] == [
        {"pool": "learner", KIND: "A100"},
        {"pool": "learner", KIND: "L4"},
    ]
    assert all((one["num_gpus"], one["num_cpus"]) == (0.5, 0) for one in asked)
    said: list[str] = []
    token_budget.choose_token_budget(config, make_model(tmp_path), False, said.append, 0, gpu_memory.memory_of_a_gpu)
    assert "for 12.0 GiB of a GPU per rank" in said[0]


def test_a_kind_whose_gpus_are_taken_is_left_out_soon_after_the_first_answer_and_named(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    asked = on_gpus(monkeypatch, {"A100": 80, "H100": 90, "L4": 0})
    assert gpu_memory.memory_of_a_gpu(with_gpu()) == 80 * GIB
    assert asked[-1] == {"cancelled": "L4", "waits": [300.0, 20.0]}
    assert caplog.messages == ["learner.token_budget=auto: left out, all taken: the L4 of the cluster"]


def test_only_unlabelled_gpus_answer_for_unlabelled_ones() -> None:
    nodes = [Node(f"10.0.0.{i}", {"GPU": 1}, {KIND: kind} if kind else {}) for i, kind in enumerate(("A100", "", "L4"))]
    unknown = "a node of the cluster without a label of its GPU"
    asked = gpu_memory.gpu_selectors(LearnerConfig(num_gpus=1), nodes)
    assert asked.pop(unknown) == {KIND: "!in(A100, L4)"}
    assert asked == {f"the {kind} of the cluster": {KIND: kind} for kind in ("A100", "L4")}
    assert gpu_memory.gpu_selectors(LearnerConfig(num_gpus=1), nodes[1:2]) == {unknown: {}}


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        ({"A100": 0}, r"^learner\.token_budget=auto: no GPU of the cluster said .* \(none answered in 300 s\)"),
        ({"A100": 80, "L4": None}, r"^learner\.token_budget=auto: torch sees no CUDA device on the L4 of the cluster"),
        ({"A100": RayError("lost")}, r"^learner\.token_budget=auto: no GPU .* \(lost\); set learner\.max_memory_gib"),
        ({}, r"auto: no node that learner\.label_selector admits \(pool=learner\) has learner\.num_gpus=1 GPUs; "),
    ],
)
def test_gpus_that_do_not_answer_are_refused_and_the_reason_named(
    monkeypatch: pytest.MonkeyPatch, kinds: dict[str, Any], message: str
) -> None:
    on_gpus(monkeypatch, kinds)
    with pytest.raises(UserError, match=message):
        gpu_memory.memory_of_a_gpu(with_gpu())


def test_on_one_machine_the_driver_asks_no_task_and_refuses_gpus_that_torch_does_not_see(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked, config = on_gpus(monkeypatch, {"A100": 80}), with_gpu("cluster.address=''")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setattr(memory, "available", lambda learner: 24 * GIB)
    assert gpu_memory.memory_of_a_gpu(config) == 24 * GIB and asked == []
    monkeypatch.setattr(memory, "available", lambda learner: None)
    with pytest.raises(UserError, match="torch sees no CUDA device on this machine, although Ray lends its GPUs"):
        gpu_memory.memory_of_a_gpu(config)


def test_a_small_gpu_of_the_driver_refuses_no_model_that_a_cluster_trains(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(memory, "available", lambda learner: 0)
    shape, config = model_config(make_model(tmp_path)), with_gpu()
    assert bootstrap._check_memory(shape, config).startswith("learner needs 0.")
    with pytest.raises(UserError, match=r"has 0\.0"):
        bootstrap._check_memory(shape, with_gpu("learner.max_memory_gib=0.001"))
