"""Two learner ranks, each layer sharded by itself, against one that has all of its small layers in one piece."""

import shutil
import time
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file, save_file

from squelch.actors.messages import StepTerms
from squelch.learner import process_group
from squelch.learner.publish import gathered
from squelch.learner.trainer import Trainer
from tests.disk import files_of_at_most
from tests.learner.checkpoint.hostile import pickle_forbidden
from tests.learner.models import make_agents, make_config, make_groups, poison
from tests.learner.ranks import TIMEOUT_S, run_ranks

pytestmark = pytest.mark.slow
STEPS = 5
OBJECTIVE = {"advantage": "grpo_no_std", "kl": {"coefficient": 0.05}, "entropy_coefficient": 0.01}
CONFIG = make_config(minibatches=1, objective=OBJECTIVE, optimizer={"warmup_steps": 2})
LAYERS_APART = CONFIG.model_copy(update={"min_num_params": 0})


def parameters(trainer: Trainer) -> torch.Tensor:
    return torch.cat([tensor.flatten() for _, tensor in gathered(trainer.policy)])


def moments(trainer: Trainer) -> torch.Tensor:
    """All that the optimizer keeps, as one vector."""
    states = [trainer.optimizer.state[p] for p in trainer.policy.parameters()]
    parts = [s[key].full_tensor() for s in states for key in ("exp_avg", "exp_avg_sq")]
    return torch.cat([part.flatten() for part in parts] + [torch.stack([s["step"] for s in states])])


def save_on_a_full_disk(trainer: Trainer, folder: Path) -> str:
    """What a rank says whose files, or the last rank's, cannot grow."""
    last = trainer.rank == trainer.world_size - 1
    try:
        with files_of_at_most(512) if last else nullcontext():
            trainer.save(folder / f"from-{trainer.world_size}", {"full": True})
    except ValueError as error:
        return str(error)
    return "written"


def load_with_one_bad_value(trainer: Trainer, folder: Path) -> str:
    """What a rank says of a checkpoint in which the first value of the embedding, on rank 0, is not a number."""
    damaged = folder / f"damaged-{trainer.world_size}"
    if trainer.rank == 0:
        shutil.copytree(folder / f"from-{trainer.world_size}", damaged)
        file = damaged / "sharded" / "00000-00000.safetensors"
        tensors = load_file(file)
        tensors["policy/parameter/model.embed_tokens.weight"][0, 0] = float("nan")
        save_file(tensors, file)
    dist.barrier()
    try:
        trainer.load(damaged)
    except ValueError as error:
        return str(error)
    return "loaded"


def late_rank_is_waited_for(trainer: Trainer) -> bool:
    """A rank that uses its disk for longer than a collective may take is waited for as long as a checkpoint may."""
    process_group.distributed_c10d._set_pg_timeout(timedelta(seconds=0.5))
    with process_group.waiting(TIMEOUT_S, TIMEOUT_S):
        if trainer.rank == 1:
            time.sleep(1.5)
        dist.barrier()
    return True


def of_segments(trainer: Trainer) -> dict[str, torch.Tensor]:
    """Gradients of trajectories of several segments, under each kind of rule that looks at whole trajectories."""
    own, found = trainer.config, dict[str, torch.Tensor]()
    kl = own.objective.kl.model_copy(update={"place": "reward"})
    for name, update in (("mean", {}), ("ratio", {"ratio": "sequence"}), ("kl", {"kl": kl})):
        trainer.config = own.model_copy(
            update={"token_budget": 300, "objective": own.objective.model_copy(update=update)}
        )
        found[name] = torch.cat([part.flatten() for part in trainer.gradients(make_agents()).values()])
    trainer.config = own
    return found


