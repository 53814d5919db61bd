"""Measures whether a tiny policy sees: what it says of pictures, and how it plays, with their pixels and without.

python -m benchmarks.sight [--policy DIR ...] [--seeds N] [--quick] [--json]

Each policy plays validation tasks of the recipe `frozenlake-pictures` at T = 0.5, as it is shown them and with
every pixel black. Without `--policy` one is built for each seed, which takes four minutes on two cores.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
from transformers import PreTrainedModel
from transformers.utils import logging

from benchmarks.common import parser_of
from squelch.actors.play.codec import ChatCodec, Fed
from squelch.cluster.config import load
from squelch.envs.config import EnvironmentConfig
from squelch.envs.contract import Judged, require
from squelch.envs.episode import Episode
from squelch.envs.registry import make
from squelch.kit.models.model_folder import load_model_folder
from squelch.kit.records.pictures import Picture
from squelch.learner.warmup.sight import sampled_turns
from squelch.learner.warmup.tiny import build_tiny

TARGETS = {"true": ">= 0.9", "success": ">= 0.4", "blind_success": "<= 0.25", "seconds": "<= 300"}
NUM_TASKS = 256
QUICK_TASKS = 32


def _black(fed: Fed) -> Fed:
    return Fed(fed.ids, tuple((at, Picture(np.zeros_like(one.rgb))) for at, one in fed.pictures))


def played(
    model: PreTrainedModel, codec: ChatCodec, environment: EnvironmentConfig, num_tasks: int, blind: bool
) -> dict[str, float]:
    """`success`, share of the tasks solved, and `true`, share of true claims in first reasonings; `blind`: the policy
    is shown black pictures."""
    first, draws = environment.validation_seed, torch.Generator().manual_seed(0)
    games = [make(environment.name, "validation", environment.options, environment.prompt) for _ in range(num_tasks)]
    episodes = [Episode(env, first + i, i, environment.format) for i, env in enumerate(games)]
    shown = [codec.first_fed(episode.start()) for episode in episodes]
    judge = require(environment.name, games[0], Judged, "this measurement").judge()
    facts = [judge.facts("", [picture for _, picture in one.pictures]) for one in shown]
    solved, held, left = [False] * num_tasks, list[bool](), list(range(num_tasks))
    for turn in range(games[0].max_turns):
        said = sampled_turns(model, codec, [_black(shown[i]) if blind else shown[i] for i in left], draws)
        going = []
        for i, ids in zip(left, said, strict=True):
            text, closed = codec.text(ids), int(ids[-1]) in codec.stop_ids
            if not turn:
                held += [judge.holds(claim, facts[i]) for claim in judge.claims(text.partition("</think>")[0])]
            outcome = episodes[i].act(text, not closed)
            solved[i] = outcome.success
            if outcome.next_message is not None:
                shown[i] = Fed.joined([shown[i], Fed(ids), codec.next_fed(outcome.next_message, closed)])
                going.append(i)
        left = going
    return {"success": float(np.mean(solved)), "true": float(np.mean(held)) if held else 0.0}


def measure(folder: Path, environment: EnvironmentConfig, seed: int, num_tasks: int) -> dict[str, float]:
    """The figures of the policy in `folder`, which is built there from `seed` unless it holds one."""
    report = build_tiny(folder, environment, seed)
    codec = ChatCodec(folder)
    model = load_model_folder(folder, torch.float32)
    seeing, blind = (played(model, codec, environment, num_tasks, black) for black in (False, True))
    found = {"seed": seed, "tasks": num_tasks, "seconds": report.seconds, "loss": report.loss, **seeing}
    return found | {f"blind_{name}": value for name, value in blind.items()}


def main() -> None:
    """Prints the figures of each policy."""
    parser = parser_of(__doc__, f"{QUICK_TASKS} tasks instead of {NUM_TASKS}; needs --policy")
    parser.add_argument("--policy", type=Path, nargs="*", default=[], help="folders of policies of seeds 0, 1, ...")
    parser.add_argument("--seeds", type=int, default=3, help="number of seeds to build without --policy; default 3")
    arguments = parser.parse_args()
    if arguments.quick and not arguments.policy:
        parser.error("--quick needs --policy: building one takes minutes")
    logging.disable_progress_bar()
    environment = load("frozenlake-pictures").environment
    with tempfile.TemporaryDirectory() as fresh:
        folders = arguments.policy or [Path(fresh) / str(seed) for seed in range(arguments.seeds)]
        num_tasks = QUICK_TASKS if arguments.quick else NUM_TASKS
        found = [measure(folder, environment, seed, num_tasks) for seed, folder in enumerate(folders)]
    if arguments.json:
        print(json.dumps({"policies": found, "targets": TARGETS}))
        return
    for one in found:
        print("  ".join(f"{name} {value:.3g}" for name, value in one.items()))
    print("targets:", json.dumps(TARGETS))


if __name__ == "__main__":
    main()
