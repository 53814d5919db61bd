"""TRL's side of the bank: python -m research.check_bank.trainer_worker FOLDER CELL..., on TRL's packages.

Each cell is one short training by TRL's `GRPOTrainer` in a folder of its own, which ends up with

    completions/            what TRL writes of its samples
    checkpoint-N/           a checkpoint after each step
    ids/                    what `keep_ids` of docs/guide/use-with-other-trainers.md writes
    turns/                  every call of the model as ids, a row a turn
    rollouts.jsonl          all that the trainer had in its hands, for the forms of other trainers (`forms.py`)

A fault is planted by overriding one method of the trainer; everything else is TRL's own. A cell that is done is not run
again.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from datasets import Dataset, load_dataset
from peft import LoraConfig
from torch.utils.data import Sampler
from trl import GRPOConfig, GRPOTrainer

from research.check_bank import policy
from research.check_bank.marks import END
from research.check_bank.plan import CELLS, ENDLESS, FAILED, GROUP, KEPT, LATER, NEW, PROMPTS, STEPS, Cell
from squelch.kit.base.file_lock import held

Ids = list[int]
SIDES = ("prompt", "completion")


class Recorded(GRPOTrainer):
    """TRL's trainer, which writes what it fed, sampled and learned."""

    _rows: list[int]
    _calls: list[list[dict[str, Any]]]

    def generating(self) -> AbstractContextManager[Any]:
        """In which the model generates."""
        return nullcontext()

    def fed(self, prompts: list[Ids]) -> None:
        """May change what a call feeds, in place."""

    def answered(self, rows: Sequence[int], ids: list[Ids], drawn: list[list[float]]) -> None:
        """May change what came of a call, in place."""

    def scored(self, batch: dict[str, Any]) -> None:
        """May change what is learned, in place."""

    def _tool_call_loop(self, prompts: Any, prompt_ids: Any, completion_ids: Any, completions: Any, *more: Any) -> Any:
        self._rows = [row for row, one in enumerate(completions) if one[0].get("tool_calls")]
        return super()._tool_call_loop(prompts, prompt_ids, completion_ids, completions, *more)

    def _generate_single_turn(self, prompt_ids: list[Ids], *given: Any, **others: Any) -> tuple[list[Ids], None]:
        if len(prompt_ids) < len(self._rows):  # TRL left out those that would be too long
            self._rows = [row for row in self._rows if _goes_on(self._calls[row][-1], prompt_ids)]
        self.fed(prompt_ids)
        with self.generating():
            ids, _ = super()._generate_single_turn(prompt_ids, *given, **others)
            temperature = self.generation_config.temperature
            drawn = [self._log_p(*pair, temperature) for pair in zip(prompt_ids, ids, strict=True)]
        ended = [one[-1:] == [self.processing_class.eos_token_id] for one in ids]
        self.answered(self._rows, ids, drawn)
        for row, prompt, said, own, by_itself in zip(self._rows, prompt_ids, ids, drawn, ended, strict=True):
            call = {"prompt_ids": list(prompt), "completion_ids": list(said), "drawn": own, "ended": by_itself}
            self._calls[row].append(call)
        return ids, None

    def _log_p(self, prompt: Ids, said: Ids, temperature: float) -> list[float]:
        """What the model in effect gives each id, in nats."""
        with torch.no_grad():
            logits = self.model(torch.tensor([prompt + said])).logits[0, len(prompt) - 1 : -1].float()
        return (logits / temperature).log_softmax(-1).gather(1, torch.tensor(said)[:, None])[:, 0].tolist()

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, ids: Any) -> torch.Tensor:
        self._said, self._rewards = completions, super()._calculate_rewards(inputs, prompts, completions, ids)
        return self._rewards

    def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
        self._rows, self._calls = list(range(len(inputs))), [[] for _ in inputs]
        batch = super()._generate_and_score_completions(inputs)
        self.scored(batch)
        learned = batch.get("tool_mask", torch.ones_like(batch["completion_ids"]))
        with (Path(self.args.output_dir) / "rollouts.jsonl").open("a") as out:
            for row, (given, calls) in enumerate(zip(inputs, self._calls, strict=True)):
                ids = {name: batch[f"{name}_ids"][row][batch[f"{name}_mask"][row].bool()].tolist() for name in SIDES}
                one = {
                    "step": self.state.global_step + 1,
                    "evaluation": not self.model.training,
                    "member": row % GROUP,
                    "prompt": given["prompt"],
                    "calls": calls,
                    "prompt_ids": ids["prompt"],
                    "completion_ids": ids["completion"],
                    "mask": learned[row][: len(ids["completion"])].tolist(),
                    "trained": self._log_p(ids["prompt"], ids["completion"], self.temperature),
                    "completion": self._said[row],
                    "reward": self._rewards[row, 0].item(),
                    "advantage": batch["advantages"][row].item(),
                }
                out.write(json.dumps(one) + "\n")
        if self.model.training:
            write_turns(Path(self.args.output_dir), self.state.global_step, self._calls)
        return batch