def work(trainer: Trainer, folder: Path) -> None:
    """Gradients, parameters after five steps, a checkpoint and one that fails, one step more, refused steps, too few
    rows for all."""
    found = {"gradients": trainer.gradients(make_groups(5), StepTerms(0.9))}
    reports = [trainer.train_step(step, make_groups(3 + step % 3, seed=step), StepTerms(0.9)) for step in range(STEPS)]
    found["metrics"] = [report.metrics for report in reports]
    found["after"] = parameters(trainer)
    found["moments"] = moments(trainer)
    found["segments"] = of_segments(trainer)
    with pickle_forbidden():
        trainer.save(folder / f"from-{trainer.world_size}", {"ranks": trainer.world_size})
    found["full disk"] = save_on_a_full_disk(trainer, folder)
    before = trainer.marks.seen().marks
    refused = trainer.train_step(
        STEPS, poison(make_groups(8), 5, "loss")
    )  # only one rank sees the ratio that overflows
    found["refused"], found["unchanged"] = refused.refused, bool((parameters(trainer) == found["after"]).all())
    found["passes"] = trainer.marks.seen().marks - before
    found["waited"] = late_rank_is_waited_for(trainer)
    single = [(group_id, members[:1]) for group_id, members in make_groups(1)]
    found["single"] = trainer.train_step(STEPS, single).updated
    lopsided = [(group_id, members[:3]) for group_id, members in make_groups(1)]
    found["lopsided"] = trainer.train_step(STEPS, lopsided).updated
    found["bundle"] = trainer.publish(6, lambda chunk: chunk)
    with pickle_forbidden():
        assert trainer.load(folder / f"from-{trainer.world_size}") == {"ranks": trainer.world_size}
    found["restored"] = torch.equal(parameters(trainer), found["after"])
    found["restored_moments"] = torch.equal(moments(trainer), found["moments"])
    found["damaged"] = load_with_one_bad_value(trainer, folder)
    found["unharmed"] = torch.equal(parameters(trainer), found["after"]) and trainer.optimizer_steps == STEPS
    trainer.train_step(STEPS, make_groups(seed=9))
    found["next"] = parameters(trainer)
    trainer = Trainer(trainer.model_dir, trainer.config, trainer.rank, trainer.world_size, resumes=True)
    assert trainer.load(folder / "from-1") == {"ranks": 1}
    found["of_one"], found["moments_of_one"] = parameters(trainer), moments(trainer)
    trainer.train_step(STEPS, make_groups(seed=9))
    found["next_from_one"] = parameters(trainer)
    torch.save(found, folder / f"{trainer.world_size}-{trainer.rank}.pt")


