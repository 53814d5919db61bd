"""SearchQA: made-up worlds, questions as published, rewards, and what bad input gets."""

import asyncio
import json
import random
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.actors.config import EnvironmentActorConfig
from squelch.actors.messages import Completion, GenerationRequest
from squelch.actors.play.codec import ChatCodec
from squelch.actors.play.player import EnvironmentPlayer
from squelch.actors.sampling import SamplingConfig
from squelch.envs.bracketed import MAX_ARGUMENT, read_bracketed
from squelch.envs.config import EnvironmentConfig
from squelch.envs.registry import make
from squelch.envs.retrieval import RetrieverError
from squelch.envs.search_qa.environment import SearchQA
from squelch.envs.search_qa.questions import REWARDS, Question, exact_match, f1, normalised
from squelch.envs.search_qa.world import RELATIONS, World, generate
from squelch.envs.wording import DemonstrationQuality
from squelch.kit.records.failures import FailureCause
from squelch.kit.records.records import Group, Task, Ticket
from tests.actors.play.test_codec import byte_level_bpe, save_model
from tests.envs.demonstrations import PERFECT, last_reward
from tests.envs.hostile_searches import hostile_searches
from tests.envs.retriever_server import hits, serving, sleeping

SMALL = {"num_passages": 2000}


# --- the made-up world ---


def test_a_world_has_one_passage_for_each_name():
    world = World(3, 5000)
    passages = list(world.passages())
    assert len(passages) == 5000 == len({p.title for p in passages}) == len({p.id for p in passages})
    assert all(passage.text.startswith(passage.title) for passage in passages)
    assert sum(world.counts.values()) == 5000


def test_names_stay_unique_in_a_large_world():
    world = World(0, 1_000_000)
    rows = range(0, world.size, 17)
    assert len({world.name(world.entity(row)) for row in rows}) == len(rows)


def test_a_question_is_answered_by_following_its_passages():
    world = World(0, 2000)
    texts = {passage.title: passage.text for passage in world.passages()}
    for seed in range(300):
        question = generate(world, seed, "train", 2, 3)
        assert len(question.hops) == len(question.asked) in (2, 3)
        assert question.text.endswith(f"{question.hops[0]}?")
        for hop, asked, following in zip(
            question.hops, question.asked, (*question.hops[1:], question.answer), strict=True
        ):
            assert f" {asked} {following}." in texts[hop]
        assert question.answer in question.guesses or question.answer not in question.hops


def test_worlds_of_other_seeds_are_others():
    assert World(0, 500).passage(World(0, 500).entity(7)) != World(1, 500).passage(World(1, 500).entity(7))
    assert {"capital", "country"} <= {r.name for kind in RELATIONS.values() for r in kind}


def test_a_capital_lies_in_its_country():
    world = World(0, 2000)
    country = world.entity(1999)
    relations = {r.name: r for kind in RELATIONS.values() for r in kind}
    assert world.follow(world.follow(country, relations["capital"]), relations["country"]) == country


@pytest.mark.slow
def test_splits_share_no_question_and_hold_ten_thousand_each():
    keys = {}
    for split, draws in (("train", 10_600), ("validation", 16_000)):
        world = World(0, 100_000)
        keys[split] = {generate.__wrapped__(world, seed, split, 2, 2).key for seed in range(draws)}
        assert len(keys[split]) >= 10_000
    assert not keys["train"] & keys["validation"]


# --- playing ---


def test_the_solver_succeeds_and_finds_each_hop_where_it_looks():
    env, found, searches = make("SearchQA", "validation", {**SMALL, "max_hops": 3}), 0, 0
    for seed in range(100):
        env.reset(seed=seed, options={"noise_seed": 0})
        for action in env.solution():
            observation, reward, terminated, _, info = env.step(action)
            searches += not terminated
            found += not terminated and observation.startswith(action[len("search[") : -1])
        assert terminated and info["success"] and reward == 1.0 and env.solution() is None
    assert found > 0.97 * searches


