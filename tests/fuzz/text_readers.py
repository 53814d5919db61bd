"""Targets of text: recipes, overrides, sweeps, the JSON of a run's folder, rows in JSON, answers of a retriever."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from squelch.cluster.config import dump, load
from squelch.cluster.runs.folder import RunFolder
from squelch.envs.data.rows import read_rows
from squelch.kit.readers import score_files
from tests.fuzz.mutation import mutated, mutated_json, mutated_value
from tests.fuzz.target import NAME, Target

Make = Callable[[random.Random], bytes]


class Question(BaseModel):
    """A row of a data set."""

    query: str
    score: float = 1.0
    context: dict[str, list[str]] | None = None


def of(seeds: Callable[[], Sequence[bytes]], *, as_json: bool = False) -> Make:
    """Inputs that are mutations of the seeds: of their bytes, and with `as_json` half of the time of their values."""

    def make(rng: random.Random) -> bytes:
        known = seeds()
        data = rng.choice(known)
        return mutated_json(rng, data) if as_json and rng.random() < 0.6 else mutated(rng, data, known)

    return make


def lines_of(seeds: Callable[[], Sequence[bytes]]) -> Make:
    """Inputs of JSON Lines: one line's value is mutated, or the bytes are."""

    def make(rng: random.Random) -> bytes:
        known = seeds()
        lines = rng.choice(known).splitlines(keepends=True)
        if rng.random() < 0.4:
            return mutated(rng, b"".join(lines), known)
        place = rng.randrange(len(lines))
        return b"".join([*lines[:place], mutated_json(rng, lines[place]) + b"\n", *lines[place + 1 :]])

    return make


@cache
def recipes() -> list[bytes]:
    """Recipes, short and complete."""
    short = [b"{extends: frozenlake, loop: {steps: 3}}", b"loop:\n  steps: 3\nfilter:\n  rule: top_k\n  rho: 0.25\n"]
    return [*short, dump(load("frozenlake")).encode(), dump(load("countdown")).encode()]


def _recipe(rng: random.Random) -> bytes:
    data = rng.choice(recipes())
    if rng.random() < 0.5:
        return mutated(rng, data, recipes())
    value = mutated_value(rng, yaml.safe_load(data))
    return json.dumps(value, ensure_ascii=False).encode("utf-8", "surrogatepass")


def _override(path: Path) -> None:
    load("frozenlake", [path.read_bytes().decode("utf-8", "surrogateescape")])


def _grid(path: Path) -> None:
    from squelch.cluster.sweep.plan import grid_arms, read_grid, read_seeds

    text = path.read_bytes().decode("utf-8", "surrogateescape")
    grid_arms(read_grid(text.split("\x00")))
    read_seeds(text)


def _metrics(path: Path) -> None:
    from squelch.cluster.commands.existing_runs.status import status
    from squelch.cluster.commands.existing_runs.watch import view
    from squelch.cluster.runs.status import read_status
    from squelch.cluster.runs.status_text import step_text

    status(path.parent, as_json=True)
    status(path.parent)
    folder = RunFolder(path.parent)
    lines = folder.metrics()
    view(read_status(folder, 2e9), lines)
    [step_text(line) for line in lines[:50]]


def _summary(path: Path) -> None:
    from squelch.cluster.runs.ending import is_complete
    from squelch.cluster.runs.status import status_of
    from squelch.cluster.sweep.table import cell_metrics

    folder = RunFolder(path.parent)
    summary = folder.summary()
    is_complete(summary)
    cell_metrics(path.parent)
    status_of(folder, [], 2e9)


def read_all_rows(path: Path) -> None:
    """Reads a data set as environments do, by rows and by a column."""
    rows = read_rows(path, "train", Question)
    list(rows.column("query"))
    list(rows)


def read_problems(path: Path) -> None:
    """Reads every problem of a data set of programs."""
    from squelch.envs.deep_coder.published import PublishedProblem, read_problem

    rows = read_rows(path, "train", PublishedProblem)
    for index, row in enumerate(rows):
        read_problem(row, rows.location(index), 15)


def read_hotpot(path: Path) -> None:
    """Reads every question, and every context."""
    from squelch.envs.search_qa.hotpot import ContextRow, QuestionRow

    list(read_rows(path, "train", QuestionRow))
    list(read_rows(path, "train", ContextRow))


def _corpus(path: Path) -> None:
    from squelch.envs.retrieval import corpus

    list(corpus._passages([path]))


