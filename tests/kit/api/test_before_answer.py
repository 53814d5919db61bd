"""Four rows of completions under a policy that answers what it has reasoned: which of them the regime calls good if the
reasoning is found by the answer, and what is said of them as a whole."""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import squelch
from squelch.actors.play.codec import ChatCodec
from squelch.envs.config import EnvironmentConfig
from squelch.envs.wording import DemonstrationQuality
from squelch.kit.api.completions import where_of
from squelch.kit.api.findings import findings_of
from squelch.kit.api.inputs import reader_of, rows_of
from squelch.kit.api.scoring import ScoreResult, scored
from squelch.kit.diagnosis.metrics import COMPLETION_KEYS
from squelch.learner.warmup.demonstrations import transcripts
from tests.kit.scoring.test_completion import Copier

LAKES = 24
TRUE = DemonstrationQuality(
    grounded=1.0, wrong_coordinates=0.0, random_plan=0.0, generic_random_plan=0.0, max_actions=5
)
Scored = Callable[[str, str], ScoreResult]


@pytest.fixture(scope="module")
def said(tiny_policy: Path) -> tuple[ChatCodec, list[list[int]], dict[str, list[list[int]]]]:
    """(codec, prompts, the four rows by name): demonstrations, and three ways to have their answers without."""
    codec = ChatCodec(tiny_policy)
    shown = list(itertools.islice(transcripts(EnvironmentConfig(), TRUE, 500), LAKES))
    turns = [one.turns[0][0].partition("<answer>") for one in shown]
    template, constant = turns[0][0], "".join(turns[0][1:])
    texts = {
        "real": ["".join(one) for one in turns],
        "template, right answer": [template + begin + answer for _, begin, answer in turns],
        "template, constant answer": [template + constant] * LAKES,
        "echo": [
            f" {one.opening[-1]['content']} </think>{begin}{answer}"
            for one, (_, begin, answer) in zip(shown, turns, strict=True)
        ],
    }
    prompts = [codec.first_turn(one.opening).tolist() for one in shown]
    return codec, prompts, {name: [codec.encode(text).tolist() for text in own] for name, own in texts.items()}


@pytest.fixture(scope="module")
def score(model: Any, tokenizer: Any, said: Any) -> Scored:
    _, prompts, rows = said

    def score(name: str, reasoning: Any) -> ScoreResult:
        answer = "<answer>" if reasoning == "before_answer" else ""
        return squelch.score(model, tokenizer, prompts, rows[name], reasoning=reasoning, answer=answer, force=True)

    return score


def test_before_the_answer_real_reasoning_is_used_and_a_template_is_one_whatever_it_answers(score: Scored) -> None:
    assert score("real", "before_answer").regime == "used"
    for name in ("template, right answer", "template, constant answer"):
        found = score(name, "before_answer")
        assert found.regime == "template" and found.proxies.mi_seq_est is not None
        assert found.proxies.mi_seq_est < 0 and "unrelated prompts give as much" in found.regime_reason
    assert score("echo", "before_answer").regime not in ("used", "unknown")


def test_as_a_whole_a_template_with_right_answers_depends_on_its_prompt_and_no_regime_is_named(score: Scored) -> None:
    found = {
        name: score(name, "completion") for name in ("real", "template, right answer", "template, constant answer")
    }
    for one in found.values():
        assert one.regime == "" and "not divided" in one.regime_reason and one.answers is None
        assert one.metrics().keys() == set(COMPLETION_KEYS) and one.metrics()["ceiling"] == pytest.approx(
            math.log(LAKES)
        )
    right, constant = (found[f"template, {kind} answer"].metrics() for kind in ("right", "constant"))
    assert right["dependence_p_value"] <= 0.05 and right["dependence"] > right["dependence@75"], "this is why"
    told = {name: {finding.name for finding in findings_of(one, 0.05)} for name, one in found.items()}
    assert told == {"real": set(), "template, right answer": set(), "template, constant answer": {"one_text"}}
    assert right["dependence@75"] < 0 and right["one_text"] < 0.5
    assert constant["one_text"] == 1.0 and constant["dependence_p_value"] > 0.05
    assert found["real"].metrics()["dependence@75"] > 0


class Copying(Copier):
    """A model that copies, as an engine of 64 ids."""

    context_length = 1000

    class model:
        class config:
            vocab_size = 64

            @classmethod
            def get_text_config(cls) -> Any:
                return cls

    def matrix(self, prompts: Any, reasonings: Any, wanted: Any = None, pictures: Any = None) -> Any:
        raise AssertionError("the answers' rows hold the reasonings")


def test_an_echo_under_a_model_that_copies_has_all_the_dependence_there_is_and_is_no_used_reasoning(
    said: Any, tokenizer: Any
) -> None:
    _, prompts, rows = said
    seen = [prompt[-40:] for prompt in prompts]
    for reasoning, answer in (("before_answer", "<answer>"), ("completion", "")):
        reader = reader_of(tokenizer, 10_000, where_of(reasoning, answer=answer))
        found = scored(Copying(), reader.read(rows_of(seen, rows["echo"])))
        assert found.regime == ("echo" if answer else "")
        if answer:
            assert found.proxies.mi_seq_est is not None and found.proxies.upper_bound is not None
            assert found.proxies.mi_seq_est > 0.5 * found.proxies.upper_bound
            assert "of the reasoning repeats its prompt" in found.regime_reason
        else:
            assert found.metrics()["repeated"] > 0.7
