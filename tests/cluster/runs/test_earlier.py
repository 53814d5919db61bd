"""What a run left behind before the kit's modules moved is read, and can go on (`tests/earlier`)."""

from pathlib import Path

import pytest
from starlette.testclient import TestClient

import squelch
from squelch.cluster.cli import main
from squelch.cluster.config import load
from squelch.cluster.inspector.app import application
from squelch.cluster.inspector.guard import Access
from squelch.cluster.loop.run import find_run
from squelch.cluster.runs.folder import RunFolder
from squelch.envs.config import EnvironmentConfig
from squelch.kit.archive.reader import read_groups
from squelch.kit.archive.rows import from_table
from squelch.learner.warmup.tiny import build_tiny
from squelch.learner.warmup.tiny_recipe import recipe_for
from tests.earlier import HERE, lay

RUN = HERE / "run"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy, in the folder from which the run was started."""
    monkeypatch.chdir(tmp_path)
    return lay(tmp_path)


def test_the_archive_has_every_trajectory_and_its_index_every_decision() -> None:
    trajectories = from_table(read_groups(RUN))
    summary = RunFolder(RUN).summary()
    assert summary is not None and len(trajectories) == 32
    assert sum(sum(one.loss_mask) for one in trajectories) == summary["tokens_sampled"]
    assert RunFolder(RUN).index()["decision"].to_pylist() == ["kept"] * summary["ledger"]["archived_groups"]


def test_scores_give_the_metrics_that_the_run_recorded() -> None:
    matrix = RunFolder(RUN).scores(1)["first_turn"]
    recorded = next(line for line in RunFolder(RUN).metrics() if "first_turn/mi_est" in line)
    found = squelch.mi(matrix.values, matrix.lengths, source=matrix.source).proxies  # of values in single precision
    assert found.conditional_entropy == pytest.approx(recorded["first_turn/conditional_entropy"], rel=1e-5)
    assert found.mi_est == pytest.approx(recorded["first_turn/mi_est"], abs=1e-6)


@pytest.mark.parametrize("words", [("status",), ("trace",), ("report",), ("filter",)])
def test_a_command_reads_it(words: tuple[str, ...], run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, str(run)]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    "page",
    [
        "/",
        "/group?step=1&group=000001-000",
        "/scores",
        "/scores/cell?row=0&column=0",
        "/templates",
        "/timeline",
        "/figures",
    ],
)
def test_the_inspector_shows_it(page: str) -> None:
    client = TestClient(application(RunFolder(RUN), Access(frozenset({"testserver"}), 80)))
    answer = client.get(page)
    assert answer.status_code == 200, answer.text


def test_resume_takes_over_its_configuration_and_the_state_of_its_checkpoint(run: Path) -> None:
    config = load(str(run / "config.yaml"), ["loop.steps=3"])
    state, checkpoint = find_run(config, resume=True)
    assert checkpoint == run.relative_to(Path.cwd()) / "checkpoints" / "step-2"
    assert (state.clock, state.version, state.optimizer_steps) == (2, 2, 4)


def test_its_tiny_policy_is_no_other_than_a_new_build_would_be(run: Path) -> None:
    small = {"width": 32, "layers": 1, "heads": 1, "kv_heads": 1, "feed_forward": 64, "max_position": 512}
    recipe = recipe_for("FrozenLake").model_copy(update={**small, "tokens": 400_000})
    assert build_tiny(Path("policy"), EnvironmentConfig(name="FrozenLake"), 0, recipe).reused