def _goes_on(call: dict[str, Any], prompts: list[Ids]) -> bool:
    """Whether one of the prompts begins with the call and its answer."""
    ids = call["prompt_ids"] + call["completion_ids"]
    return any(one[: len(ids)] == ids for one in prompts)


def write_turns(folder: Path, step: int, calls: Sequence[Sequence[dict[str, Any]]]) -> None:
    """Writes the calls of each rollout of a step, a row a turn."""
    rows = [
        {name: call[name] for name in ("prompt_ids", "completion_ids")} | {"rollout": row, "turn": turn, "step": step}
        for row, own in enumerate(calls)
        for turn, call in enumerate(own)
    ]
    pq.write_table(pa.Table.from_pylist(rows), folder / "turns" / f"turns_{step}.parquet")


# -- what is planted


class Stale(Recorded):
    """Samples come from the weights of `lag` updates before."""

    lag = 1

    @contextmanager
    def generating(self) -> Iterator[None]:
        """With the old weights."""
        own = {name: value.clone() for name, value in self.model.state_dict().items()}
        if self.model.training and len(self._history) <= self.state.global_step:
            self._history.append(own)
        self.model.load_state_dict(self._history[max(0, self.state.global_step - self.lag)])
        yield
        self.model.load_state_dict(own)

    def __init__(self, *given: Any, **others: Any) -> None:
        self._history: list[dict[str, torch.Tensor]] = []
        super().__init__(*given, **others)


class VeryStale(Stale):
    """Of five updates before."""

    lag = 5


class WithoutAdapter(Recorded):
    """The engine has the base model alone."""

    def generating(self) -> AbstractContextManager[Any]:
        """Without the adapter."""
        return self.accelerator.unwrap_model(self.model).disable_adapter()


class Cold(Recorded):
    """The engine samples at 0.7."""

    def generating(self) -> AbstractContextManager[Any]:
        """At that temperature."""
        return patch.object(self.generation_config, "temperature", 0.7)


class HalfPrecision(Recorded):
    """The engine computes in bfloat16."""

    def generating(self) -> AbstractContextManager[Any]:
        """In that precision."""
        return torch.autocast("cpu", dtype=torch.bfloat16)


class EncodedAgain(Recorded):
    """Answers are decoded and encoded again before they are learned."""

    def answered(self, rows: Sequence[int], ids: list[Ids], drawn: list[list[float]]) -> None:
        """Encodes each again."""
        ids[:] = [again(self.processing_class, one) for one in ids]


class Drifting(Recorded):
    """What a call says is decoded and encoded again for the next one, as TRL did before `_get_tool_suffix_ids`."""

    def fed(self, prompts: list[Ids]) -> None:
        """Encodes later prompts again, within the lists from which TRL takes what is learned."""
        if any(self._calls):
            for ids in prompts:
                ids[:] = again(self.processing_class, ids)


class TwoBegins(Recorded):
    """The encoder adds the first token that the template has written."""

    def _tokenize_prompts(self, prompts: Any) -> Any:
        ids, *more = super()._tokenize_prompts(prompts)
        return [[self.processing_class.bos_token_id, *one] for one in ids], *more


class OtherTemplate(Recorded):
    """The engine's template writes a system prompt."""

    def _tokenize_prompts(self, prompts: Any) -> Any:
        return super()._tokenize_prompts([[{"role": "system", "content": "ab cd"}, *one] for one in prompts])


class NoReply(Recorded):
    """Prompts end without the template's generation prompt."""

    def _tokenize_prompts(self, prompts: Any) -> Any:
        ids, *more = super()._tokenize_prompts(prompts)
        return [one[:-1] for one in ids], *more


class ToolLearned(Recorded):
    """What the tool says is under the loss."""

    def _tool_call_loop(self, prompts: Any, prompt_ids: Any, completion_ids: Any, completions: Any, *more: Any) -> Any:
        masks, *others = super()._tool_call_loop(prompts, prompt_ids, completion_ids, completions, *more)
        return [[1] * len(one) for one in masks], *others


