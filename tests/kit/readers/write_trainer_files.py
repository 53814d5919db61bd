"""Writes the files in the folder `written` beside this module by the trainers' own writers:
`python tests/kit/readers/write_trainer_files.py trl`, or `verifiers`, in an environment that has TRL 1.16.0, or
verifiers 0.4.0. `GRPOTrainer.log` and `Episode.to_record` are called on samples that are made up."""

import json
import sys
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

PROMPTS = ("Two and two?", "Three and one?")
SAID = ("<think>Count up.</think> 4", "<think>I guess.</think> 5")
SAMPLES = [(prompt, said, float(said.endswith("4"))) for prompt in PROMPTS for said in SAID]
FOLDER = Path(__file__).with_name("written")


def trl() -> None:
    """A step of two groups of two; one reward function did not score the second row."""
    import transformers
    from trl import GRPOTrainer

    trainer = GRPOTrainer.__new__(GRPOTrainer)
    (FOLDER / "completions").mkdir(parents=True, exist_ok=True)
    trainer.__dict__ |= {
        "model": SimpleNamespace(training=True),
        "_metrics": {"train": defaultdict(list)},
        "accelerator": SimpleNamespace(is_main_process=True),
        "log_completions": True,
        "num_completions_to_print": 0,
        "log_unique_prompts": False,
        "state": SimpleNamespace(global_step=100),
        "args": SimpleNamespace(report_to=[], output_dir=str(FOLDER)),
        "_logs": {
            "prompt": [[{"role": "user", "content": prompt}] for prompt, _, _ in SAMPLES],
            "completion": [[{"role": "assistant", "content": said}] for _, said, _ in SAMPLES],
            "rewards": {"right": [reward for *_, reward in SAMPLES], "form": [0.5, float("nan"), 0.5, 0.5]},
            "advantages": [0.7, -0.7, 0.7, -0.7],
            "extra": {"solution": ["4"] * len(SAMPLES)},
            "images": [],
        },
    }
    with (
        mock.patch.object(transformers.Trainer, "log"),
        mock.patch("trl.trainer.grpo_trainer.is_rich_available", lambda: False),
    ):
        trainer.log({})


def verifiers() -> None:
    """Four episodes of a training: one stopped at its limit of turns, one whose sandbox failed."""
    import verifiers.v1 as vf
    from verifiers.v1.episode import EnvInfo, Episode, GroupInfo, PolicySpan, TrainRunInfo, TrainWorkInfo
    from verifiers.v1.graph import MessageNode
    from verifiers.v1.trace import Error, Trace, TraceTask
    from verifiers.v1.types import AssistantMessage, UserMessage

    records = []
    for number, (prompt, said, reward) in enumerate(SAMPLES):
        asked = MessageNode(message=UserMessage(content=prompt), token_ids=[1 + number // 2, 9], mask=[False, False])
        answer = MessageNode(
            parent=0,
            sampled=True,
            message=AssistantMessage(content=said),
            token_ids=[5, 20, 21],
            mask=[False, True, True],
            logprobs=[-0.125, -0.25 * number],
            advantages=[1.0 - number, 1.0 - number],
        )
        task = TraceTask(type="Sum", data=vf.TaskData(idx=number // 2, prompt=prompt))
        agent = {"config": {}, "name": "agent", "trainable": True}
        trace = Trace.model_validate({"task": task, "agent": agent, "nodes": [asked, answer]})
        trace.rewards["right"] = vf.Reward(score=reward)
        trace.stop("max_turns" if number == 1 else "agent_completed")
        trace.ok = number != 3
        if number == 3:
            trace.errors.append(Error(type="SandboxError", message="gone"))
        group = GroupInfo(id=f"g{number // 2}")
        episode = Episode(env=EnvInfo(id="sums"), task=task, group=group, traces=[trace], ok=trace.ok)
        work = TrainWorkInfo(step=101, policy=PolicySpan(start=100, end=100 + number % 2))
        episode.record_run(TrainRunInfo(id="run", name="run", work=work))
        records.append(json.dumps(episode.to_record()))
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / "traces.jsonl").write_text("\n".join(records) + "\n")


if __name__ == "__main__":
    {"trl": trl, "verifiers": verifiers}[sys.argv[1]]()
