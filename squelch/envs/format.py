"""The prompt and answer format that all environments share.

Squelch opens the assistant's turn with `<think>`, so that the opening belongs to X. The policy samples

    reasoning </think> <answer> Up || Left </answer>

and ends its turn. Squelch's own sentences in a prompt exist once per prompt style, as data (`SENTENCES`). In the style
`tiny`, words and punctuation are separated by single spaces or newlines, so that a word-level tokenizer has a small
closed vocabulary.

Parsing raises on no text and takes time linear in the text. It decides separately which actions are executed and
whether the turn is well formed:

- The answer is the text between the first `<answer>` after the first `</think>` and the first `</answer>` after that.
  It is one action if `max_actions_per_turn` is 1, else actions separated by `||`. The actions before the first unknown
  action are executed, at most `max_actions_per_turn`. Without those three tags no action is executed.
- The turn is well formed only if each of the tags occurs exactly once, `<think>` does not occur again, only white space
  is between the two blocks and after them, and every action is known and within the limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, overload

from pydantic import TypeAdapter

from squelch.envs.config import FormatConfig
from squelch.envs.contract import ClosedVocabulary, Environment, lacking
from squelch.envs.wording import PromptName, Wording, planned
from squelch.kit.records.pictures import Shown
from squelch.kit.text.tags import ANSWER_CLOSE, ANSWER_OPEN, THINK_CLOSE, THINK_OPEN
from squelch.kit.untrusted.text import own_yaml

SEPARATOR = "||"

ReadAction = Callable[[str], str | None]
"""`Environment.read_action`: the action that a text means, or None."""


@dataclass(frozen=True)
class ParsedTurn:
    """A policy's turn, parsed. `actions` are to be executed, in the environment's own spelling."""

    reasoning: str
    actions: tuple[str, ...]
    valid: bool
    reason: str | None
    """The reason if the turn is badly formatted, else None."""


@dataclass(frozen=True)
class Sentences:
    """Squelch's own sentences in one prompt style; `{name}` is a field."""

    system: str
    """The system message: the environment's `{rules}`, the answer `{format}`, and the worked `{example}`."""
    format: str
    one_action: str
    several_actions: str
    length: str
    """The longest response, as the `{count}` of its words."""
    example: str
    """The worked turn: the `{message}` of a turn, and the policy's `{turn}`."""
    reward: str
    turn: str


SENTENCES: Mapping[PromptName, Sentences] = TypeAdapter(dict[PromptName, Sentences]).validate_python(
    own_yaml(Path(__file__).with_name("prompts.yaml"))
)
"""After the authors' format: rules with legend and actions, then for each turn the reward of the last one, the state,
and the actions left."""


def system_message(env: Environment, config: FormatConfig) -> str:
    """The environment's rules, the answer format and, in the style `natural`, the longest response if the format names
    it, and a worked turn unless the format leaves it out."""
    resolved, sentences = config.resolved(env), SENTENCES[env.prompt]
    shown = env.wording if config.worked_turn is not False else None
    example = "" if shown is None else _worked_turn(shown, resolved, env.prompt)
    return sentences.system.format(rules=env.rules(), format=_format_rule(resolved, env.prompt), example=example)


def _format_rule(config: FormatConfig, prompt: PromptName = "tiny") -> str:
    """The sentences about the answer format; `config` is resolved."""
    count, sentences = config.max_actions_per_turn, SENTENCES[prompt]
    how_many = sentences.one_action if count == 1 else sentences.several_actions.format(count=count)
    said = sentences.format.format(what="action" if count == 1 else "actions", how_many=how_many)
    return said + (sentences.length.format(count=config.response_length) if config.response_length else "")


def _worked_turn(wording: Wording, config: FormatConfig, prompt: PromptName) -> str:
    """The example of a wording, with as many actions as the format allows; empty if there is none."""
    if (example := wording.example) is None:
        return ""
    per_turn = config.max_actions_per_turn or 1
    actions = example.actions[:per_turn]
    said = example.reasoning.format(plan=planned(wording.said.get("plan_join", (" ",))[0], actions))
    message = turn_message(example.observation, per_turn * (config.max_turns or 1), None, prompt)
    turn = f"{THINK_OPEN}{well_formed(said, actions)}"
    return SENTENCES[prompt].example.format(message=message, turn=turn)


@overload
def turn_message(observation: str, actions_left: int, reward: float | None, prompt: PromptName = "tiny") -> str: ...


@overload
def turn_message(
    observation: str | Shown, actions_left: int, reward: float | None, prompt: PromptName = "tiny"
) -> str | Shown: ...


