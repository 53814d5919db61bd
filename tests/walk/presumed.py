"""What pages presume, by the name that a mark gives: files of other pages, of the trainers' own writers, a model."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from tests.kit.readers import trainer_files
from tests.stores import s3_server
from tests.walk.pages import read_page
from tests.walk.places import ROOT, Ground


@dataclass(frozen=True)
class Wanted:
    """Where something that a page presumes is to be put, and what with."""

    ground: Ground
    folder: Path
    shell: Callable[[str], None]
    """Runs a command in the page's shell; what it starts is short."""


def presume(name: str, wanted: Wanted) -> None:
    """Puts it there, or starts it; KeyError where no table has such a name."""
    if name in STARTED:
        STARTED[name](wanted)
    elif not (wanted.folder / name).exists():
        TABLE[name](wanted)


def names() -> str:
    """The Python names that python.md presumes: one step's prompts and completions."""
    words = ("colour", "season", "river", "number", "city", "planet", "bird", "metal")
    prompts = [f"Name a {word}." for word in words for _ in range(2)]
    said = [f"<think>A {word}? I {verb} one.</think> it" for word in words for verb in ("know", "guess")]
    return f"prompts, completions = {prompts!r}, {said!r}"


def _of_page(page: str, file: str) -> Callable[[Wanted], None]:
    def write(wanted: Wanted) -> None:
        found = {block.file: block.text for block in read_page(page, wanted.ground.read(page)).blocks}
        (wanted.folder / file).write_text(found[file])

    return write


def _rewards(wanted: Wanted) -> None:
    rewards = np.random.default_rng(0).integers(0, 2, (16, 8))
    np.savez(wanted.folder / "rewards.npz", rewards=np.where(np.arange(16)[:, None] % 4, rewards, 0))


def _run(wanted: Wanted) -> None:
    """A run of the demo: one that an earlier page has made, or a new one."""
    if wanted.ground.lent.exists():
        shutil.copytree(wanted.ground.lent, wanted.folder / "runs" / "frozenlake")
    else:
        wanted.shell("squelch train frozenlake")


def _run_like(name: str, wanted: Wanted) -> None:
    """A run under another name."""
    shutil.copytree(wanted.folder / "runs" / "frozenlake", wanted.folder / "runs" / name)


def _model_at(wanted: Wanted, *folders: str) -> None:
    for folder in folders:
        (wanted.folder / folder).parent.mkdir(parents=True, exist_ok=True)
        (wanted.folder / folder).symlink_to(wanted.ground.model)


def _trl(wanted: Wanted) -> None:
    trainer_files.trl(wanted.folder / "out")
    _model_at(wanted, "out/checkpoint-99")


def _verl(wanted: Wanted) -> None:
    trainer_files.verl(wanted.folder / "rollouts")


def _prime_rl(wanted: Wanted) -> None:
    """With the ids that the model's tokenizer has for these texts."""
    stream = trainer_files.prime_rl(wanted.folder / "outputs") / "00000.jsonl"
    tokenizer = Tokenizer.from_file(str(wanted.ground.model / "tokenizer.json"))
    episodes = [json.loads(line) for line in stream.read_text().splitlines()]
    for node in (node for episode in episodes for trace in episode["traces"] for node in trace["nodes"]):
        thought = node["message"].get("reasoning_content")
        text = f"<think>{thought}</think>" if thought else node["message"]["content"]
        node["token_ids"] = tokenizer.encode(text, add_special_tokens=False).ids
        node["mask"] = [node["sampled"]] * len(node["token_ids"])
        if node["sampled"]:
            node["logprobs"] = [-0.1] * len(node["token_ids"])
    trainer_files.jsonl(stream, episodes)
    _model_at(wanted, "outputs/weights/step_100")


def _skyrl(wanted: Wanted) -> None:
    trainer_files.skyrl(wanted.folder / "exports")
    _model_at(wanted, "exports/global_step_100/policy")


def _slime(wanted: Wanted) -> None:
    import torch

    written = trainer_files.slime(wanted.folder)
    rows = [json.loads(line) | {"rollout_id": None} for line in written.read_text().splitlines()]
    written.unlink()  # slime itself writes a pickle
    torch.save({"rollout_id": 7, "samples": rows}, wanted.folder / "rollout_7.pt")


