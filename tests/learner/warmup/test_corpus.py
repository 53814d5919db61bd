"""The rows of a warm-up: what is fed and what is demonstrated, the order, and what is held out."""

import itertools
import json
import re
from pathlib import Path

import numpy as np
import pytest

from squelch.actors.play.codec import ChatCodec
from squelch.envs.config import EnvironmentConfig
from squelch.learner.warmup.corpus import Corpus, Limits, make_corpus
from squelch.learner.warmup.demonstrations import encode, transcripts
from squelch.learner.warmup.settings import WarmupConfig
from squelch.learner.warmup.tiny import first_demonstration

LAKE = EnvironmentConfig(name="FrozenLake")
SMALL = WarmupConfig(demonstrations=10, held_out=3, batch=4, epochs=2)


def corpus(codec: ChatCodec, config: WarmupConfig = SMALL, most: int = 1024, turn: int = 48) -> Corpus:
    return make_corpus(codec, LAKE, config, Limits(most, "rollout.max_model_len", turn))


def conversations(path: Path, count: int) -> Path:
    """Conversations of the environment's demonstrations as a chat file."""
    lines = []
    for one in itertools.islice(transcripts(LAKE, SMALL.quality, 0), count):
        messages = list(one.opening)
        for said, reply in one.turns:
            messages += [{"role": "assistant", "content": f"<think>{said}"}, *([reply] if reply else [])]
        lines.append(json.dumps({"messages": messages}))
    path.write_text("\n".join(lines))
    return path


def test_a_row_is_the_sequence_that_a_rollout_with_these_texts_would_have(codec: ChatCodec) -> None:
    row = corpus(codec).trained[0]
    one = encode(codec, next(transcripts(LAKE, SMALL.quality, first_demonstration(0))))
    assert np.array_equal(row.targets, one.token_ids[one.loss_mask])
    assert np.array_equal(row.token_ids[row.positions[1:]], one.token_ids[np.flatnonzero(one.loss_mask)[1:] - 1])
    assert row.length == np.flatnonzero(one.loss_mask)[-1]


def test_every_epoch_uses_every_demonstration_once_in_another_order(codec: ChatCodec) -> None:
    found = corpus(codec)
    assert found.num_steps(SMALL) == 6
    steps = [[row.group_id for row in found.batch(step, SMALL)] for step in range(1, 7)]
    first, second = (list(itertools.chain(*steps[k : k + 3])) for k in (0, 3))
    assert sorted(first) == sorted(second) == [row.group_id for row in found.trained]
    assert first != second


def test_the_corpus_is_a_function_of_its_settings(codec: ChatCodec) -> None:
    other = SMALL.model_copy(update={"seed": 1})
    assert corpus(codec).digest() == corpus(codec).digest() != corpus(codec, other).digest()


def test_warm_ups_of_two_seeds_share_hardly_a_demonstration(codec: ChatCodec) -> None:
    def shown(seed: int) -> set[bytes]:
        found = corpus(codec, SMALL.model_copy(update={"demonstrations": 100, "seed": seed}))
        return {row.token_ids.tobytes() for row in found.trained}

    assert len(shown(0) & shown(1)) < 5


def test_the_environments_held_out_demonstrations_are_of_validation_tasks(codec: ChatCodec) -> None:
    def shown(rows: tuple) -> set[bytes]:
        return {row.token_ids[: row.positions[0]].tobytes() for row in rows}

    found = corpus(codec, SMALL.model_copy(update={"demonstrations": 60, "held_out": 20}))
    assert not shown(found.trained) & shown(found.held_out)


def test_a_file_is_learned_from_but_for_what_is_held_out(codec: ChatCodec, tmp_path: Path) -> None:
    config = SMALL.model_copy(update={"data": str(conversations(tmp_path / "chat.jsonl", 12))})
    found = corpus(codec, config)
    assert (len(found.trained), len(found.held_out)) == (9, 3)
    assert len({row.token_ids.tobytes() for row in (*found.trained, *found.held_out)}) == 12


def test_a_file_of_the_environments_demonstrations_gives_the_environments_rows(
    codec: ChatCodec, tmp_path: Path
) -> None:
    config = SMALL.model_copy(update={"data": str(conversations(tmp_path / "chat.jsonl", 5)), "held_out": 1})
    found = {row.token_ids.tobytes() for row in corpus(codec, config).trained}
    wanted = [encode(codec, one) for one in itertools.islice(transcripts(LAKE, SMALL.quality, 0), 5)]
    rows = {one.token_ids[: np.flatnonzero(one.loss_mask)[-1]].tobytes() for one in wanted}
    assert found < rows


