"""Writes the folder `art_files` beside this module by the program's own writer, ART 0.5.23: `python
tests/kit/readers/write_art_files.py`, where `openpipe-art` and `pyarrow` are installed (Python 3.12).

Two groups of two trajectories in the older form, messages with choices among them, of which the second has a rollout
that raised; and two groups in the newer one, which captures the calls of a server that returns ids.
"""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import art
from art.trajectories import ChatCompletionsExchange, TrajectoryExchanges
from art.utils.trajectory_logging import write_trajectory_groups_parquet
from openai.types.chat import ChatCompletion
from openai.types.chat.chat_completion import Choice

FOLDER = Path(__file__).with_name("art_files")
PROMPTS = ("Two and two?", "Three and one?")
SAID = (("<think>Count up.</think> 4", 1.0), ("<think>I guess.</think> 5", 0.0))
NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
PARAMETERS = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}}
TOOLS: Any = [{"type": "function", "function": {"name": "add", "description": "Adds.", "parameters": PARAMETERS}}]


def choice(said: str, ids: list[int] | None = None) -> dict[str, Any]:
    drawn = [{"token": "t", "bytes": None, "logprob": -0.25, "top_logprobs": []} for _ in ids or ()]
    found = {"finish_reason": "stop", "index": 0, "message": {"role": "assistant", "content": said}}
    return found | ({"token_ids": ids, "logprobs": {"content": drawn, "refusal": None}} if ids else {"logprobs": None})


def with_choices(prompt: str, said: str, reward: float) -> art.Trajectory:
    messages: Any = [{"role": "user", "content": prompt}, Choice.model_validate(choice(said))]
    made = art.Trajectory(messages_and_choices=messages, tools=TOOLS, reward=reward)
    made.initial_policy_version, made.final_policy_version = 6, 7
    return made


def captured(prompt: str, said: str, reward: float) -> art.Trajectory:
    answer = {
        "id": "c",
        "object": "chat.completion",
        "created": 1,
        "model": "policy",
        "choices": [choice(said, [20, 21])],
    }
    response = ChatCompletion.model_validate(answer | {"prompt_token_ids": [1 + PROMPTS.index(prompt), 9]})
    request: Any = {"model": "policy", "messages": [{"role": "user", "content": prompt}]}
    exchange = ChatCompletionsExchange(start_time=NOW, end_time=NOW, request=request, response=response)
    return art.Trajectory(exchanges=TrajectoryExchanges(chat_completions=[exchange]), reward=reward)


def groups(make: Any, exceptions: list[BaseException]) -> list[art.TrajectoryGroup]:
    first, second = ([make(prompt, said, reward) for said, reward in SAID] for prompt in PROMPTS)
    return [art.TrajectoryGroup(first), art.TrajectoryGroup(second, exceptions=exceptions)]


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    write_trajectory_groups_parquet(groups(with_choices, [ValueError("no")]), FOLDER / "0007.parquet")
    write_trajectory_groups_parquet(groups(captured, []), FOLDER / "0008.parquet")
