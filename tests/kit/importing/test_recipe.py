"""What becomes of the keys of configurations that people publish: the settings, and what is said of the rest."""

from pathlib import Path
from typing import Any

import pytest

from squelch.kit.base.errors import UserError
from squelch.kit.importing.recipe import Imported, imported
from squelch.kit.importing.sources import read

OLD_FLAGS = r"""
python3 -m openrlhf.cli.train_ppo_ray --pretrain OpenRLHF/Llama-3-8b-sft-mixture --prompt_data a/prompts \
   --rollout_batch_size 128 --n_samples_per_prompt 8 --actor_learning_rate 5e-7 --use_kl_estimator_k3 --flash_attn \
   --dynamic_filtering --enable_vllm_is_correction --vllm_is_truncated_threshold 0.5 4.0
"""
NODES = """
seq_len = 4096
[slurm]
[ckpt]
[deployment]
type = "multi_node"
num_train_nodes = 2
num_infer_nodes = 1
num_infer_replicas = 3
[orchestrator.algo]
type = "grpo"
length_penalty = {type = "linear"}
[inference.vllm]
max_model_len = 8192
tensor_parallel_size = 4
"""
SCRIPT = """
from peft import LoraConfig
from trl import GRPOConfig, GRPOTrainer
args = GRPOConfig(max_steps=60, save_steps=20, gradient_accumulation_steps=2, {more})
GRPOTrainer("Qwen/Qwen3-0.6B", args=args, peft_config=LoraConfig({adapters}), rollout_func=play)
"""


def made(tmp_path: Path, text: str, name: str = "run.sh") -> Imported:
    path = tmp_path / name
    path.write_text(text)
    return imported(read(path))


def said(of: list[tuple[Any, ...]]) -> set[str]:
    return {key for key, *_ in of}


def test_openrlhfs_older_flags_have_the_value_of_their_release(tmp_path: Path) -> None:
    found = made(tmp_path, OLD_FLAGS)
    wanted = {"learner.objective.mismatch_cap": 4.0, "learner.objective.kl.estimator": "k3", "filter.rule": "top_p"}
    assert {key: found.settings[key] for key in wanted} == wanted
    assert not [why for _, why in found.unknown if "no key of" in why]


def test_a_filter_that_is_on_is_not_said_to_be_off(tmp_path: Path) -> None:
    on, off = made(tmp_path, OLD_FLAGS), made(tmp_path, OLD_FLAGS.replace("--dynamic_filtering", ""))
    assert "as there" in on.taken["filter.rule"].note and "is off" not in on.taken["filter.rule"].note
    assert off.settings["filter.rule"] == "none" and "is off" in off.taken["filter.rule"].note


def test_gpus_of_several_nodes_are_counted_and_no_default_of_one_node_is_taken(tmp_path: Path) -> None:
    found = made(tmp_path, NODES, "rl.toml")
    wanted = {"learner.ranks": 16, "rollout.count": 6, "rollout.tensor_parallel_size": 4, "rollout.max_model_len": 8192}
    assert {key: found.settings[key] for key in wanted} == wanted
    assert said(found.lost) == {"orchestrator.algo.length_penalty.type"}
    assert not [why for _, why in found.unknown if "no key of" in why]


def test_prime_rls_older_lists_of_gpus_are_counted(tmp_path: Path) -> None:
    found = made(tmp_path, "inference_gpu_ids = [0, 1, 2]\ntrainer_gpu_ids = [3, 4]\n", "rl.toml")
    assert (found.settings["rollout.count"], found.settings["learner.ranks"]) == (3, 2)


@pytest.mark.parametrize(
    ("more", "adapters", "wanted"),
    [
        ("", "r=16, lora_alpha=32", {"loop.steps": 60, "learner.minibatches": 1, "learner.lora.rank": 16}),
        ("steps_per_generation=4", "", {"loop.steps": 30, "learner.minibatches": 2, "learner.lora.rank": 8}),
        ("generation_batch_size=64", "**mine", {"loop.steps": None, "learner.minibatches": None}),
    ],
)
def test_trls_steps_follow_from_its_own_defaults_and_adapters_are_seen(
    tmp_path: Path, more: str, adapters: str, wanted: dict[str, int | None]
) -> None:
    found = made(tmp_path, SCRIPT.format(more=more, adapters=adapters), "train.py")
    assert {key: found.settings.get(key) for key in wanted} == wanted
    assert ("peft_config.r" in said(found.unknown)) is (adapters == "**mine")
    assert "rollout_func" in said(found.unknown)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        (
            "run.sh",
            'A=()\n[ -n $W ] && A+=(data.seed=1)\npython3 verl/trainer/main_ppo.py x.y=1 "${A[@]}" $@ >log 2>&1',
        ),
        ("run.sh", "python -m recipe.dapo.main_dapo data.train_batch_size=8 $MORE | tee a.b=1"),
        ("run.sh", "python examples/train_ppo_ray.py --n_samples_per_prompt 4 ${MORE[@]} --train_batch_size 8"),
        ("train.py", "GRPOTrainer('m', args=GRPOConfig(learning_rate=1e-5, **mine))"),
    ],
)
def test_where_more_keys_may_be_given_than_can_be_read_no_default_is_taken(
    tmp_path: Path, name: str, text: str
) -> None:
    found = made(tmp_path, text, name)
    assert "other keys" in said(found.unknown) and not [one for one in found.taken.values() if one.default]
    with pytest.raises(UserError, match=r"the (group size|learning rate)"):
        found.require("{}=VALUE")
    assert not {"a.b", "log"} & found.source.values.keys()
