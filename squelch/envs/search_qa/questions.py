"""Questions and the rewards of answers to them.

Normalisation and the two scores are SQuAD's (Rajpurkar et al. 2016, evaluation script), with HotpotQA's treatment of
yes and no (Yang et al. 2018). The paper says that rewards are "based on answer correctness and search efficiency"
(appendix B.1) and gives no equation; `correct_efficient` is defined here. The authors' code pays 1 for an exact match,
else F1 if it is at least `F1_FLOOR`.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

RewardName = Literal["correct_efficient", "exact_match", "f1"]

F1_FLOOR = 0.3
CLOSED_ANSWERS = frozenset({"yes", "no", "noanswer"})

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True)
class Question:
    """One task. `hops`: titles of the passages that lead to the answer, in order; empty if they are not known.

    `asked`: for each hop, the fact that is searched for; `guesses`: possible wrong answers. Both are used in
    demonstrations and may be empty.
    """

    text: str
    answer: str
    hops: tuple[str, ...]
    key: str
    asked: tuple[str, ...] = ()
    guesses: tuple[str, ...] = ()


def normalised(text: str) -> str:
    """Lower case, without punctuation, articles and surplus white space (SQuAD)."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split())


def exact_match(given: str, right: str) -> float:
    """1 if both are the same after normalisation, else 0; a text that normalisation makes empty is compared
    unchanged."""
    if not normalised(right):
        return float(given.strip().lower() == right.strip().lower())
    return float(normalised(given) == normalised(right))


def f1(given: str, right: str) -> float:
    """Harmonic mean of the precision and recall of the normalised words, in [0, 1]; yes and no match only exactly."""
    one, other = normalised(given), normalised(right)
    if one != other and (one in CLOSED_ANSWERS or other in CLOSED_ANSWERS):
        return 0.0
    given_words, right_words = one.split(), other.split()
    common = (Counter(given_words) & Counter(right_words)).total()
    if not common:
        return exact_match(given, right)
    return 2 * common / (len(given_words) + len(right_words))


def exact_reward(given: str, question: Question, searches: int, search_cost: float) -> float:
    """1 for an exact match."""
    return exact_match(given, question.answer)


def f1_reward(given: str, question: Question, searches: int, search_cost: float) -> float:
    """F1 if it is at least `F1_FLOOR`, else 0; an exact match has F1 = 1."""
    score = f1(given, question.answer)
    return score if score >= F1_FLOOR else 0.0


def efficient_reward(given: str, question: Question, searches: int, search_cost: float) -> float:
    """1 for an exact match, minus `search_cost` for each search beyond one per hop, at least 0; else 0.

    Searches that the question needs are free, so that a policy that cannot answer yet does not learn to guess at once.
    """
    surplus = max(0, searches - max(1, len(question.hops)))
    return exact_match(given, question.answer) * max(0.0, 1.0 - search_cost * surplus)


REWARDS: dict[RewardName, Callable[[str, Question, int, float], float]] = {
    "correct_efficient": efficient_reward,
    "exact_match": exact_reward,
    "f1": f1_reward,
}
"""Reward of an answer by name: (given, question, searches made, search_cost) -> [0, 1]."""
