"""SearchQA: search for facts, then answer (paper, appendix B.1; Search-R1's game in the RLLM framework).

    observation  the question; after a search the found passages, one per line, or that nothing was found
    action       `search[words]` or `answer[text]`; upper and lower case are the same, white space runs are one space
    reward       of the answer, by name (`envs.search_qa.questions.REWARDS`); a search pays nothing
    end          the answer, or the turns

A query or an answer is cut at `MAX_ARGUMENT` characters. A search may wait for an HTTP retriever: keep
`longest_call` below `environment_actor.step_timeout_s`, or a slow retriever fails as `step_timeout`.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Any

from gymnasium.spaces import Text
from pydantic import Field

from squelch.envs.base import TextEnv
from squelch.envs.bracketed import MAX_ARGUMENT, read_bracketed, split_bracketed
from squelch.envs.contract import Demonstrator
from squelch.envs.retrieval import Found, HttpRetriever, Retriever, open_index
from squelch.envs.retrieval.corpus import open_corpus
from squelch.envs.search_qa.hotpot import HotpotQuestions, open_contexts
from squelch.envs.search_qa.questions import REWARDS, Question, RewardName, exact_match
from squelch.envs.search_qa.world import MIN_PASSAGES, World, generate
from squelch.envs.text import PRINTABLE, printable
from squelch.envs.wording import DEFAULT_QUALITY, DemonstrationQuality, Rng, choose, generic_reasoning, wordings_beside
from squelch.kit.base.settings import Settings
from squelch.kit.base.user_files import NAMES_FILES
from squelch.kit.records.splits import Split
from squelch.kit.untrusted.http import longest_wait_s

MAX_QUESTION = 600
MAX_DEMONSTRATED_SEARCHES = 3  # a demonstration answers after them, whatever it has found


class SearchQAOptions(Settings):
    """Sources of questions and passages, and the reward of an answer."""

    reward: RewardName = "correct_efficient"
    """`correct_efficient` (the paper's text), `exact_match`, or `f1` (the authors' code)."""
    search_cost: float = Field(0.1, ge=0, le=1)
    """`correct_efficient`: deduction from the reward of a right answer for each search beyond one per hop."""
    num_passages: int = Field(20_000, ge=MIN_PASSAGES, le=3_000_000)
    """Size of the made-up world."""
    world_seed: int = Field(0, ge=0, lt=2**63)
    """Seed of the made-up world."""
    min_hops: int = Field(2, ge=1, le=4)
    """Fewest relations that a made-up question follows."""
    max_hops: int = Field(2, ge=1, le=4)
    """Most relations that a made-up question follows; their number is uniform between the two."""
    questions: Annotated[str | None, NAMES_FILES] = None
    """Questions in HotpotQA's form instead of made-up ones: a file, a folder, or an id of the hub."""
    subset: str | None = None
    """Subset of `questions`, if there are several (on the hub: `distractor` and `fullwiki`)."""
    corpus: Annotated[str | None, NAMES_FILES] = None
    """Passages to search (`envs.retrieval.corpus`); by default those of the made-up world, or of `questions`."""
    retriever_url: str | None = Field(None, pattern=r"^https?://\S+$")
    """URL of a retriever with Search-R1's protocol, used instead of the embedded one: `http://HOST:8000/retrieve`."""
    retriever_timeout_s: float = Field(1.5, gt=0, le=600)
    """Seconds until the answer to an attempt must begin."""
    retriever_retries: int = Field(2, ge=0, le=10)
    """Attempts after the first, with a back-off that doubles from a quarter of a second."""
    results: int = Field(2, ge=1, le=20)
    """Passages that a search shows."""
    max_result_length: int = Field(200, ge=20, le=10_000)
    """Characters shown of each passage."""
    cache: str | None = None
    """Folder of the index; by default that in the variable SQUELCH_CACHE, else the user's cache folder."""

    def _faults(self) -> Iterator[str]:
        if self.min_hops > self.max_hops:
            yield f"min_hops={self.min_hops} is above max_hops={self.max_hops}"
        if self.subset is not None and self.questions is None:
            yield f"subset={self.subset!r} without questions; name their data set too"
        if self.corpus is not None and self.retriever_url is not None:
            yield "corpus and retriever_url exclude each other; the retriever has a corpus of its own"