def _deploy(wanted: Wanted) -> None:
    shutil.copytree(ROOT / "deploy", wanted.folder / "deploy")
    (rules := wanted.folder / "squelch" / "deploy").mkdir(parents=True)
    shutil.copy(ROOT / "squelch" / "deploy" / "alerts.yml", rules)  # deploy/prometheus.yml names them


def _my_env(wanted: Wanted) -> None:
    """The example of adding-an-environment.md, under the names that pages give it."""
    text = (ROOT / "docs" / "examples" / "sort_words.py").read_text()
    (wanted.folder / "my_env.py").write_text(text.replace("SortWords", "MyEnvironment").replace("num_words", "size"))


def _conversations(wanted: Wanted) -> None:
    said = "<think>I add them.</think> <answer>{}</answer>"
    pairs = [(f"What is {one} + {other}?", said.format(one + other)) for one in range(8) for other in range(8)]
    rows = [{"messages": [{"role": "user", "content": a}, {"role": "assistant", "content": b}]} for a, b in pairs]
    trainer_files.jsonl(wanted.folder / "conversations.jsonl", rows)


def _bucket(wanted: Wanted) -> None:
    """A server of S3 with a bucket of this name, where every command finds it."""
    logging.getLogger("werkzeug").setLevel(logging.ERROR)  # else it prints every request
    server = wanted.ground.open.enter_context(s3_server("bucket"))
    wanted.shell(f"export AWS_ENDPOINT_URL={server.env['AWS_ENDPOINT_URL']} AWS_REGION=us-east-1")


def _live_runs(wanted: Wanted) -> None:
    """The run frozenlake on this machine, and another of this name on the page's cluster; the page's end stops them."""
    for folder in ("runs", "shared"):
        shutil.rmtree(wanted.folder / folder, ignore_errors=True)
    for name, where in (("here", "rollout.max_count=3"), ("there", "--address HEAD:6379 runs_dir=/shared/runs")):
        endless = "loop.steps=9999 filter.no_signal_limit=9999"
        wanted.shell(f"squelch train frozenlake {endless} {where} > {name}.log 2>&1 &")
    wanted.shell("until [ $(cat runs/frozenlake/metrics.jsonl | wc -l) -gt 9 ]; do sleep 1; done 2> waiting.log")
    wanted.shell("squelch watch /shared/runs/frozenlake")


TABLE: Mapping[str, Callable[[Wanted], None]] = {
    "tasks.jsonl": _of_page("docs/guide/agents.md", "tasks.jsonl"),
    "agent.py": _of_page("docs/guide/agents.md", "agent.py"),
    "prompts.jsonl": _of_page("docs/guide/bring-your-own.md", "prompts.jsonl"),
    "rewards.py": _of_page("docs/guide/bring-your-own.md", "rewards.py"),
    "rewards.npz": _rewards,
    "runs/frozenlake": _run,
    "runs/my-sweep": lambda wanted: wanted.shell("squelch sweep frozenlake --seeds 0,1 --name my-sweep"),
    **{f"runs/{name}": partial(_run_like, name) for name in "abc"},
    "checkpoint-100": lambda wanted: _model_at(wanted, "checkpoint-100"),
    "out": _trl,
    "rollouts": _verl,
    "merged": lambda wanted: _model_at(wanted, "merged/global_step_99"),
    "outputs": _prime_rl,
    "exports": _skyrl,
    "rollout_7.pt": _slime,
    "deploy": _deploy,
    "my_env.py": _my_env,
    "conversations.jsonl": _conversations,
    "models/own": lambda wanted: _model_at(wanted, "models/own"),
}
"""Files and folders, which are not put where they are already."""
STARTED: Mapping[str, Callable[[Wanted], None]] = {
    "bucket": _bucket,
    "cluster": lambda wanted: wanted.shell("ray start --head --port=6379"),
    "live-runs": _live_runs,
}
"""What is no file: a checkout has a folder `cluster`."""