def test_observations_keep_to_their_bounds():
    env = make("SearchQA", options={**SMALL, "results": 3, "max_result_length": 50})
    env.reset(seed=0)
    lines = env.step("search[person city]")[0].split("\n")
    assert len(lines) == 3 and all(len(line) <= 50 for line in lines)
    assert env.step("search[zzz]")[0] == "nothing found"


def test_searches_are_counted_and_an_answer_ends_the_episode():
    env = make("SearchQA", options=SMALL)
    env.reset(seed=0)
    infos = [env.step("search[x]")[4], env.step("Search [ y  z ]")[4]]
    assert [info["searches"] for info in infos] == [1, 2]
    _, reward, terminated, truncated, info = env.step("answer[nobody]")
    assert (reward, terminated, truncated, info["success"]) == (0.0, True, False, False)


@pytest.mark.parametrize(
    ("text", "action"),
    [
        ("search[a b]", "search[a b]"),
        ("  SEARCH  [ a\n b ] ", "search[a b]"),
        ("answer[a [b] c]", "answer[a [b] c]"),
        ("answer[" + "x" * 500 + "]", "answer[" + "x" * MAX_ARGUMENT + "]"),
        ("search[]", None),
        ("search[ \n]", None),
        ("search", None),
        ("search[a", None),
        ("search[a] please", None),
        ("please search[a]", None),
        ("look[a]", None),
    ],
)
def test_actions_are_read_by_one_grammar(text, action):
    assert make("SearchQA", options=SMALL).read_action(text) == action


@given(st.text(max_size=300), st.sampled_from(["search", "answer", "click", ""]))
@settings(max_examples=300, deadline=None)
def test_what_was_read_reads_as_itself(text, verb):
    action = read_bracketed(f"{verb}[{text}]", ("search", "answer"))
    assert action is None or (read_bracketed(action, ("search", "answer")) == action and len(action) <= 208)


def test_two_thousand_hostile_actions_raise_nothing():
    env = make("SearchQA", options=SMALL)
    env.reset(seed=0)
    for count, text in enumerate(hostile_searches(random.Random(0), 2000, ("search", "answer"))):
        observation, reward, terminated, _, _ = env.step(text)
        assert env.observation_space.contains(observation) and 0 <= reward <= 1
        if terminated:
            env.reset(seed=count)


# --- rewards ---


@pytest.mark.parametrize(
    ("given_answer", "right", "em", "expected_f1"),
    [
        ("The  Eiffel-Tower!", "eiffel tower", 0.0, 0.0),
        ("the Eiffel Tower.", "Eiffel tower", 1.0, 1.0),
        ("tower", "the Eiffel Tower", 0.0, 2 / 3),
        ("yes it is", "yes", 0.0, 0.0),
        ("a", "the", 0.0, 0.0),
        ("The", "the", 1.0, 1.0),
        ("", "x", 0.0, 0.0),
        ("red red", "red blue", 0.0, 0.5),
    ],
)
def test_answers_are_compared_as_in_squad(given_answer, right, em, expected_f1):
    assert exact_match(given_answer, right) == em
    assert f1(given_answer, right) == pytest.approx(expected_f1)


@given(st.text(max_size=60), st.text(max_size=60))
@settings(max_examples=300, deadline=None)
def test_scores_lie_in_the_unit_interval_and_agree_on_equality(one, other):
    assert 0 <= f1(one, other) <= 1
    assert f1(one, one) == exact_match(one, one) == 1
    assert exact_match(one, other) <= f1(one, other)
    assert normalised(normalised(one)) == normalised(one) or not one.isascii()


QUESTION = Question("q", "Ada Moro", ("A", "B"), "key")


