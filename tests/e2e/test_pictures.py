"""A real run whose environment shows pictures: Ray, vLLM, two ranks and the scorer, on a policy that learned to see for
some seconds. What each part computes is shown in its own tests."""

from pathlib import Path

import numpy as np
import pytest

from squelch.actors.play.codec import ChatCodec
from squelch.envs.config import EnvironmentConfig
from squelch.envs.registry import resolved
from squelch.kit.archive.reader import is_of_step, read_groups, read_metrics
from squelch.kit.archive.rows import from_table
from squelch.learner.warmup.tiny import build_tiny
from squelch.learner.warmup.tiny_recipe import TinyTower, recipe_for
from tests.e2e.support import Run, assert_sound

pytestmark = [pytest.mark.ray, pytest.mark.timeout(1000)]
LAKE = resolved(EnvironmentConfig(name="FrozenLake", options={"observation_format": "picture", "cell_pixels": 8}))
STEPS = 2


@pytest.fixture(scope="module")
def seeing_policy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tower = TinyTower(primer_tokens=20_000, least_true=0.0)
    recipe = recipe_for("FrozenLake").model_copy(update={"tokens": 60_000, "tower": tower})
    return Path(build_tiny(tmp_path_factory.mktemp("seeing") / "tiny", LAKE, 0, recipe).directory)


def test_a_run_from_pictures_trains_and_every_picture_is_kept_where_it_was_shown(
    seeing_policy: Path, tmp_path: Path
) -> None:
    run = Run(
        *("train", "frozenlake-pictures", f"model.path={seeing_policy}", f"runs_dir={tmp_path}", "recorder.port=0"),
        *(f"loop.steps={STEPS}", "loop.prompts=4", "sampling.group_size=8", "validation.every=0", "scorer.every=1"),
        *("scorer.probe.tasks=8", "scorer.probe.samples=2"),
        *("rollout.kv_cache_gib=0.25", "rollout.max_num_seqs=64", "name=seen"),
    )
    assert run.finish() == 0, run.text
    folder = tmp_path / "seen"
    lines = read_metrics(folder)
    steps = [line for line in lines if is_of_step(line) and line["step"] > 0]
    updated = [
        line["learner/mismatch_on_policy"] for line in steps if line.get("learner/mismatch_on_policy") is not None
    ]
    assert len(steps) == STEPS and updated and max(updated) < 1e-5, "engine and learner see the same pictures"
    assert_sound(folder, seeing_policy)
    vision = ChatCodec(seeing_policy).vision
    played = from_table(read_groups(folder))
    for one in played:
        opened = np.flatnonzero((one.token_ids == vision.start_id) & ~one.loss_mask)
        assert [picture.position for picture in one.pictures] == (opened + 1).tolist() and len(opened) >= 1
    assert len({picture.digest for one in played for picture in one.pictures}) > 8
    scored = [line["first_turn/mi_est"] for line in lines if line.get("first_turn/mi_est") is not None]
    assert scored, "tasks whose ids are equal are told apart by their pictures"
    read = [line for line in lines if line.get("trajectory/mi_est") is not None]
    assert read and all(
        line[f"trajectory/modality/{part}"] is not None for line in read for part in ("picture", "text")
    )
    verdicts = {(line["trajectory/modality/text_alone"], line["first_turn/regime/blind"]) for line in read}
    assert verdicts <= {(0.0, 0.0), (1.0, 0.0)}, "first turns show one text"
    assert any(line.get("alarm/blind") in (0.0, 1.0) for line in lines), "the pictures alone show the lake"
    compared = [line["probe/hard/tasks"] for line in lines if line.get("probe/hard/mi") is not None]
    assert compared and min(compared) > 1, "and from near variations of them"
