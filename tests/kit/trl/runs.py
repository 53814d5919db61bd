"""TRL's runs for the tests: python -m tests.kit.trl.runs FOLDER, in TRL's environment. Each part writes what it found,
as
JSON or Parquet, into a folder of its name; `test_live.py` reads it."""

from __future__ import annotations

import copy
import importlib
import json
import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from datasets import Dataset
from peft import LoraConfig
from transformers import TrainerCallback
from trl import DPOConfig, DPOTrainer, GRPOTrainer, RLOOConfig, RLOOTrainer
from trl.experimental.async_grpo import AsyncGRPOConfig, AsyncGRPOTrainer
from trl.experimental.gmpo import GMPOConfig, GMPOTrainer

import squelch
from squelch.kit.trl.groups import OVER_KEPT_TOKENS, OVER_ROWS, OVER_TOKENS
from squelch.trl import GroupFilter, Observer, SquelchGRPOTrainer, SquelchMixin
from tests.kit.trl import work
from tests.kit.trl.prompts import rewarded  # noqa: F401  # a part

USERS = [importlib.import_module(name) for name in ("actors", "cluster", "deploy", "envs", "learner")]
RANKS, RANK_ROWS = 2, 10
"""Groups of four on ranks of ten rows: the third straddles."""


class Watched(work.Capturing, GRPOTrainer):
    """TRL's trainer, whose ids and weights are written."""


class Filtered(work.Capturing, SquelchGRPOTrainer):
    """The same with the filter."""


class Scrape(TrainerCallback):
    """Reads `/metrics` at the end of each step; the last text stays."""

    def __init__(self, observer: Observer) -> None:
        self.observer, self.text = observer, ""

    def on_step_end(self, *args: Any, **given: Any) -> None:
        """Reads it, in the order of callbacks after the observer."""
        if self.observer.endpoint is not None:
            with urlopen(self.observer.endpoint.url, timeout=180) as answer:
                self.text = answer.read().decode()


def quiet(**settings: Any) -> Observer:
    """An observer without `/metrics`."""
    return Observer(export=False, **settings)


def plain(folder: Path, model: Path) -> None:
    """Without Squelch."""
    started = time.perf_counter()
    trainer = work.trained(model, work.settings(folder), [work.reward])
    say(folder, work.fingerprint(trainer) | {"seconds": time.perf_counter() - started})


def observed(folder: Path, model: Path) -> None:
    """With the observer as reward function and callback; everything else as `plain`."""
    observer = Observer(every=3, port=0)
    scrape = Scrape(observer)
    Watched.captured = folder
    started = time.perf_counter()
    trainer = work.trained(model, work.settings(folder), [work.reward, observer], Watched, callbacks=[observer, scrape])
    found = {"seconds": time.perf_counter() - started, "log": trainer.state.log_history, "metrics": scrape.text}
    say(folder, work.fingerprint(trainer) | found)


def filtered(folder: Path, model: Path) -> None:
    """With the filter and exact ids; rows that were cut are masked; a second run goes on from a checkpoint."""
    Filtered.captured = folder
    config = work.settings(folder, max_steps=4, save_strategy="steps", save_steps=2, mask_truncated_completions=True)
    chosen = {"group_filter": GroupFilter(rho=0.7)}
    trainer = work.trained(model, config, [work.reward], Filtered, observer=quiet(every=1), **chosen)
    Filtered.captured = folder / "again"
    again = work.trained(
        model, config, [work.reward], Filtered, resume=str(folder / "checkpoint-2"), observer=quiet(every=1), **chosen
    )
    say(folder, {"log": trainer.state.log_history, "again": again.state.log_history})


def adapted(folder: Path, model: Path) -> None:
    """LoRA: the adapter in effect is scored."""
    found: dict[str, Any] = {}

    class Adapted(SquelchGRPOTrainer):
        def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
            batch = super()._generate_and_score_completions(inputs)
            merged = copy.deepcopy(self.model).merge_and_unload()
            prompts, completions = squelch.kit.trl.trainer.sampled_ids(batch, self.processing_class)
            score = squelch.score(merged, self.processing_class, prompts, completions)
            found[str(self.state.global_step + 1)] = score.metrics()["mi_seq_est"]
            return batch

    config = work.settings(folder, max_steps=3)
    adapter = LoraConfig(r=4, target_modules=["q_proj", "v_proj"])
    trainer = work.trained(model, config, [work.reward], Adapted, peft_config=adapter, observer=quiet(every=1))
    say(folder, {"log": trainer.state.log_history, "merged": found})