@pytest.mark.parametrize(
    ("name", "answer", "searches", "reward"),
    [
        ("exact_match", "ada moro", 9, 1.0),
        ("exact_match", "ada", 0, 0.0),
        ("f1", "ada moro", 9, 1.0),
        ("f1", "ada", 0, 2 / 3),
        ("f1", "ada b c d e", 0, 0.0),  # 2/7 is under the floor
        ("correct_efficient", "ada moro", 0, 1.0),
        ("correct_efficient", "ada moro", 2, 1.0),
        ("correct_efficient", "ada moro", 4, 0.8),
        ("correct_efficient", "ada moro", 99, 0.0),
        ("correct_efficient", "ada", 2, 0.0),
    ],
)
def test_each_reward_is_what_its_name_says(name, answer, searches, reward):
    assert REWARDS[name](answer, QUESTION, searches, 0.1) == pytest.approx(reward)


def test_the_option_chooses_the_reward():
    rewards = {}
    for name in REWARDS:
        env = make("SearchQA", options={**SMALL, "reward": name})
        env.reset(seed=3)
        answer = env.solution()[-1]
        for _ in range(4):
            env.step("search[nothing]")
        rewards[name] = env.step(answer)[1]
    assert rewards == {"correct_efficient": pytest.approx(0.8), "exact_match": 1.0, "f1": 1.0}


# --- demonstrations ---


def test_perfect_demonstrations_solve_and_usual_ones_differ_within_a_group():
    env, rng = make("SearchQA", options=SMALL), random.Random(0)
    assert all(last_reward(env, seed, rng, PERFECT) == 1.0 for seed in range(50))
    groups = [[last_reward(env, seed, rng, DemonstrationQuality()) for _ in range(16)] for seed in range(20)]
    assert sum(len(set(group)) > 1 for group in groups) > 15


def test_a_demonstration_names_what_it_looks_for():
    env = make("SearchQA", options=SMALL)
    env.reset(seed=3)
    for hop, following in pairwise((*env._question.hops, None)):
        reasoning, (action,) = env.demonstrate(random.Random(1), PERFECT)
        assert hop in reasoning and action == f"search[{hop}]" and following != hop
        env.step(action)


# --- published questions ---


def hotpot_rows(names: str, split: str) -> list[dict]:
    return [
        {
            "id": f"{split}{name}",
            "question": f"Which colour has the {name} of {split}?",
            "answer": f"colour {name}",
            "type": "bridge",
            "level": "easy",
            "supporting_facts": {"title": [f"{name} one", f"{name} two", f"{name} two"], "sent_id": [0, 0, 1]},
            "context": {
                "title": [f"{name} one", f"{name} two", "Shared"],
                "sentences": [[f"The {name}", f" leads to {name} two."], [f"{name} two has colour {name}."], ["Same."]],
            },
        }
        for name in names
    ]


@pytest.fixture
def hotpot(tmp_path):
    folder = tmp_path / "hotpot_qa" / "distractor"
    folder.mkdir(parents=True)
    pq.write_table(pa.Table.from_pylist(hotpot_rows("PQRST", "train")), folder / "train-00000-of-00001.parquet")
    pq.write_table(pa.Table.from_pylist(hotpot_rows("UV", "valid")), folder / "validation-00000-of-00001.parquet")
    return {"questions": str(folder.parent), "cache": str(tmp_path / "cache")}


def test_hotpotqa_is_read_as_published_with_its_own_splits(hotpot):
    asked = {}
    for split in ("train", "validation"):
        env = make("SearchQA", split, {**hotpot, "subset": "distractor"})
        asked[split] = [env.reset(seed=seed)[0] for seed in range(20)]
        for seed in range(5):
            env.reset(seed=seed)
            assert [env.step(action)[4]["success"] for action in env.solution()] == [False, False, True]
    assert {text.split()[-1] for text in asked["train"]} == {"train?"} and len(set(asked["train"])) == 5
    assert {text.split()[-1] for text in asked["validation"]} == {"valid?"} and len(set(asked["validation"])) == 2