class Cut(Recorded):
    """Batches end within a group."""

    def _get_train_sampler(self, dataset: Dataset | None = None) -> Sampler:
        return Shifted(super()._get_train_sampler(dataset))


class Shifted(Sampler):
    """The rows of another sampler, which the first half of a group leaves for the end."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def __iter__(self) -> Iterator[int]:
        first = iter(self.inner)
        left = list(islice(first, GROUP // 2))
        yield from first
        yield from left

    def __len__(self) -> int:
        return len(self.inner)


class Failing(Recorded):
    """The engine fails now and then, and its error is taken for an answer."""

    def answered(self, rows: Sequence[int], ids: list[Ids], drawn: list[list[float]]) -> None:
        """Fails for some rows."""
        for place, row in enumerate(rows):
            if row % FAILED == 1:
                text = f"Error: request {row} timed out{END}"
                ids[place] = self.processing_class.encode(text, add_special_tokens=False)
                drawn[place] = [0.0] * len(ids[place])


class Silent(Recorded):
    """The engine answers a whole group with nothing."""

    def answered(self, rows: Sequence[int], ids: list[Ids], drawn: list[list[float]]) -> None:
        """Says nothing to the third prompt."""
        for place, row in enumerate(rows):
            if row // GROUP == 2:
                ids[place], drawn[place] = [self.processing_class.eos_token_id], [0.0]


class Endless(Recorded):
    """Answers lose their end token on the way from the engine."""

    def answered(self, rows: Sequence[int], ids: list[Ids], drawn: list[list[float]]) -> None:
        """Drops it from some that ended, and from no call of a tool, which the next turn would go on from."""
        for place, row in enumerate(rows):
            is_last = self._calls[row] or policy.CALL not in self.processing_class.decode(ids[place])
            if row % ENDLESS == 1 and is_last and ids[place][-1:] == [self.processing_class.eos_token_id]:
                ids[place], drawn[place] = ids[place][:-1], drawn[place][:-1]


class Shortened(Recorded):
    """A client cuts answers after they were sampled, and says nothing of it."""

    def answered(self, rows: Sequence[int], ids: list[Ids], drawn: list[list[float]]) -> None:
        """Cuts some."""
        for place, row in enumerate(rows):
            if row % ENDLESS == 1:
                ids[place], drawn[place] = ids[place][:KEPT], drawn[place][:KEPT]


class OneSeed(Recorded):
    """The second rollout of a group has the first one's seed."""

    def answered(self, rows: Sequence[int], ids: list[Ids], drawn: list[list[float]]) -> None:
        """Says it twice."""
        for row in range(0, len(rows), GROUP):
            ids[row + 1], drawn[row + 1] = list(ids[row]), list(drawn[row])


class OtherRule(Recorded):
    """Advantages are rewards less the batch's mean."""

    since = 0

    def scored(self, batch: dict[str, Any]) -> None:
        """Replaces the advantages, and TRL's record of them."""
        if self.state.global_step >= self.since:
            rewards = self._rewards[:, 0]
            batch["advantages"] = rewards - rewards.mean()
            self._logs["advantages"].extend(batch["advantages"].tolist())


class RuleChanges(OtherRule):
    """From the middle of the run on."""

    since = STEPS // 2


def again(tokenizer: Any, ids: Ids) -> Ids:
    """The ids that the tokenizer chooses for the same text."""
    return tokenizer.encode(tokenizer.decode(ids), add_special_tokens=False)


PLANTED: dict[str, type[Recorded]] = {
    "": Recorded,
    "stale-1": Stale,
    "stale-5": VeryStale,
    "adapter": WithoutAdapter,
    "temperature": Cold,
    "precision": HalfPrecision,
    "encoded-again": EncodedAgain,
    "drift": Drifting,
    "begin": TwoBegins,
    "template": OtherTemplate,
    "no-reply": NoReply,
    "tool-learned": ToolLearned,
    "cut": Cut,
    "errors": Failing,
    "silence": Silent,
    "ends": Endless,
    "shortened": Shortened,
    "one-seed": OneSeed,
    "rule": OtherRule,
    "rule-changes": RuleChanges,
    "lost": Recorded,
    "leak": Recorded,
}


# -- a cell


def double(number: int) -> str:
    """Doubles a number.

    Args:
        number: the number.
    """
    return policy.told(int(number))