def several(folder: Path, model: Path) -> None:
    """One generation for four steps, each sample used twice."""
    config = work.settings(
        folder, max_steps=6, gradient_accumulation_steps=1, steps_per_generation=2, num_iterations=2, beta=0.1
    )
    observer = quiet(every=1)
    trainer = work.trained(
        model, config, [work.reward], SquelchGRPOTrainer, observer=observer, group_filter=GroupFilter()
    )
    say(folder, {"log": trainer.state.log_history})


def double(number: int) -> int:
    """Doubles a number.

    Args:
        number: the number.
    """
    return 2 * number


class Doubling:
    """An environment with the same tool."""

    def reset(self, **_: Any) -> None:
        """Adds nothing to the prompt."""

    def double(self, number: int) -> int:
        """Doubles a number.

        Args:
            number: the number.
        """
        return 2 * number


class Scripted:
    """A policy that calls the tool in its first turn, before a trainer's class."""

    calls = 0

    def _generate_single_turn(self, prompt_ids: list[list[int]], *given: Any, **others: Any) -> tuple[Any, None]:
        self.calls += 1
        call = "<tool_call>\n<function=double>\n<parameter=number>\n3\n</parameter>\n</function>\n</tool_call>"
        texts = [
            f"{'ab'[row % 2]} thinks {row * 7 % 5}\n</think>\n\n{call}" if self.calls % 2 else f"it is {row % 3}"
            for row in range(len(prompt_ids))
        ]
        trainer: Any = self
        return [trainer.processing_class.encode(text + "<|im_end|>", add_special_tokens=False) for text in texts], None


def longest(completions: list[Any], **_: Any) -> list[float]:
    """A reward that differs within a group."""
    return [float(len(one[-1]["content"]) + index % 3) for index, one in enumerate(completions)]


def tools(folder: Path, model: Path) -> None:
    """A scripted model calls a tool. The first turn's ids are scored, under the prompt with the tool's schema, by a
    trainer of ours and by the observer as a reward function, with the tool and with an environment that has it."""
    work.write_byte_model(folder / "model")
    found: dict[str, Any] = {}

    class Ours(Scripted, work.Capturing, SquelchGRPOTrainer):
        def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
            batch = super()._generate_and_score_completions(inputs)
            prompts, first = squelch.kit.trl.trainer.sampled_ids(batch, self.processing_class)
            pq.write_table(pa.table({"prompt_ids": prompts, "completion_ids": first}), folder / "first.parquet")
            found["said"] = self.processing_class.batch_decode(first[:2])
            found["prompt"] = self.processing_class.decode(batch["prompt_ids"][0])
            found["outside"] = int((batch["tool_mask"] == 0).sum())
            return batch

    class Theirs(Scripted, GRPOTrainer):
        pass

    Ours.captured = folder
    config = work.settings(folder, max_steps=1, max_completion_length=400)
    trainer = work.trained(folder / "model", config, [longest], Ours, tools=[double], observer=quiet(every=1))
    found["log"] = trainer.state.log_history
    for name, given in {"tools": {"tools": [double]}, "environments": {"environment_factory": Doubling}}.items():
        observer = quiet(every=1)
        config = work.settings(folder / name, max_steps=1, max_completion_length=400)
        functions = [longest, observer]
        trainer = work.trained(folder / "model", config, functions, Theirs, callbacks=[observer], **given)
        found[f"as a function, {name}"] = trainer.state.log_history
    say(folder, found)


def others(folder: Path, model: Path) -> None:
    """TRL's other trainers: RLOO under the observer, and what the rest is told as it is made."""
    found: dict[str, Any] = {"mi": {}, "refused": {}}

    class Leaving(RLOOTrainer):
        def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
            batch = super()._generate_and_score_completions(inputs)
            sampled = squelch.kit.trl.trainer.sampled_ids(batch, self.processing_class)
            score = squelch.score(self.model, self.processing_class, *sampled)
            found["mi"][str(self.state.global_step + 1)] = score.metrics()["mi_seq_est"]
            return batch

    observer = quiet(every=1)
    given = work.given(folder, max_steps=2)
    trainer = work.trained(model, RLOOConfig(**given), [work.reward, observer], Leaving, callbacks=[observer])
    found["log"] = trainer.state.log_history

    class Mixed(SquelchMixin, RLOOTrainer):
        pass

    class Geometric(SquelchMixin, GMPOTrainer):
        pass

    policy, tokenizer = work.loaded(model)
    same = {"output_dir": str(folder), "report_to": "none", "use_cpu": True, "bf16": False}
    rows = Dataset.from_list([{"prompt": "w1", "chosen": "w2", "rejected": "w3"}] * 4)
    common = {"train_dataset": rows, "processing_class": tokenizer}
    sampling = {**common, "reward_funcs": [work.reward]}
    makers: dict[str, Callable[[], Any]] = {
        "DPO": lambda: DPOTrainer(policy, args=DPOConfig(**same), callbacks=[quiet()], **common),
        "Async": lambda: AsyncGRPOTrainer(str(model), args=AsyncGRPOConfig(**same), callbacks=[quiet()], **sampling),
        "RLOO with the mixin": lambda: Mixed(policy, args=RLOOConfig(**given), observer=quiet(), **sampling),
        "GMPO with the filter": lambda: Geometric(
            policy, args=GMPOConfig(**given), group_filter=GroupFilter(), **sampling
        ),
    }
    for name, make in makers.items():
        try:
            make()
        except ValueError as error:
            found["refused"][name] = str(error)
    say(folder, found)


