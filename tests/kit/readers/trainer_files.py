"""Small files in the form in which each trainer writes its samples: two prompts with two completions each.

Each function copies the record of the trainer's own writing function, which it names; the trainers themselves need
GPUs, or versions of packages that do not go with this project's.
"""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

PROMPTS = ("Two and two?", "Three and one?")
SAID = ("<think>Count up.</think> 4", "<think>I guess.</think> 5")
SAMPLES = [(prompt, said, float(said.endswith("4"))) for prompt in PROMPTS for said in SAID]


def jsonl(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return path


def trl(folder: Path, step: int = 100) -> Path:
    """TRL 1.16, `GRPOTrainer.log`: `pandas.DataFrame(table).to_parquet`; conversations are logged as messages."""
    table = {
        "step": [step] * len(SAMPLES),
        "prompt": [[{"role": "user", "content": prompt}] for prompt, _, _ in SAMPLES],
        "completion": [[{"role": "assistant", "content": said}] for _, said, _ in SAMPLES],
        "accuracy_reward": [reward for _, _, reward in SAMPLES],
        "format_reward": [0.5, None, 0.5, 0.5],
        "solution": ["4"] * len(SAMPLES),
        "advantage": [1.0, -1.0, 1.0, -1.0],
    }
    path = folder / "completions" / f"completions_{step:05d}.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(table), path)
    return path


def verl(folder: Path, step: int = 100) -> Path:
    """verl 0.9.1, `PPOTrainer._log_rollout_data` and `_write_generations` (`verl/trainer/ppo/v1/trainer_base.py`)."""
    rows = [
        {
            "input": f"user\n{prompt}\nassistant\n",
            "output": said,
            "gts": "4",
            "score": reward,
            "step": step,
            "uid": f"{'ab'[index // 2]}7_{index % 2}_0",
        }
        for index, (prompt, said, reward) in enumerate(SAMPLES)
    ]
    return jsonl(folder / f"{step}.jsonl", rows)


def nemo_rl(folder: Path, step: int = 100) -> Path:
    """NeMo-RL, `grpo_train` and `Logger.log_batched_dict_as_jsonl` (`nemo_rl/utils/logger.py`, commit 0275e758): each
    value is a batch of one, padded to the longest sequence. The first sample has two turns."""
    rows = []
    for index, (prompt, said, reward) in enumerate(SAMPLES):
        ids, mask = [1 + index // 2, 9, 20, 21, 30, 31], [0, 0, 1, 1, 0, 1] if index == 0 else [0, 0, 1, 1, 1, 0]
        rows.append(
            {
                "content": [[f"<|user|>{prompt}<|assistant|>", said]],
                "rewards": [reward],
                "input_lengths": [6 if index == 0 else 5],
                "token_ids": [ids],
                "token_loss_mask": [mask],
                "sample_loss_mask": [1.0],
                "advantages": [[0.0] * 6],
                "generation_logprobs": [[0.0] * 6],
                "prev_logprobs": [[0.0] * 6],
                "idx": index,
            }
        )
    return jsonl(folder / f"train_data_step{step}.jsonl", rows)


def areal(folder: Path, version: int = 100) -> Path:
    """AReaL 1.0.4, `WorkflowExecutor._dump_trajectory` (`areal/infra/workflow_executor.py`): a folder for each version
    and a file for each task. Returns the version's folder."""
    for task, prompt in enumerate(PROMPTS):
        rows = [
            {
                "task_id": task,
                "sample_idx": index,
                "seqlen": 30,
                "prompt_len": 12,
                "head_version": version - index,
                "tail_version": version,
                "reward": reward,
                "prompt": f"<|user|>{prompt}<|assistant|>",
                "completion": said + "<|end|>",
            }
            for index, (own, said, reward) in enumerate([one for one in SAMPLES if one[0] == prompt])
        ]
        jsonl(folder / "rollout" / str(version) / f"{task}.jsonl", rows)
    return folder / "rollout" / str(version)


def slime(folder: Path, rollout: int = 100) -> Path:
    """slime, `Sample.to_dict` (`slime/utils/types.py`, commit 0d234f3e), as JSON Lines."""
    rows = [
        {
            "group_index": index // 2,
            "index": index,
            "prompt": f"<|user|>{prompt}<|assistant|>",
            "tokens": [1 + index // 2, 9, 20, 21],
            "multimodal_inputs": None,
            "response": said,
            "response_length": 2,
            "label": "4",
            "reward": reward,
            "loss_mask": None,
            "weight_versions": ["101"],
            "rollout_log_probs": [-0.1, -0.2],
            "remove_sample": False,
            "status": "completed" if index < 3 else "aborted",
            "metadata": {},
            "spec_info": {},
            "rollout_id": rollout,
        }
        for index, (prompt, said, reward) in enumerate(SAMPLES)
    ]
    return jsonl(folder / f"rollout_{rollout}.jsonl", rows)


def skyrl(folder: Path, step: int = 100) -> Path:
    """SkyRL 0.4.0, `dump_per_dataset_eval_results` (`skyrl/train/utils/trainer_utils.py`): one file for each data set,
    and the metrics beside them. Returns the step's folder."""
    place = folder / "dumped_evals" / f"global_step_{step}_evals"
    rows = [
        {
            "input_prompt": f"<|user|>{prompt}<|assistant|>",
            "output_response": said + "<|end|>",
            "score": [0.0, reward],
            "stop_reason": "stop",
            "env_class": "gsm8k",
            "env_extras": {"reward_spec": {"ground_truth": "4"}},
            "data_source": "gsm8k",
        }
        for prompt, said, reward in SAMPLES
    ]
    jsonl(place / "aggregated_results.jsonl", [{"eval/all/avg_score": 0.5}])
    jsonl(place / "gsm8k.jsonl", rows)
    return place


def episode(prompt: str, said: str, reward: float, **run: Any) -> dict[str, Any]:
    """verifiers 0.4.0, `Episode.to_record` (`verifiers/v1/episode.py`, `trace.py`, `graph.py`): what is None is left
    out. The first turn calls a tool; the second answers."""
    first = 1 + PROMPTS.index(prompt)
    call = {"id": "call_0", "type": "function", "name": "add", "arguments": '{"a": 2, "b": 2}'}
    nodes: list[dict[str, Any]] = [
        {
            "tools": [{"type": "function", "name": "add", "description": "Adds.", "parameters": {"type": "object"}}],
            "message": {"role": "user", "content": prompt},
            "sampled": False,
            "token_ids": [first, 9],
            "mask": [False, False],
        },
        {
            "parent": 0,
            "message": {"role": "assistant", "reasoning_content": "Count up.", "tool_calls": [call]},
            "sampled": True,
            "token_ids": [5, 20, 21],
            "mask": [False, True, True],
            "logprobs": [-0.1, -0.2],
        },
        {
            "parent": 1,
            "message": {"role": "tool", "tool_call_id": "call_0", "content": "4"},
            "sampled": False,
            "token_ids": [30],
            "mask": [False],
        },
        {
            "parent": 2,
            "message": {"role": "assistant", "content": said},
            "sampled": True,
            "token_ids": [5, 22],
            "mask": [False, True],
            "logprobs": [-0.1],
        },
    ]
    task = {"type": "Sum", "data": {"idx": first, "prompt": prompt}, "key": f"task-{first}"}
    trace = {
        "version": 1,
        "id": f"{first}-{said[-1]}",
        "verifiers": {"version": "0.4.0"},
        "task": task,
        "agent": {"config": {}, "name": "agent", "trainable": True},
        "nodes": nodes,
        "rewards": {"correct": {"score": reward, "weight": 2.0}, "skipped": None},
        "metrics": {},
        "ok": True,
    }
    record = {"id": f"e{first}", "env": {"id": "sum"}, "task": task, "ok": True, "errors": [], "traces": [trace]}
    return record | {"group": {"id": f"g{first}"}} | ({"run": run} if run else {})


def verifiers(folder: Path) -> Path:
    """verifiers 0.4.0, `write_episode` (`verifiers/v1/utils/trace_store.py`), as its evaluations write it: no run."""
    return jsonl(folder / "traces.jsonl", [episode(*sample) for sample in SAMPLES])


def prime_rl(folder: Path, step: int = 100) -> Path:
    """prime-rl, `FileMonitor.log_episodes` (`src/prime_rl/monitors/file/monitor.py`, commit 048a6e23): episodes with
    their run, the evaluations among them, in numbered chunks. Returns the folder of chunks."""
    policy = {"start": step, "end": step + 1}
    work = {"type": "train", "step": step + 1, "policy": policy}
    rows = [episode(*sample, type="train", id="r", work=work) for sample in SAMPLES]
    rows.append(episode(*SAMPLES[0], type="train", id="r", work=work | {"type": "eval"}))
    place = folder / "monitors" / "file" / "traces" / "stream"
    jsonl(place / "00000.jsonl", rows)
    return place
