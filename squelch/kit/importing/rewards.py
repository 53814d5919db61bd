"""Reward functions of other trainers, called as Squelch calls its own: the text of a file to put beside the recipe."""

from __future__ import annotations

_HEAD = '''\
"""The reward function {name} of {path} with Squelch's arguments, written by `squelch import`."""

import importlib.util

_spec = importlib.util.spec_from_file_location("imported_reward", {path!r})
_theirs = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_theirs)


def _text(said):
    return said if isinstance(said, str) else "\\n".join(message["content"] for message in said)


'''
_VERL = '''\
def reward(completions, data_source=(), reward_model=(), extra_info=(), **columns):
    """verl's signature: data_source, solution_str, ground_truth, extra_info; a number, or a mapping with `score`."""
    found = []
    for place, said in enumerate(completions):
        source, info = (column[place] if column else None for column in (data_source, extra_info))
        truth = reward_model[place]["ground_truth"] if reward_model else None
        score = _theirs.{name}(data_source=source, solution_str=_text(said), ground_truth=truth, extra_info=info)
        found.append(score["score"] if isinstance(score, dict) else score)
    return found
'''
_OPENRLHF = '''\
def reward(prompts, completions, **columns):
    """OpenRLHF's signature: queries, prompts, labels. Queries are prompt and completion, without a template's marks."""
    asked = [_text(prompt) for prompt in prompts]
    queries = [prompt + _text(said) for prompt, said in zip(asked, completions)]
    answer = _theirs.{name}(queries, asked, columns.get({label!r}, [None] * len(asked)))
    rewards = answer["rewards"] if isinstance(answer, dict) else answer
    return [float(one) for one in rewards]
'''
WRAPPED = {"verl": (_VERL, "compute_score"), "OpenRLHF": (_OPENRLHF, "reward_func")}
"""The function's text, and the name that a trainer's function has by default."""


def wrapper(trainer: str, path: str, name: str, label: str) -> str:
    """The text of the file. `label`: the column of the labels, where the trainer passes them."""
    text, usual = WRAPPED[trainer]
    return (_HEAD + text).format(path=path, name=name or usual, label=label)