def losses(folder: Path, model: Path) -> None:
    """Loss and gradient of a batch with masked groups, and of the kept rows alone, by loss and normaliser."""
    found = {}

    class Losses(GRPOTrainer):
        def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> torch.Tensor:
            kept = torch.arange(len(inputs["advantages"])) % (2 * work.GROUP) < work.GROUP
            for loss_type in (*OVER_TOKENS, *OVER_ROWS, *OVER_KEPT_TOKENS):
                self.loss_type = loss_type
                for normalizer in ("kept", "all"):
                    chosen = GroupFilter(normalizer=normalizer)
                    whole = dict(inputs)
                    chosen.mask(whole, kept, kept.float().mean().item(), loss_type, lambda one: one)
                    alone = {name: value[kept] if value.dim() else value for name, value in inputs.items()}
                    if normalizer == "kept":
                        alone["num_items_in_batch"] = alone["completion_mask"].sum()
                    pair = [super(Losses, self)._compute_loss(model, batch) for batch in (whole, alone)]
                    found[f"{loss_type} {normalizer}"] = [gradient(model, loss) for loss in pair]
            self.loss_type = "dapo"
            return super()._compute_loss(model, inputs)

    config = work.settings(
        folder, max_steps=1, per_device_train_batch_size=work.PROMPTS * work.GROUP, gradient_accumulation_steps=1
    )
    work.trained(model, config, [work.reward], Losses)
    say(folder, found)


def gradient(model: torch.nn.Module, loss: torch.Tensor) -> list[float]:
    """The gradient of one matrix of the last layer."""
    matrix = list(model.parameters())[-4]
    (found,) = torch.autograd.grad(loss, [matrix])
    return found.flatten()[:50].tolist()


def rank(folder: Path, model: Path, index: int) -> None:
    """One of two ranks of a DDP run (Gloo)."""
    os.environ |= {"RANK": str(index), "LOCAL_RANK": str(index), "WORLD_SIZE": str(RANKS)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": (folder / "port").read_text()}
    Filtered.captured = folder
    config = work.settings(
        folder,
        max_steps=2,
        per_device_train_batch_size=RANK_ROWS,
        gradient_accumulation_steps=1,
        ddp_backend="gloo",
    )
    observer = quiet(every=1)
    trainer = work.trained(model, config, [work.reward], Filtered, observer=observer, group_filter=GroupFilter(rho=0.7))
    if index == 0:
        say(folder, {"log": trainer.state.log_history, "parameters": work.digest(trainer.model.parameters())})
    else:
        (folder / "other.json").write_text(json.dumps(work.digest(trainer.model.parameters())))


def distributed(folder: Path, model: Path) -> None:
    """Two ranks, as forks of this process, which has loaded everything."""
    fork = multiprocessing.get_context("fork")
    ranks = [fork.Process(target=rank, args=(folder, model, index)) for index in range(RANKS)]
    for one in ranks:
        one.start()
    for one in ranks:
        one.join(200)
        if one.exitcode != 0:
            raise RuntimeError(f"a rank ended with {one.exitcode}")


def say(folder: Path, found: dict[str, Any]) -> None:
    """Writes what a part found."""
    (folder / "found.json").write_text(json.dumps(found))


def main() -> None:
    """Makes the runs; the forks come first, before this process has threads."""
    root = Path(sys.argv[1])
    work.write_model(root / "model")
    parts = sys.argv[2:] or [
        "distributed",
        "plain",
        "observed",
        "filtered",
        "adapted",
        "several",
        "tools",
        "others",
        "rewarded",
        "losses",
    ]
    for name in parts:
        folder = root / name
        folder.mkdir(exist_ok=True)
        if name == "distributed":
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                (folder / "port").write_text(str(free.getsockname()[1]))
        started = time.perf_counter()
        globals()[name](folder, root / "model")
        print(f"part {name}: {time.perf_counter() - started:.1f} s", file=sys.stderr)
    assert all(package.MINE for package in USERS), "the user's packages of these names are the user's still"


if __name__ == "__main__":
    main()
