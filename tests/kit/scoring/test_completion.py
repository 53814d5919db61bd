"""What is said of completions that are not divided: dependence by position, near prompts, repeats, one text."""

from itertools import pairwise, permutations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from squelch.kit.diagnosis.completion import completion_metrics, near_columns
from squelch.kit.diagnosis.metrics import COMPLETION_KEYS, POSITIONS
from squelch.kit.diagnosis.proxies import proxies_of_scores, usable
from squelch.kit.diagnosis.repeats import PIECE, new_tokens
from squelch.kit.diagnosis.uncertainty import uncertainty
from squelch.kit.scoring.completion_scoring import score_completions
from squelch.kit.scoring.token_trees import Path


class Copier:
    """A token is certain to half its likelihood if the prompt holds the one before it and then this one (as an
    induction head has it); else each of 64 tokens is as likely."""

    def token(self, prompt: list[int], before: list[int], token: int) -> float:
        followers = [b for a, b in pairwise(prompt) if before and a == before[-1]]
        copied = sum(one == token for one in followers) / len(followers) if followers else 1 / 64
        return float(np.log(0.5 * copied + 0.5 / 64))

    def path_sums(
        self, prompts: list[np.ndarray], rows: list[list[list[Path]]], pictures: Any = None
    ) -> list[list[np.ndarray]]:
        def of(prompt: list[int], path: Path) -> float:
            ids = path.ids.tolist()
            return sum(self.token(prompt, ids[:k], ids[k]) for k in range(path.start, len(ids)))

        return [
            [np.array([of(x.tolist(), path) for path in row]) for row in own]
            for x, own in zip(prompts, rows, strict=True)
        ]


RNG = np.random.default_rng(3)
PROMPTS = [np.concatenate([[60, 61, 62], RNG.permutation(50)[:8], [62, 63]]) for _ in range(12)]
TEXT = [51, 52, 53, 54, 55, 56, 57, 58]


def metrics_of(completions: list[list[int]]) -> dict[str, float]:
    ids, source, ones = [np.array(one) for one in completions], np.arange(12), np.ones(12)
    found = score_completions(Copier(), PROMPTS, ids, source, ones)
    scores = usable(found.whole, found.lengths, source)
    sure = uncertainty(scores, proxies_of_scores(scores), seed=0)
    flat = completion_metrics(found, sure, PROMPTS, ids)
    assert flat.keys() == set(COMPLETION_KEYS) and flat["ceiling"] == pytest.approx(np.log(12))
    assert flat["dependence"] == flat["dependence@100"] == pytest.approx(proxies_of_scores(scores).mi_seq_est)
    return flat


def test_an_echo_reaches_the_ceiling_and_nothing_of_it_is_new() -> None:
    found = metrics_of([prompt[3:-2].tolist() for prompt in PROMPTS])
    assert found["dependence"] > 0.95 * found["ceiling"] and found["dependence@25"] > 0.5 * found["ceiling"]
    assert found["near"] == 1.0 and found["repeated"] == 1.0 and np.isnan(found["near_new"])


def test_a_template_with_an_answer_depends_on_its_prompt_in_its_last_part_alone() -> None:
    found = metrics_of([[*TEXT, 52, 53, *prompt[5:7].tolist()] for prompt in PROMPTS])
    by_position = [found[f"dependence@{q}"] for q in POSITIONS]
    assert max(by_position[:3]) < 0.01 < 0.5 < by_position[3] and found["dependence_p_value"] <= 0.05
    assert found["repeated"] == 0.0 and found["near_new"] == found["near"] > 0.9
    assert found["one_text"] == pytest.approx(1 / 12)


def test_one_text_for_all_prompts_depends_on_none() -> None:
    found = metrics_of([TEXT] * 12)
    assert found["one_text"] == 1.0 and found["dependence"] == pytest.approx(0.0, abs=1e-9)
    assert found["near"] == pytest.approx(found["near_chance"]) == pytest.approx(1 / 8)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=30), st.lists(st.integers(0, 5), max_size=30))
def test_new_tokens_are_those_outside_of_every_repeated_piece(said: list[int], prompt: list[int]) -> None:
    pieces = {tuple(prompt[k : k + PIECE]) for k in range(len(prompt) - PIECE + 1)}
    covered = {
        k + i for k in range(len(said) - PIECE + 1) if tuple(said[k : k + PIECE]) in pieces for i in range(PIECE)
    }
    found = new_tokens(np.array(said), np.array(prompt, int))
    assert [k for k in range(len(said)) if not found[k]] == sorted(covered)


def test_pieces_of_different_ids_are_different_up_to_the_largest_ids() -> None:
    pieces = [np.array(ids) for ids in product((0, 1, 2**20, 2**21 - 1), repeat=PIECE)]
    assert all(new_tokens(said, prompt).all() for said, prompt in permutations(pieces, 2))


def test_the_nearest_prompts_are_those_with_the_fewest_changes() -> None:
    prompts = [np.array([1, 2, 3, k % 4, k]) for k in range(9)]
    near = near_columns(prompts)
    assert near.shape == (9, 7) and near[0][0] in (4, 8) and near[5][0] == 1
    assert near_columns(prompts[:2]).tolist() == [[1], [0]]