def _shop(path: Path) -> None:
    from squelch.envs.web_shop import published

    list(published._passages(str(path), str(path)))


def _wishes(path: Path) -> None:
    from squelch.envs.web_shop import published

    published._written(str(path))
    published._synthetic(str(path))


def _answer(path: Path) -> None:
    from squelch.envs.retrieval.http import HttpRetriever

    HttpRetriever("http://127.0.0.1:9/", 1.0, 0)._found(path.read_bytes())


def _terminal(path: Path) -> None:
    from squelch.kit.process.terminal import one_line, visible

    text = path.read_bytes().decode("utf-8", "surrogateescape")
    shown = visible(text) + one_line(text)
    shown.encode()
    if any((ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160 for c in shown):
        raise RuntimeError(f"a control character reaches the terminal: {shown!r:.80}")


def _json(*values: Any) -> Callable[[], list[bytes]]:
    return lambda: [json.dumps(value).encode() for value in values]


def _json_lines(*rows: dict[str, Any]) -> Callable[[], list[bytes]]:
    return lambda: [b"".join(json.dumps(row).encode() + b"\n" for row in rows)]


STEP = {
    **{"step": 1, "time": 1.7e9, "total_steps": 9.0, "success": 0.5, "kept_mass": 0.9, "kept_groups": 4.0},
    **{"num_groups": 8.0, "seconds/step": 2.0, "seconds/train": 1.0, "tokens/per_second": 100.0, "alarm/raised": 1.0},
    **{"alarm/since": 1.0, "alarm/reward_trend": 1.0, "validation/success": 0.4, "validation/success_low": 0.3},
    **{"validation/success_high": 0.5, "first_turn/retrieval_accuracy": 0.5, "first_turn/retrieval_chance": 0.1},
    **{"first_turn/mi_est": 0.1, "ledger/trained": 8.0, "no_signal_streak": 2.0, "staleness_max": 0.0},
}
EVENT = {"actor": "learner", "name": "train", "start": 1.0, "end": 2.0, "step": 3}
SUMMARY = {
    **{"schema": 1, "finished": False, "stopped": "early stop: x", "end_cause": "early_stop", "steps": 3},
    **{"kept_mass_mean": 0.5, "seconds_per_step_median": 2.0, "reasoning": {"mi_est": 0.1, "retrieval_accuracy": 0.4}},
    "success": {"before": {"success": 0.1}, "after": {"success": 0.2}, "gain": {"mean": 0.1}, "best": 0.3},
    "ledger": {"balanced": True, "counts": {"trained": 3}},
}
ROWS = [{"query": f"q{i} [{{é", "score": i / 2, "context": {"title": ["t"]}, "more": i} for i in range(4)]
PROBLEMS = [
    {"problem": "add", "tests": json.dumps({"inputs": [[1, 2]], "outputs": [[3]], "fn_name": "f"}), "solutions": ["x"]},
    {"problem": "add", "tests": [{"type": "stdin_stdout", "input": "1\n", "output": "2"}], "starter_code": "def f():"},
    {
        "problem": "add",
        "tests": [{"testtype": "functional", "input": "[1]\n2", "output": "3"}],
        "metadata": '{"func_name": "f"}',
    },
]
HOTPOT = [
    {"question": "who", "answer": "x", "context": [["t", ["a", "b"]]], "supporting_facts": [["t", 0]]},
    {"question": "who", "answer": "x", "context": {"title": ["t"], "sentences": [["a"]]}},
]
PASSAGES = [{"id": 1, "title": "t", "text": "x"}, {"id": "b", "contents": '"T"\ntext'}]
PRODUCT = {
    **{"asin": "B000000001", "name": "n", "query": "q", "product_category": "a › b", "pricing": "$9.99-$10"},
    "customization_options": {"size": [{"value": "L"}], "color": None},
}
DESCRIBED = {"attributes": ["a"], "instruction": "i", "instruction_attributes": ["a"]}
WRITTEN = {"instruction": "i", "instruction_attributes": ["a"], "instruction_options": ["L"]}
SAMPLES = [
    {"prompt": "a", "completion": "<think>b</think>", "step": 1, "prompt_id": "p"},
    {"prompt": [{"role": "user", "content": "x"}], "reasoning": "z", "step": 1},
    {"prompt_ids": [1, 2], "reasoning_ids": [3], "group_id": 7},
    {"prompt": [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "x"}]}], "reasoning": "z"}
    | {"step": 1, "images": [{"bytes": "aGk=", "path": None}]},
    {"prompt": [{"role": "user", "content": "<image><image>"}], "reasoning": "z", "images": ["data:,aGk=", "a.png"]},
]
CHATS = [
    {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "tool_calls": [{"id": 1}]}]}
    | {"tools": '[{"name": "t"}]', "system": "s", "reward": 1.0},
    {"conversations": [{"from": "human", "value": "a"}, {"from": "function_call", "value": '{"name": "t"}'}]},
]
TRAJECTORIES = [
    {
        "schema_version": "ATIF-v1.8",
        "agent": {"name": "a", "model_name": "m", "tool_definitions": [{"name": "t"}]},
        "steps": [
            {"source": "user", "message": [{"type": "text", "text": "x"}]},
            {"source": "agent", "message": "y", "tool_calls": [{"tool_call_id": "c", "function_name": "t"}]}
            | {"observation": {"results": [{"source_call_id": "c", "content": "z"}]}},
            {"source": "agent", "message": "", "metrics": {"prompt_token_ids": [1], "completion_token_ids": [2]}},
        ],
    }
]
ANSWER = {"result": [[{"document": {"contents": '"T"\ntext'}, "score": 1.5}]]}
OVERRIDES = [b"filter.rho=0.5", b"learner.optimizer.betas=[0.9, 0.95]", b"environment.options={size: 4}", b"name=x"]
GRIDS = [b"filter.rule=none,top_p", b"filter.band=[0,0.5],[0.5,1]", b"0,1,2", b"filter.include_zero=true,false"]


