"""MI by modality of the fixed probe: which part a reasoning was read from, and what is scored for it."""

import math
from collections import Counter

import numpy as np
import pytest

from squelch.kit.diagnosis.metrics import MODALITY_KEYS
from squelch.kit.records.content import Picture, content_key
from squelch.kit.scoring.modality_scoring import modality_metrics
from squelch.kit.scoring.probe_drawing import ProbeDraw
from tests.seeing import board

TASKS, EACH = 8, 3
BOARDS = [board(k, 2, 2) for k in range(TASKS)]
SHOWN = {one.identity[:32]: k for k, one in enumerate(BOARDS)}


class Reader:
    """A model whose reasoning names the picture, the text (the last id), or both."""

    context_length = 100

    def __init__(self, source: str) -> None:
        self.source, self.scored, self.columns = source, 0, 0

    def matrix(self, prompts, reasonings, wanted=None, pictures=None) -> np.ndarray:
        self.scored += len(prompts) * len(reasonings) if wanted is None else int(wanted.sum())
        self.columns += len(prompts)
        rows = [[self.of(*each, z) for each in zip(prompts, pictures, strict=True)] for z in reasonings]
        return np.array(rows) if wanted is None else np.where(wanted, rows, np.nan)

    def of(self, ids: np.ndarray, pictures: tuple[Picture, ...], z: np.ndarray) -> float:
        seen, read = SHOWN.get(pictures[0].digest, -1), int(ids[-1])
        right = {"picture": z[0] == seen, "text": z[0] == read, "both": z[0] == seen == read, "neither": True}[
            self.source
        ]
        return -1.0 if right else -6.0


def draw(texts_differ: bool) -> ProbeDraw:
    prompts = [np.array([1, 2, 92, 92, 92, 92, 3, k if texts_differ else 0]) for k in range(TASKS)]
    source = np.repeat(np.arange(TASKS), EACH)
    return ProbeDraw(
        tasks=tuple(map(str, range(TASKS))),
        prompts=prompts,
        weights=np.ones(TASKS),
        reasonings=[np.array([k]) for k in source],
        after=[np.zeros(0, np.int64)] * len(source),
        task=source,
        source=source,
        slot=np.arange(len(source)),
        slots=source,
        excluded=Counter(),
        pictures=[(Picture.of(2, one),) for one in BOARDS],
    )


def read(source: str, texts_differ: bool = True) -> tuple[dict[str, float], Reader]:
    engine, own = Reader(source), draw(texts_differ)
    matrix = engine.matrix(own.prompts, own.reasonings, None, own.pictures)
    engine.scored = engine.columns = 0
    return modality_metrics(engine, own, matrix, (1,)), engine


@pytest.mark.parametrize("source", ["picture", "text", "neither"])
def test_each_part_has_what_the_reasoning_was_read_from_it(source: str) -> None:
    found, _ = read(source)
    assert list(found) == list(MODALITY_KEYS)
    assert found["text_alone"] == (source == "text")
    for part in ("picture", "text"):
        assert (found[part] > 1, found[f"{part}_depends"] == 1) == (source == part,) * 2
    assert found["blank"] == pytest.approx(5.0 if source == "picture" else 0.0)


def test_later_turns_that_are_read_from_the_text_are_blind_beside_first_turns_that_are_read_from_pictures() -> None:
    """First turns of one text count in D_V alone."""
    engine, own = Reader("picture"), draw(True)
    for k in range(TASKS // 2, TASKS):  # the later turns show more
        own.pictures[k] = (Picture.of(2, board(k, 2, 3)),)
    for k in range(TASKS // 2):
        own.prompts[k][-1] = 0
    seen = engine.of
    engine.of = lambda ids, pictures, z: (
        seen(ids, pictures, z) if z[0] < TASKS // 2 else -1.0 if ids[-1] == z[0] else -6.0
    )
    matrix = engine.matrix(own.prompts, own.reasonings, None, own.pictures)
    found = modality_metrics(engine, own, matrix, (1,))
    assert found["picture"] > 1 and found["text_depends"] == found["text_alone"] == 1


def test_where_all_texts_are_equal_only_blank_pictures_are_scored_and_text_has_no_value() -> None:
    found, engine = read("picture", texts_differ=False)
    assert found["picture_depends"] == 1 and math.isnan(found["text"]) and math.isnan(found["text_depends"])
    assert math.isnan(found["text_alone"]), "where all texts are equal nothing is blind"
    assert engine.scored == TASKS * EACH and engine.columns == TASKS


def test_prompts_under_which_a_reasoning_was_scored_anyway_are_its_first_partners() -> None:
    engine, own = Reader("picture"), draw(texts_differ=False)
    matrix = engine.matrix(own.prompts, own.reasonings, None, own.pictures)
    matrix[(np.arange(TASKS) - own.source[:, None]) % TASKS > 4] = math.nan
    engine.scored = 0
    found = modality_metrics(engine, own, matrix, (1,), 4, blank=False)
    assert engine.scored == 0 and found["picture_depends"] == 1


def test_a_prompt_with_the_text_of_one_and_the_pictures_of_another_serves_both() -> None:
    engine, own = Reader("both"), draw(True)
    matrix = engine.matrix(own.prompts, own.reasonings, None, own.pictures)
    engine.scored = engine.columns = 0
    found = modality_metrics(engine, own, matrix, (1,), 4, blank=False)
    assert (engine.columns, engine.scored) == (TASKS * 4, TASKS * EACH * 8)
    assert found["picture_depends"] == found["text_depends"] == 1 and "blank" not in found


def test_a_probe_without_pictures_scores_nothing_for_it() -> None:
    own, engine = draw(True), Reader("text")
    own.pictures[:] = [()] * TASKS
    found = modality_metrics(engine, own, np.zeros((TASKS * EACH, TASKS)), (1,))
    assert engine.scored == 0 and all(map(math.isnan, found.values()))


def test_pictures_are_swapped_between_prompts_of_one_layout_alone() -> None:
    engine, own = Reader("picture"), draw(True)
    for k in range(3):  # fewer than the four that a value needs
        own.pictures[k] = (Picture.of(2, board(k, 2, 3)),)
    seen: list[str] = []
    matrix = engine.matrix(own.prompts, own.reasonings, None, own.pictures)
    scored = engine.matrix
    engine.matrix = lambda prompts, *rest: seen.extend(map(content_key, prompts, rest[2])) or scored(prompts, *rest)
    found = modality_metrics(engine, own, matrix, (1,))
    assert np.isfinite(found["picture"])
    small = [content_key(own.prompts[5], (Picture.of(2, board(k, 2, 3)),)) for k in range(3)]
    assert seen and not set(small) & set(seen)