@pytest.fixture(scope="module")
def folder(model_dir: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one rank and two ranks did, as files."""
    folder = tmp_path_factory.mktemp("ranks")
    process_group.start(0, 1, "127.0.0.1", 0, TIMEOUT_S, "cpu")
    work(Trainer(model_dir, CONFIG), folder)
    process_group.stop()
    run_ranks(2, model_dir, LAYERS_APART, work, folder)
    return folder


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, dict]:
    return {name: torch.load(folder / f"{name}.pt", weights_only=False) for name in ("1-0", "2-0", "2-1")}


def relative(one: torch.Tensor, other: torch.Tensor) -> float:
    return float((one.double() - other.double()).norm() / other.double().norm())


def test_every_gradient_tensor_is_that_of_one_rank(found: dict[str, dict]) -> None:
    for name, gradient in found["1-0"]["gradients"].items():
        for rank in ("2-0", "2-1"):
            assert relative(found[rank]["gradients"][name], gradient) < 1e-5, name


def test_trajectories_of_several_segments_have_the_gradients_of_one_rank(found: dict[str, dict]) -> None:
    for name, gradient in found["1-0"]["segments"].items():
        assert relative(found["2-0"]["segments"][name], gradient) < 1e-5, name
        assert relative(found["2-1"]["segments"][name], gradient) < 1e-5, name


def test_parameters_after_five_steps_are_those_of_one_rank(found: dict[str, dict]) -> None:
    assert relative(found["2-0"]["after"], found["1-0"]["after"]) < 1e-6
    assert (found["2-0"]["after"] == found["2-1"]["after"]).all()


def test_metrics_are_over_all_ranks(found: dict[str, dict]) -> None:
    for one, other in zip(found["1-0"]["metrics"], found["2-1"]["metrics"], strict=True):
        assert {name: pytest.approx(value, rel=1e-3, abs=1e-6) for name, value in one.items()} == other


def test_what_one_rank_refuses_all_refuse_with_the_group(found: dict[str, dict]) -> None:
    for rank in found.values():
        assert rank["refused"] == "non-finite gradient in group 000001-005" and rank["unchanged"]
    assert found["2-0"]["passes"] == found["2-1"]["passes"]


def test_every_rank_writes_its_own_shards_and_the_first_what_all_read_apart(
    folder: Path, found: dict[str, dict]
) -> None:
    files = {path.stem: load_file(path) for path in (folder / "from-2" / "sharded").iterdir()}
    of_all = {name: all("/step/" in key for key in tensors) for name, tensors in files.items()}
    assert of_all == {"00000-00000": False, "00000-00001": True, "00001-00000": False}
    assert not any("/step/" in key for name in ("00000-00000", "00001-00000") for key in files[name])


def test_a_checkpoint_that_one_rank_cannot_read_changes_none(found: dict[str, dict]) -> None:
    for rank in found.values():
        assert "holds values from nan" in rank["damaged"] and rank["unharmed"]


def test_a_checkpoint_that_one_rank_cannot_write_fails_on_all_and_keeps_the_one_before(found, folder: Path) -> None:
    for name, rank in found.items():
        assert f"from-{name[0]} could not be written, and nothing of it was kept" in rank["full disk"]
    assert not list(folder.glob(".from-*.partial"))


def test_a_rank_that_uses_its_disk_is_waited_for(found: dict[str, dict]) -> None:
    assert all(rank["waited"] for rank in found.values())


def test_fewer_rows_than_ranks_still_train(found: dict[str, dict]) -> None:
    assert all(rank["single"] for rank in found.values())


def test_a_rank_whose_rows_share_an_opening_keeps_step_with_one_whose_do_not(found: dict[str, dict]) -> None:
    assert all(rank["lopsided"] for rank in found.values())


def test_rank_zero_publishes_what_one_rank_would(found: dict[str, dict]) -> None:
    one, two = found["1-0"]["bundle"], found["2-0"]["bundle"]
    assert found["2-1"]["bundle"] is None
    assert np.allclose(one.probe_log_probs, two.probe_log_probs, atol=1e-4)
    assert [list(chunk) for chunk in one.chunks] == [list(chunk) for chunk in two.chunks]


def test_a_restored_run_continues_as_it_would_have(found: dict[str, dict]) -> None:
    assert all(rank["restored"] and rank["restored_moments"] for rank in found.values())
    assert relative(found["2-0"]["next"], found["1-0"]["next"]) < 1e-6


def test_a_checkpoint_of_one_rank_continues_on_two(found: dict[str, dict]) -> None:
    for rank in ("2-0", "2-1"):
        assert torch.equal(found[rank]["of_one"], found["1-0"]["after"])
        assert torch.equal(found[rank]["moments_of_one"], found["1-0"]["moments"])
        assert relative(found[rank]["next_from_one"], found["1-0"]["next"]) < 1e-6


@pytest.mark.usefixtures("alone")
def test_a_checkpoint_of_two_ranks_continues_on_one(folder: Path, found: dict[str, dict], model_dir: Path) -> None:
    trainer = Trainer(model_dir, CONFIG)
    assert trainer.load(folder / "from-2") == {"ranks": 2}
    assert torch.equal(parameters(trainer), found["2-0"]["after"])
    assert torch.equal(moments(trainer), found["2-0"]["moments"])
    assert trainer.optimizer_steps == STEPS
    trainer.train_step(STEPS, make_groups(seed=9))
    assert relative(parameters(trainer), found["2-0"]["next"]) < 1e-6