def read_samples(path: Path) -> None:
    """Reads the file as `squelch score` does."""
    score_files.read_rows(path, None)


TARGETS = (
    Target("recipe", f"{NAME}.yaml", _recipe, lambda path: load(str(path))),
    Target("override", NAME, of(lambda: OVERRIDES), _override, named=False),
    Target("grid", NAME, of(lambda: GRIDS), _grid, named=False),
    Target("run configuration", f"{NAME}/config.yaml", _recipe, lambda path: RunFolder(path.parent).config()),
    Target("metrics", f"{NAME}/metrics.jsonl", lines_of(_json_lines(STEP, STEP | {"step": 2})), _metrics),
    Target("events", f"{NAME}/events.jsonl", lines_of(_json_lines(EVENT, EVENT)), _metrics),
    Target("summary", f"{NAME}/summary.json", of(_json(SUMMARY), as_json=True), _summary),
    Target(
        "decomposition",
        f"{NAME}/gradients/step-000001.json",
        of(_json({"schema": 1, "step": 1}), as_json=True),
        lambda path: RunFolder(path.parents[1]).decompositions(),
    ),
    Target("samples in JSON Lines", f"{NAME}.jsonl", lines_of(_json_lines(*SAMPLES)), read_samples),
    Target("conversations", f"{NAME}.jsonl", lines_of(_json_lines(*CHATS)), read_samples),
    Target("trajectories", f"{NAME}.jsonl", lines_of(_json_lines(*TRAJECTORIES)), read_samples),
    Target("rows in JSON Lines", f"{NAME}.jsonl", lines_of(_json_lines(*ROWS)), read_all_rows),
    Target("rows in a JSON array", f"{NAME}.json", of(_json(ROWS, ROWS[:1]), as_json=True), read_all_rows),
    Target("programming problems", f"{NAME}.jsonl", lines_of(_json_lines(*PROBLEMS)), read_problems),
    Target("questions and contexts", f"{NAME}.json", of(_json(HOTPOT[:1], HOTPOT), as_json=True), read_hotpot),
    Target("passages", f"{NAME}.jsonl", lines_of(_json_lines(*PASSAGES)), _corpus),
    Target("products", f"{NAME}.json", of(_json([PRODUCT], {"B000000001": DESCRIBED}), as_json=True), _shop),
    Target("instructions", f"{NAME}.json", of(_json({"B1": [WRITTEN]}, {"B1": DESCRIBED}), as_json=True), _wishes),
    Target("answer of a retriever", NAME, of(_json(ANSWER), as_json=True), _answer, named=False),
    Target(
        "text for the terminal", NAME, of(lambda: [b"plain \x1b[31mred\x1b[0m", "é\u202e".encode()]), _terminal, False
    ),
)