def turn_message(
    observation: str | Shown, actions_left: int, reward: float | None, prompt: PromptName = "tiny"
) -> str | Shown:
    """The message to the policy before a turn; `reward`: the reward of the previous turn, None at the first turn."""
    sentences = SENTENCES[prompt]
    before = "" if reward is None else sentences.reward.format(reward=reward_text(reward))
    if isinstance(observation, str):
        return before + sentences.turn.format(observation=observation, left=actions_left)
    head, _, tail = sentences.turn.partition("{observation}")
    return Shown.of(before + head, observation, tail.format(left=actions_left))


def reward_text(reward: float) -> str:
    """A reward with one decimal; zero has no sign."""
    return f"{round(reward, 1) + 0.0:.1f}"


def joined(actions: Sequence[str]) -> str:
    """The content of an answer with these actions."""
    return f" {SEPARATOR} ".join(actions)


def answer(actions: Sequence[str]) -> str:
    """The end of a well-formed turn, from the closing of the reasoning on."""
    return f"{THINK_CLOSE} {ANSWER_OPEN} {joined(actions)} {ANSWER_CLOSE}"


def well_formed(reasoning: str, actions: Sequence[str]) -> str:
    """The text that a policy samples to say `reasoning` and play `actions`."""
    return f" {reasoning} {answer(actions)}" if reasoning else f" {answer(actions)}"


def phrases(environment: type[Environment], options: Mapping[str, Any], config: FormatConfig) -> list[str]:
    """Texts that are fed to a policy, or shown in demonstrations, in this environment in the prompt style `tiny`, each
    with the white space that can precede it; of rewards, those under these options. They contain every word of a closed
    vocabulary. None if the environment has a format of its own."""
    if environment.whole_turns:
        return []
    if not reads_words(environment):
        return format_phrases(config.resolved(environment), (0.0,))
    words = cast("ClosedVocabulary", environment(**options))
    return [*words.phrases(), *format_phrases(config.resolved(environment), words.step_rewards())]


def reads_words(environment: type[Environment]) -> bool:
    """Whether a tokenizer of whole words can be used: the environment lists its words (`ClosedVocabulary`)."""
    return not lacking(environment, ClosedVocabulary)


def format_phrases(config: FormatConfig, step_rewards: Sequence[float]) -> list[str]:
    """The texts of the turn format itself; `config` is resolved."""
    sums, actions, turns_left = {0.0}, config.max_actions_per_turn or 1, config.max_turns or 1
    for _ in range(actions):
        sums |= {round(total + reward, 6) for total in sums for reward in step_rewards}
    limit = turns_left * actions
    turns = [turn_message("", left, None) for left in range(limit + 1)]
    turns += [turn_message("", limit, total) for total in sorted(sums)]
    return [*turns, f" {_format_rule(config)}", THINK_OPEN, well_formed("", ["1"])]


def parse(text: str, max_actions: int, read_action: ReadAction) -> ParsedTurn:
    """Parse a policy's text; at most `max_actions` actions are executed. The module's head states the rules."""
    reasoning, closed, rest = text.partition(THINK_CLOSE)
    before, opened, inside = rest.partition(ANSWER_OPEN)
    content, ended, after = inside.partition(ANSWER_CLOSE)
    if not (closed and opened and ended):
        missing = THINK_CLOSE if not closed else ANSWER_OPEN if not opened else ANSWER_CLOSE
        return ParsedTurn(reasoning.strip(), (), False, f"no {missing}")
    chosen, reason = _read_actions(content, max_actions, read_action)
    reason = _misplaced(text, before, after) or reason
    return ParsedTurn(reasoning.strip(), chosen, reason is None, reason)


def _misplaced(text: str, before: str, after: str) -> str | None:
    """The error in the tags of a text with a complete answer, if any."""
    if THINK_OPEN in text:
        return f"{THINK_OPEN} again"
    for tag in (THINK_CLOSE, ANSWER_OPEN, ANSWER_CLOSE):
        if text.count(tag) > 1:
            return f"more than one {tag}"
    if before and not before.isspace():
        return f"text between {THINK_CLOSE} and {ANSWER_OPEN}"
    return f"text after {ANSWER_CLOSE}" if after and not after.isspace() else None


def _read_actions(content: str, limit: int, read_action: ReadAction) -> tuple[tuple[str, ...], str | None]:
    """The actions to be executed, and the error in the answer, if any."""
    pieces = [content] if limit == 1 else content.split(SEPARATOR, limit)
    chosen: list[str] = []
    for piece in pieces[:limit]:
        action = read_action(piece)
        if action is None:
            return tuple(chosen), "unknown action" if piece.strip() else "empty action"
        chosen.append(action)
    return tuple(chosen), f"more than {limit} actions" if len(pieces) > limit else None
