"""Pictures in messages: the ids that stand for them, and where they lie in a trajectory of many turns."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from squelch.actors.messages import Completion, GenerationRequest
from squelch.actors.play.codec import ChatCodec
from squelch.envs.grid_worlds.picture import rows_of
from squelch.envs.registry import make
from squelch.kit.archive.rows import from_table, to_table
from squelch.kit.diagnosis.interventions import Swap, read_interventions
from squelch.kit.records.content import content_key
from squelch.kit.records.picture_files import picture_of_png
from squelch.kit.records.records import Task, Ticket
from squelch.kit.scoring.settings import PROBE_TWINS
from tests.actors.play.test_codec import CHATML, byte_level_bpe, save_model
from tests.actors.play.test_intervening import play as intervene
from tests.actors.play.test_player import LIMIT, Policy, play, player, ticket
from tests.envs.adapters.test_gymnasium_text import LAMP

START, END, PICTURE, VIDEO = VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
_IDS = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
_PREPROCESSOR = {
    **{"patch_size": 4, "merge_size": 2, "temporal_patch_size": 2, "min_pixels": 64, "max_pixels": 16384},
    **{"image_mean": [0.5] * 3, "image_std": [0.5] * 3},
}


def seeing(folder: Path, template: str = CHATML, **changed: Any) -> Path:
    """A model folder without weights whose tower has patches of 4 pixels, of which 2 x 2 become one id."""
    tokenizer = byte_level_bpe()
    tokenizer.add_special_tokens(list(VISION))
    save_model(folder, tokenizer, template)
    config = {
        "model_type": "qwen2_5_vl",
        "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "text_config": {"vocab_size": 384},
        "vision_config": {"patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2},
        **{key: tokenizer.token_to_id(name) for key, name in zip(_IDS, VISION, strict=True)},
    }
    (folder / "config.json").write_text(json.dumps(config | changed))
    (folder / "preprocessor_config.json").write_text(json.dumps(_PREPROCESSOR))
    return folder


@pytest.fixture(scope="module")
def codec(tmp_path_factory: pytest.TempPathFactory) -> ChatCodec:
    return ChatCodec(seeing(tmp_path_factory.mktemp("seeing")))


def lake(**options: Any):
    chosen = {"observation_format": "picture", "cell_pixels": 8} | options
    return lambda task: make("FrozenLake", task.split, chosen)


def whole_pictures(codec: ChatCodec, ids: np.ndarray, placed: Any, num_tokens: int) -> None:
    """Asserts that the ids hold exactly these pictures, each whole, and no other id of a picture in what was fed."""
    vision = codec.vision
    for position in placed:
        assert ids[position - 1] == vision.start_id and ids[position + num_tokens] == vision.end_id
        assert (ids[position : position + num_tokens] == vision.picture_id).all()
    assert np.isin(ids, list(vision.control_ids)).sum() == len(placed) * (num_tokens + 2)


class SamplesPlaceholders(Policy):
    """Ends some turns with ids of pictures."""

    async def __call__(self, worker, request):
        answer = await super().__call__(worker, request)
        vision = self.codec.vision
        answer.token_ids[-3:-1] = (vision.start_id, vision.picture_id)
        return answer


@pytest.mark.parametrize("policy_of", [Policy, SamplesPlaceholders])
@pytest.mark.parametrize("form", ["picture", "both"])
def test_pictures_of_many_turns_lie_whole_in_one_sequence_that_only_grows(codec, form: str, policy_of: Any) -> None:
    policy = policy_of(codec, 0.3)
    (group,) = play(player(codec, policy, lake(observation_format=form)), ticket())
    requests = {request.request_id: request for request in policy.requests}
    for trajectory in group.trajectories:
        assert trajectory.failure is None and len(trajectory.pictures) == len(trajectory.turns)
        fed = np.where(trajectory.loss_mask, -1, trajectory.token_ids)
        whole_pictures(codec, fed, [one.position for one in trajectory.pictures], 16)
        for number, turn in enumerate(trajectory.turns):
            asked = requests[f"{group.ticket.ticket_id}/{trajectory.index}/{number}"]
            assert (asked.prompt_ids == trajectory.token_ids[: turn.sample_start]).all()
            shown = [(one.position, one.digest) for one in trajectory.prompt_pictures(number)]
            assert shown == [(position, one.identity[:32]) for position, one in asked.pictures]
    back = from_table(to_table(group))
    legend = make("FrozenLake", "train", {"observation_format": "picture", "cell_pixels": 8}).legend
    rows = rows_of(picture_of_png(back[0].pictures[0].data, "archive").rgb, legend)
    assert rows is not None and sum(row.count("P") for row in rows) == 1


def test_tasks_with_equal_ids_have_contents_of_their_own(codec) -> None:
    one = player(codec, Policy(codec), lake())
    groups = play(one, *(ticket(f"000001-{seed:03}", 1, task_seed=seed) for seed in range(4)))
    first = [group.trajectories[0] for group in groups]
    assert len({tuple(t.prompt_ids(0).tolist()) for t in first}) == 1
    assert len({content_key(t.prompt_ids(0), t.prompt_pictures(0)) for t in first}) == len({g.task_key for g in groups})


def test_no_context_cuts_a_picture(codec) -> None:
    whole = play(player(codec, Policy(codec), lake()), ticket(size=1))[0].trajectories[0]
    seen = set()
    for context in range(whole.turns[0].sample_start + LIMIT, len(whole.token_ids) + LIMIT, 7):
        (trajectory,) = play(player(codec, Policy(codec), lake(), context), ticket(size=1))[0].trajectories
        fed = np.where(trajectory.loss_mask, -1, trajectory.token_ids)
        whole_pictures(codec, fed, [one.position for one in trajectory.pictures], 16)
        assert len(trajectory.token_ids) <= context
        assert trajectory.truncated or len(trajectory.turns) == len(whole.turns)
        seen.add(len(trajectory.pictures))
    assert len(seen) > 1, "contexts of several numbers of pictures were tried"


def test_a_picture_that_does_not_fit_loses_its_trajectory_with_the_cause(codec) -> None:
    (group,) = play(player(codec, Policy(codec), lake(cell_pixels=9)), ticket(size=2))
    assert all("36 x 36 pixels does not fit" in str(one.failure) for one in group.trajectories)


class Looking:
    """Reasons the best answer to its picture. `obeys`: whether it answers what its reasoning says, or what it sees."""

    def __init__(self, codec: ChatCodec, obeys: bool) -> None:
        self.codec, self.obeys = codec, obeys
        self.opening = 0
        """Ids of a first prompt; they are alike for all tasks."""

    async def __call__(self, worker: str, request: GenerationRequest) -> Completion:
        ((position, picture),) = request.pictures
        whole_pictures(self.codec, request.prompt_ids, [position], 16)
        env = make("FrozenLake")
        env.reset(seed=0, options={"noise_seed": 0})
        env.start("\n".join(" ".join(row) for row in rows_of(picture.rgb, env.legend)))
        best = env.best_answer(2)
        self.opening = self.opening or len(request.prompt_ids)
        text = f" so {best} </think> <answer> {best} </answer>"
        if begun := self.codec.text(request.prompt_ids[self.opening :]):
            said = begun.partition("</think>")[0].removeprefix(" so ").strip()
            text = f" <answer> {said if self.obeys else best} </answer>" if said else " what now"
        sampled = np.array([*self.codec.encode(text), self.codec.stop_ids[0]], dtype=np.int32)
        return Completion(request.request_id, sampled, np.zeros(len(sampled), np.float32), "stop", 0, 0)


@pytest.mark.parametrize("obeys", [True, False])
def test_interventions_show_each_turn_the_picture_of_its_own_prompt(codec, obeys: bool) -> None:
    tasks = [Task("FrozenLake", seed, "validation") for seed in range(24)]
    swaps = [
        Swap(Ticket(f"v-{i}", 0, tasks[i], 1, 3, 0.5, "rollout-0"), tuple(tasks[i + 1 : i + 5])) for i in range(16)
    ]
    found = read_interventions(intervene(codec, Looking(codec, obeys), swaps, 200, make_env=lake()))
    assert found.change.value == float(obeys) and found.tasks == 16 and found.left_out == {}
    assert found.twins > 0 and found.answers["donor"]["donors"].value == float(obeys)


@pytest.mark.parametrize(("form", "alike"), [("picture", True), ("both", False)])
def test_a_cluster_is_the_prompt_that_is_played_and_its_twins_as_pictures(codec, form: str, alike: bool) -> None:
    asked, shows = ticket(size=1), lake(observation_format=form)
    (found,) = play_clusters(player(codec, Policy(codec), shows), asked).values()
    own, *twins = found.prompts()
    assert 1 < len(twins) <= PROBE_TWINS and found.answers_changed is not None
    played = play(player(codec, Policy(codec), shows), asked)[0].trajectories[0]
    assert content_key(played.prompt_ids(0), played.prompt_pictures(0)) == content_key(*own)
    for ids, pictures in found.prompts():
        whole_pictures(codec, ids, [one.position for one in pictures], 16)
        assert len(pictures) == 1
    assert all(np.array_equal(ids, own[0]) for ids, _ in twins) == alike
    boards = [one.decoded("here").rgb for _, (one,) in found.prompts()]
    changed = [(boards[0] != other).reshape(4, 8, 4, 8, 3).any(axis=(1, 3, 4)).sum() for other in boards[1:]]
    assert set(changed) == {2}, "one thing is elsewhere"
    assert len({board.tobytes() for board in boards}) == len(boards)


def test_clusters_of_pictures_are_refused_where_only_ids_would_find_the_nearest(codec) -> None:
    def lamp(task: Task):
        return make("Gymnasium", task.split, LAMP)

    with pytest.raises(ValueError, match=r"shows pictures and has no near variations of its tasks .*text alone"):
        play_clusters(player(codec, Policy(codec), lamp), ticket())


def play_clusters(one: Any, *tickets: Ticket) -> Any:
    try:
        return asyncio.run(one.clusters(tickets))
    finally:
        one.close()