def test_hotpotqas_own_json_files_are_read_too(hotpot, tmp_path):
    def as_pairs(row: dict) -> dict:
        context, facts = row["context"], row["supporting_facts"]
        return {
            **row,
            "context": [list(pair) for pair in zip(context["title"], context["sentences"], strict=True)],
            "supporting_facts": [list(pair) for pair in zip(facts["title"], facts["sent_id"], strict=True)],
        }

    folder = tmp_path / "json"
    folder.mkdir()
    for file, split, names in (("hotpot_train_v1.1", "train", "PQRST"), ("hotpot_dev_distractor_v1", "valid", "UV")):
        rows = [as_pairs(row) for row in hotpot_rows(names, split)]
        (folder / f"{file}.json").write_text(json.dumps(rows))
    options = {"questions": str(folder), "cache": hotpot["cache"]}
    for split, whose in (("train", "train?"), ("validation", "valid?")):
        env = make("SearchQA", split, options)
        assert env.reset(seed=1)[0].endswith(whose)
        assert [env.step(action)[4]["success"] for action in env.solution()] == [False, False, True]


def test_the_paragraphs_of_both_splits_are_searched_each_once(hotpot):
    env = make("SearchQA", options={**hotpot, "results": 20})
    env.reset(seed=0)
    assert env.step("search[two]")[0].count("two has colour") == 7
    assert env.step("search[shared]")[0] == "Shared: Same."


def test_a_question_of_the_published_validation_split_never_trains(hotpot, tmp_path):
    folder = tmp_path / "leaky"
    folder.mkdir()
    rows = hotpot_rows("PQ", "train") + hotpot_rows("U", "valid")
    pq.write_table(pa.Table.from_pylist(rows), folder / "train.parquet")
    pq.write_table(pa.Table.from_pylist(hotpot_rows("UV", "valid")), folder / "validation.parquet")
    env = make("SearchQA", options={**hotpot, "questions": str(folder)})
    assert {env.reset(seed=seed)[0].split()[-1] for seed in range(20)} == {"train?"}


def test_questions_with_a_corpus_of_the_users_need_no_context(tmp_path):
    rows = [{"question": f"Where is {i}?", "answer": "Here"} for i in range(40)]
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "corpus.jsonl").write_text('{"title": "Place", "text": "It is here"}')
    options = {name: str(tmp_path / path) for name, path in (("questions", "train.jsonl"), ("corpus", "corpus.jsonl"))}
    env = make("SearchQA", options={**options, "cache": str(tmp_path / "cache")})
    env.reset(seed=0)
    assert env.step("search[place]")[0] == "Place: It is here"
    assert env.solution() == ["answer[Here]"]


# --- bad input ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reward": "best"}, r"environment\.options\.reward: .*'correct_efficient', 'exact_match' or 'f1'"),
        ({"num_passages": 5}, r"environment\.options\.num_passages: .*greater than or equal to 100"),
        ({"results": 0}, r"environment\.options\.results"),
        ({"search_cost": 2}, r"environment\.options\.search_cost"),
        ({"min_hops": 3, "max_hops": 2}, "min_hops=3 is above max_hops=2"),
        ({"subset": "distractor"}, "subset='distractor' without questions"),
        ({"retriever_url": "localhost:8000"}, r"environment\.options\.retriever_url"),
        ({"retriever_url": "http://x", "corpus": "y"}, "corpus and retriever_url exclude each other"),
        ({"questions": "/nowhere/x.parquet"}, "/nowhere/x.parquet: no such file"),
        ({"corpus": "/nowhere/x.jsonl"}, "/nowhere/x.jsonl: no such file"),
    ],
)
def test_a_wrong_option_is_refused_with_what_would_be_right(options, message):
    with pytest.raises(ValueError, match=message):
        make("SearchQA", options=options)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"answer": None}, r"train\.jsonl, line 2, column answer: .*valid string"),
        ({"question": ""}, r"train\.jsonl, line 2, column question: .*at least 1 character"),
        ({"context": {"title": ["a"], "sentences": []}}, r"line 2, column context: 1 titles for 0 paragraphs"),
        ({"context": 3}, r"train\.jsonl, line 2, column context"),
    ],
)
def test_a_bad_row_is_named_by_file_row_and_column(tmp_path, change, message):
    rows = hotpot_rows("PQRSTUVW", "train")
    rows[1].update(change)
    (tmp_path / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))

    def play_all():
        for split in ("train", "validation"):
            options = {"questions": str(tmp_path / "train.jsonl"), "cache": str(tmp_path / "cache")}
            env = make("SearchQA", split, options)
            for seed in range(8):
                env.reset(seed=seed)

    with pytest.raises(ValueError, match=message):
        play_all()