class SearchQA(TextEnv, Demonstrator):
    """Search for passages, then answer the question."""

    name = "SearchQA"
    Options = SearchQAOptions
    options: SearchQAOptions
    wordings = wordings_beside(__file__)
    max_turns = 5
    max_action_length = MAX_ARGUMENT + len("search[]")

    def __init__(self, split: Split = "train", render_mode: str | None = None, **options: Any) -> None:
        super().__init__(split, render_mode, **options)
        self._world = World(self.options.world_seed, self.options.num_passages)
        self._questions = _published(self.options.questions, self.options.subset, self.split)
        self._retriever = _open_retriever(self.options)

    def read_action(self, text: str) -> str | None:
        """`search[words]` or `answer[text]`, as `read_bracketed` reads them."""
        return read_bracketed(text, ("search", "answer"))

    def longest_call(self) -> tuple[float, str]:
        """The longest time of a search with all its attempts; 0 without a remote retriever."""
        options = self.options
        if options.retriever_url is None:
            return super().longest_call()
        longest_s = longest_wait_s(options.retriever_timeout_s, options.retriever_retries)
        return longest_s, "(retriever_retries + 3) x retriever_timeout_s, and the back-off"

    def observation(self) -> str:
        """The current state as text."""
        return self._shown

    def task_key(self) -> str:
        """Digest of the task's content."""
        return self._question.key

    def task_kind(self) -> str:
        """The number of hops."""
        return f"{len(self._question.hops)} hops"

    def solution(self) -> list[str] | None:
        """Searches for the hops that have not been found yet, then the answer."""
        if self._answer is not None:
            return None
        return [*(_act("search", hop) for hop in self._open_hops()), _act("answer", self._question.answer)]

    def demonstrate(self, rng: Rng, quality: DemonstrationQuality = DEFAULT_QUALITY) -> tuple[str, list[str]]:
        """The next step of the chain, in words from templates; `wrong_coordinates` is the rate of naming a wrong
        hop."""
        grounded = rng.random() < quality.grounded
        wrong = rng.random() < (quality.random_plan if grounded else quality.generic_random_plan)
        hops = self._open_hops()
        answers = not hops or self._searches >= MAX_DEMONSTRATED_SEARCHES
        if wrong or (answers and hops):
            answers = answers or rng.random() < 0.5
            action = (
                self._guess(rng) if answers else _act("search", choose(rng, self._question.text.rstrip("?").split()))
            )
        else:
            action = _act("answer", self._question.answer) if answers else _act("search", hops[0])
        if not grounded:
            return generic_reasoning(rng, self.wording), [action]
        return self._reasoning(rng, action, rng.random() < quality.wrong_coordinates), [action]

    def _reasoning(self, rng: Rng, action: str, misplaced: bool) -> str:
        """The reasoning before an action: its hop, and the fact that is searched for. Where the style tells guesses
        from knowledge, a wrong answer is called a guess."""
        verb, argument = split_bracketed(action)
        question = self._question
        hops, asked = question.hops or (question.text,), question.asked or ("the answer",) * len(question.hops)
        place = min(len(hops) - 1, len(hops) - len(self._open_hops())) if verb == "search" else len(hops) - 1
        hop = choose(rng, hops) if misplaced else hops[place]
        said = self.wording.said
        guessed = verb == "answer" and "guess" in said and exact_match(argument, question.answer) < 1
        fact = (asked or ("the answer",))[place]
        named = fact if fact.startswith("the ") else f"the {fact}"
        return choose(rng, said["guess" if guessed else verb]).format(
            asked=fact,
            the_asked=named,
            The_asked=named[0].upper() + named[1:],
            hop=hop,
            answer=argument,
            query=argument,
        )

    def _guess(self, rng: Rng) -> str:
        return _act("answer", choose(rng, self._question.guesses or self._question.hops or (self._question.answer,)))

    def _open_hops(self) -> list[str]:
        return [hop for hop in self._question.hops if _act("search", hop) not in self._asked and hop not in self._seen]

    def _observation_space(self) -> Text:
        lines = self.options.results * (self.options.max_result_length + 1)
        shown = self.wording.shown
        longest = max(MAX_QUESTION + len(shown["question"]), lines + len(shown["passages"]))
        return Text(longest - len("{question}"), charset=PRINTABLE)

    def _load(self, seed: int) -> dict[str, Any]:
        self._question = self._draw(seed)
        asked = printable(" ".join(self._question.text.split()), MAX_QUESTION)
        self._shown = self.wording.shown["question"].format(question=asked)
        self._answer: str | None = None
        self._asked: set[str] = set()
        self._seen: set[str] = set()
        self._searches = 0
        return {"hops": len(self._question.hops), "searches": 0}

    def _draw(self, seed: int) -> Question:
        if self._questions is not None:
            return self._questions.question(seed)
        return generate(self._world, seed, self.split, self.options.min_hops, self.options.max_hops)

    def _details(self) -> dict[str, Any]:
        return {"searches": self._searches}

    def _move(self, action: str) -> float:
        verb, argument = split_bracketed(action)
        if verb == "answer":
            self._answer, self._shown = argument, self.wording.shown["answered"]
            return REWARDS[self.options.reward](argument, self._question, self._searches, self.options.search_cost)
        found = self._retriever.retrieve(argument, self.options.results)
        self._searches += 1
        self._asked.add(action)
        self._seen.update(one.title for one in found)
        lines, shown = "\n".join(self._line(one) for one in found), self.wording.shown
        self._shown = shown["passages"].format(passages=lines) if lines else shown["nothing"]
        return 0.0

    def _line(self, found: Found) -> str:
        named = found.text if found.text.startswith(found.title) else f"{found.title}: {found.text}"
        return printable(" ".join(named.split()), self.options.max_result_length)

    def _terminated(self) -> bool:
        return self._answer is not None

    def _succeeded(self) -> bool:
        return self._answer is not None and exact_match(self._answer, self._question.answer) == 1.0


def _act(verb: str, argument: str) -> str:
    """An action as `read_action` returns it."""
    return read_bracketed(f"{verb}[{argument}]", (verb,)) or f"{verb}[?]"


@lru_cache(maxsize=8)
def _published(questions: str | None, subset: str | None, split: Split) -> HotpotQuestions | None:
    """The questions, opened once per process because opening reads the whole file."""
    return HotpotQuestions(questions, subset, split) if questions is not None else None


def _open_retriever(options: SearchQAOptions) -> Retriever:
    if options.retriever_url is not None:
        return HttpRetriever(options.retriever_url, options.retriever_timeout_s, options.retriever_retries)
    if options.corpus is not None:
        return open_corpus(options.corpus, options.cache)
    if options.questions is not None:
        return open_contexts(options.questions, options.subset, options.cache)
    world = World(options.world_seed, options.num_passages)
    return open_index("world", world.identity, world.passages, options.cache)