def test_a_conversation_that_equals_a_held_out_one_is_not_trained_on(codec: ChatCodec, tmp_path: Path) -> None:
    """Found by a reviewer: rows were held out by their number, so that copies of them were trained on."""
    file = conversations(tmp_path / "chat.jsonl", 6)
    file.write_text("\n".join(file.read_text().splitlines() * 3))
    found = corpus(codec, SMALL.model_copy(update={"data": str(file)}))
    trained, held_out = ({row.token_ids.tobytes() for row in part} for part in (found.trained, found.held_out))
    assert trained and held_out and not trained & held_out
    assert len(found.trained) + len(found.held_out) + found.num_left_out == 18 and found.num_left_out > 0
    file.write_text("\n".join(file.read_text().splitlines()[:1] * 9))
    with pytest.raises(ValueError, match=r"each of the 9 conversations .* equals one of the model\.warmup\.held_out=3"):
        corpus(codec, SMALL.model_copy(update={"data": str(file)}))


def test_a_file_with_too_few_conversations_is_refused(codec: ChatCodec, tmp_path: Path) -> None:
    config = SMALL.model_copy(update={"data": str(conversations(tmp_path / "chat.jsonl", 3))})
    with pytest.raises(ValueError, match=r"holds 3 conversations, of which model\.warmup\.held_out=3"):
        corpus(codec, config)


def test_a_demonstration_that_does_not_fit_the_context_is_refused_with_its_length(codec: ChatCodec) -> None:
    with pytest.raises(ValueError, match=r"demonstration \d+ has \d+ tokens, which exceeds rollout\.max_model_len=100"):
        corpus(codec, most=100)


def test_a_conversation_of_a_file_that_does_not_fit_is_refused_with_its_row(codec: ChatCodec, tmp_path: Path) -> None:
    file = conversations(tmp_path / "chat.jsonl", 12)
    rows = file.read_text().splitlines()
    long = json.loads(rows[6])
    long["messages"][-1]["content"] = "<think>" + "so " * 900 + "</think><answer>Up</answer>"
    file.write_text("\n".join([*rows[:6], json.dumps(long), *rows[7:]]) + "\n")
    with pytest.raises(ValueError, match=r"chat\.jsonl, row 7 has \d+ tokens in a turn, which exceeds"):
        corpus(codec, SMALL.model_copy(update={"data": str(file)}))


def test_a_conversation_with_words_that_the_tokenizer_does_not_know_is_refused_with_both(
    codec: ChatCodec, tmp_path: Path
) -> None:
    file = conversations(tmp_path / "chat.jsonl", 12)
    rows = file.read_text().splitlines()
    strange = json.loads(rows[4])
    strange["messages"][-1]["content"] = "<think> zebra is prudent </think> <answer> Up </answer>"
    file.write_text("\n".join([*rows[:4], json.dumps(strange), *rows[5:]]) + "\n")
    with pytest.raises(ValueError, match=r"chat\.jsonl, row 5 has words .*'prudent', 'zebra'"):
        corpus(codec, SMALL.model_copy(update={"data": str(file)}))


def test_a_demonstrated_turn_that_a_rollout_would_cut_off_is_refused_with_the_longest(codec: ChatCodec) -> None:
    says = r"demonstration \d+ has (\d+) tokens in a turn, which exceeds sampling\.max_tokens_per_turn=9; none has more"
    with pytest.raises(ValueError, match=says) as refused:
        corpus(codec, turn=9)
    longest = int(re.search(says, str(refused.value))[1])
    assert corpus(codec, turn=longest).num_tokens > 0


def test_the_longest_turn_is_named_wherever_it_is(codec: ChatCodec) -> None:
    """Found by a reviewer: after raising the limit as told, a longer held-out demonstration refused the start again."""
    says = r"demonstration \d+ has (\d+) tokens in a turn"
    for seed in range(12):
        config = SMALL.model_copy(update={"seed": seed, "demonstrations": 2, "held_out": 8})
        with pytest.raises(ValueError, match=says) as refused:
            corpus(codec, config, turn=9)
        longest = re.search(says, str(refused.value))
        assert longest is not None and corpus(codec, config, turn=int(longest[1])).held_out