def right(prompts: list[Any], completions: list[Any], **_: Any) -> list[float]:
    """1 for the doubled number as the last word; for another number 0.25 and half of the share of a and b among the
    letters; else 0."""
    found = []
    for asked, said in zip(prompts, completions, strict=True):
        *words, last = (said[-1].get("content") or "").split(" ")
        letters = "".join(words)
        wanted = str(2 * int(asked[-1]["content"].rstrip(".").split()[-1]))
        share = sum(letter in "ab" for letter in letters) / max(1, len(letters))
        found.append(1.0 if last == wanted else (0.25 + 0.5 * share) * last.isdigit())
    return found


def keeper(folder: Path) -> Callable[..., list[None]]:
    """The reward function of the guide."""

    def keep_ids(prompts: Any, completion_ids: Any, trainer_state: Any, **_: Any) -> list[None]:
        step, pairs = trainer_state.global_step, zip(prompts, completion_ids, strict=True)
        rows = [{"prompt": prompt, "completion_ids": ids, "step": step} for prompt, ids in pairs]
        pq.write_table(pa.Table.from_pylist(rows), folder / "ids" / f"ids_{step}.parquet")
        return [None] * len(rows)

    return keep_ids


def settings(folder: Path, cell: Cell) -> GRPOConfig:
    """TRL's settings of a cell."""
    evaluated = {"eval_strategy": "steps", "eval_steps": 4, "per_device_eval_batch_size": 2 * GROUP}
    return GRPOConfig(
        output_dir=str(folder),
        max_steps=STEPS,
        per_device_train_batch_size=PROMPTS * GROUP,
        gradient_accumulation_steps=1,
        num_generations=GROUP,
        max_completion_length=NEW,
        max_tool_calling_iterations=1,
        temperature=1.0,
        top_p=1.0,
        top_k=0,
        learning_rate=cell.rate,
        lr_scheduler_type="constant",
        save_strategy="steps",
        save_steps=1,
        save_only_model=not cell.resumed,
        log_completions=True,
        logging_steps=1,
        shuffle_dataset=False,
        gradient_checkpointing=False,
        report_to="none",
        use_cpu=True,
        bf16=False,
        disable_tqdm=True,
        seed=7,
        **(evaluated if cell.evaluated else {}),
    )


def run(shared: Path, folder: Path, cell: Cell) -> None:
    """Trains."""
    for name in ("ids", "turns", "completions"):
        (folder / name).mkdir(parents=True)
    data = load_dataset("json", data_files=str(shared / f"{cell.prompts}.jsonl"), split="train")
    played, later = data.select(range(len(data) - LATER)), data.select(range(len(data) - LATER, len(data)))
    ends = [STEPS // 2, STEPS] if cell.resumed else [STEPS]
    for part, end in enumerate(ends):
        model, tokenizer = policy.loaded(shared)
        if not cell.tools:
            tokenizer.response_template = None
        adapter = LoraConfig(r=8, target_modules=["q_proj", "v_proj", "up_proj"]) if cell.lora else None
        trainer = PLANTED[cell.fault](
            model=model,
            args=settings(folder, cell),
            reward_funcs=[right, keeper(folder)] if not cell.evaluated else [right],
            train_dataset=played,
            eval_dataset=(played if cell.fault == "leak" else later).select(range(2)) if cell.evaluated else None,
            processing_class=tokenizer,
            peft_config=adapter,
            tools=[double] if cell.tools else None,
        )
        trainer.args.max_steps = end
        with skipping(LOST if cell.fault == "lost" else 0):
            trainer.train(resume_from_checkpoint=str(folder / f"checkpoint-{ends[0]}") if part else None)


RUN_S = 1200.0
LOST = 2
"""Batches that the resumed run of the fault `lost` skips too many."""


def skipping(more: int) -> AbstractContextManager[Any]:
    """In which a resumed training skips more batches than were played."""
    import transformers.trainer as module

    own = module.skip_first_batches
    return patch.object(module, "skip_first_batches", lambda loader, count=0: own(loader, count + more))


def main() -> None:
    """Runs the cells that are not done."""
    torch.set_num_threads(1)
    root, *names = sys.argv[1:]
    shared = policy.ready(Path(root))
    for cell in (CELLS[name] for name in names):
        folder = Path(root) / cell.name
        with held(Path(root) / f"{cell.name}.lock", "running this cell", RUN_S):
            if (folder / "done").exists():
                continue
            shutil.rmtree(folder, ignore_errors=True)
            run(shared, folder, cell)
            (folder / "done").touch()


if __name__ == "__main__":
    main()