# --- a retriever in trouble costs trajectories, not the run ---


def test_a_retriever_in_trouble_is_given_up_before_its_step_is():
    env = make("SearchQA", options={**SMALL, "retriever_url": "http://127.0.0.1:9/retrieve"})
    assert 0 < env.longest_call()[0] < EnvironmentActorConfig().step_timeout_s


def test_a_search_asks_the_users_retriever():
    with serving(hits) as (url, _):
        env = make("SearchQA", options={**SMALL, "retriever_url": url})
        env.reset(seed=0)
        assert env.step("search[who is it]")[0] == "Title: about who is it"


@pytest.mark.parametrize("trouble", ["nonsense", "slow"])
def test_trouble_with_the_retriever_raises_its_reason(trouble):
    answer = sleeping(1.0) if trouble == "slow" else lambda *_: (200, b"nonsense")
    with serving(answer) as (url, _):
        quick = {"retriever_timeout_s": 0.2, "retriever_retries": 0} if trouble == "slow" else {}
        env = make("SearchQA", options={**SMALL, "retriever_url": url, **quick})
        env.reset(seed=0)
        with pytest.raises(RetrieverError, match="nonsense" if trouble == "nonsense" else "no answer in 1 attempts"):
            env.step("search[x]")


def test_a_retriever_that_is_down_fails_the_trajectories_that_ask_and_the_run_goes_on(tmp_path):
    codec = ChatCodec(save_model(tmp_path, byte_level_bpe()))

    async def generate(worker: str, request: GenerationRequest) -> Completion:
        searches = int(request.request_id.split("/")[1]) % 2 == 0
        text = " why</think> <answer> search[x] </answer>" if searches else "</think> <answer> answer[x] </answer>"
        ids = [*codec.encode(text), codec.stop_ids[0]]
        return Completion(request.request_id, np.array(ids, np.int32), -np.ones(len(ids), np.float32), "stop", 0, 0)

    options = {**SMALL, "retriever_url": "http://127.0.0.1:9/retrieve", "retriever_retries": 0}
    environment = EnvironmentConfig(name="SearchQA", options=options)
    sampling, config = SamplingConfig(max_tokens_per_turn=200), EnvironmentActorConfig()
    player = EnvironmentPlayer(codec, environment, sampling, config, 8192, generate)
    ticket = Ticket("000001-000", 1, Task("SearchQA", 5, "train", tuple(options.items())), 4, 3, 1.0, "rollout-0")

    async def play() -> Group:
        async with asyncio.timeout(180):
            return await player.play(ticket)

    try:
        failures = [trajectory.failure for trajectory in asyncio.run(play()).trajectories]
    finally:
        player.close()
    assert failures[1] is failures[3] is None
    for failure in (failures[0], failures[2]):
        assert failure.cause is FailureCause.ENVIRONMENT_ERROR
        assert "http://127.0.0.1:9/retrieve: no answer" in failure.detail


def test_an_environment_is_a_search_qa():
    assert isinstance(make("SearchQA", options=SMALL), SearchQA)
