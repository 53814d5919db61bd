"""What is read of another trainer's configuration, and what is not executed."""

from pathlib import Path

import pytest

from squelch.kit.base.errors import UserError
from squelch.kit.importing.sources import read
from squelch.kit.importing.values import Unknown

BASH = r"""#!/bin/bash
set -x
MODEL=Qwen/Qwen3-4B   # the model
LR="5e-7"
GPUS=$(nvidia-smi -L | wc -l)
BATCH=${BATCH:-128}
SEED=${SEED:-$(date +%s)}
LENGTH=$(((1024 + 1) * 2))
ENTROPY=${PATH:-0.1}
CLIP=${N:-1}
if [ -n "$FAST" ]; then
  SAMPLES=4
fi
MORE="--actor.max_norm 0.5 --train.seed 7"
[ -n "$FAST" ] && LATE=1
LATE=2
for size in 1 2; do N=$size; done
RL=(
   --rollout.batch_size ${BATCH}
   --actor.entropy_coef $ENTROPY --actor.dual_clip $CLIP --ppo.seed $SEED --generate.max_len $LENGTH
   --rollout.n_samples_per_prompt $SAMPLES  # a comment's $(touch EXECUTED)
   --actor.eps_clip_low_high 0.2 0.28
)
touch EXECUTED
ray job submit --address="http://127.0.0.1:8265" -- python3 -m openrlhf.cli.train_ppo_ray \
   --actor.model_name_or_path ${MODEL} --actor.adam.lr $LR \
   --actor.num_gpus_per_node $GPUS ${RL[@]} \
   $MORE --train.seed="$N" --ckpt.save_steps $LATE --vllm.enforce_eager --data.input_key 'a $b' | tee --ckpt.max_num
"""


def script(tmp_path: Path, text: str, name: str = "run.sh") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_shell_script_is_read_as_text_and_what_it_computes_is_unknown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = read(script(tmp_path, BASH))
    assert (source.trainer, source.complete) == ("OpenRLHF", False) and not Path("EXECUTED").exists()
    known = {key: value for key, value in source.values.items() if not isinstance(value, Unknown)}
    assert known == {
        "actor.model_name_or_path": "Qwen/Qwen3-4B",
        "actor.adam.lr": 5e-7,
        "actor.eps_clip_low_high": [0.2, 0.28],
        "actor.max_norm": 0.5,
        "vllm.enforce_eager": True,
        "data.input_key": "a $b",
        "rollout.batch_size": 128,  # of the script, for an environment without it
    }
    assert source.assumed == {"BATCH": "128"}
    unknown = source.values.keys() - known
    assert unknown == {
        "actor.num_gpus_per_node",  # a command's output
        "generate.max_len",  # a product
        "ppo.seed",  # of the environment, or a command's output
        "actor.entropy_coef",  # of the environment
        "actor.dual_clip",  # the loop's variable, or a default
        "rollout.n_samples_per_prompt",  # assigned in a block
        "train.seed",  # a loop's variable
        "ckpt.save_steps",  # assigned twice
    }
    assert source.values["generate.max_len"].why == "a script computes $(((1024+1)*2))"


DEFAULTS = """
export VLLM_USE_V1=1
DATA=${DATA:-"${HOME}/data set"}
MODEL=${MODEL:-$HOME/models/Qwen2.5-7B}
TRAIN=${TRAIN:-"$DATA/train.parquet"}
FILES="['$TRAIN', '${SECOND-/b.parquet}']"
EMPTY=
GROUP=${EMPTY:-5}
RATE=1e-6
EXTRA=(
)
python3 -m verl.trainer.main_ppo data.train_files="$FILES" actor_rollout_ref.model.path=${MODEL} "${EXTRA[@]}" \\
  actor_rollout_ref.rollout.n=${GROUP:-9} actor_rollout_ref.actor.optim.lr=${RATE:-5} data.seed=${UNSET} \\
  data.max_prompt_length=${LATE:-7} actor_rollout_ref.rollout.top_k=${#RATE}{end}
"""


def test_home_and_what_a_script_has_for_an_unset_variable_are_known_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    source = read(script(tmp_path, DEFAULTS.replace("{end}", "\nLATE=8\nRATE=1\n")))
    known = {key: value for key, value in source.values.items() if not isinstance(value, Unknown)}
    assert known == {
        "data.train_files": ["/home/me/data set/train.parquet", "/b.parquet"],
        "actor_rollout_ref.model.path": "/home/me/models/Qwen2.5-7B",
        "actor_rollout_ref.rollout.n": 5,
        "actor_rollout_ref.actor.optim.lr": 1e-6,
        "data.max_prompt_length": 7,
    }
    assert source.assumed == {
        "HOME": "/home/me",
        "DATA": "/home/me/data set",
        "MODEL": "/home/me/models/Qwen2.5-7B",
        "TRAIN": "/home/me/data set/train.parquet",
        "SECOND": "/b.parquet",
        "LATE": "7",
    }
    assert source.values["data.seed"] == Unknown("${UNSET} comes from the environment") and not source.more


@pytest.mark.parametrize(
    "before",
    ["source env.sh", ". ./env.sh", "declare LR=3", "read -r LR", "printf -v LR %s 3", "LR=3 true", "export LR"],
)
def test_a_variable_that_a_script_may_set_in_another_way_is_unknown(tmp_path: Path, before: str) -> None:
    command = "python3 -m verl.trainer.main_ppo actor_rollout_ref.actor.optim.lr="
    for value in ("${LR:-5}", "$LR"):
        source = read(script(tmp_path, f"{before}\n{command}{value}\n"))
        assert isinstance(source.values["actor_rollout_ref.actor.optim.lr"], Unknown), value


def test_hydras_overrides_in_a_script_are_verls_and_the_rest_is_not(tmp_path: Path) -> None:
    text = "B=512\npython3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.train_batch_size=$B \\\n"
    text += '  +trainer.extra=1 \'data.train_files=["a.parquet", "b.parquet"]\' actor_rollout_ref.rollout.n=$N "$@"\n'
    source = read(script(tmp_path, text))
    assert source.trainer == "verl" and not source.complete
    assert source.values["data.train_batch_size"] == 512 and source.values["trainer.extra"] == 1
    assert source.values["data.train_files"] == ["a.parquet", "b.parquet"]
    assert isinstance(source.values["actor_rollout_ref.rollout.n"], Unknown)


def test_references_of_hydras_folder_are_followed_and_what_a_resolver_computes_is_unknown(tmp_path: Path) -> None:
    hydra = tmp_path / "outputs" / ".hydra"
    hydra.mkdir(parents=True)
    (hydra / "config.yaml").write_text(
        "actor_rollout_ref:\n  actor: {ppo_mini_batch_size: 64, use_dynamic_bsz: '${oc.select:absent.key,false}'}\n"
        "  rollout: {n: '${data.size}', name: '???', seed: '${oc.env:SEED}', max_num_seqs: '${.limit}', limit: 9}\n"
        "data: {size: 8, train_batch_size: '${sum:1,2}'}\ncritic: {ppo_mini_batch_size: "
        "'${oc.select:actor_rollout_ref.actor.ppo_mini_batch_size,256}'}\nloop: {a: '${loop.b}', b: '${loop.a}'}\n"
    )
    values = read(hydra).values
    assert read(tmp_path / "outputs").values == values
    assert values["actor_rollout_ref.rollout.n"] == 8 and values["critic.ppo_mini_batch_size"] == 64
    assert values["actor_rollout_ref.actor.use_dynamic_bsz"] is False
    assert values["actor_rollout_ref.rollout.max_num_seqs"] == 9
    for key in ("actor_rollout_ref.rollout.name", "actor_rollout_ref.rollout.seed", "data.train_batch_size", "loop.a"):
        assert isinstance(values[key], Unknown), key


def test_of_a_python_script_literals_are_known_and_calls_are_not(tmp_path: Path) -> None:
    text = """
import os
from trl import GRPOConfig, GRPOTrainer
open("EXECUTED", "w")
LR = 2e-6
STEPS = 100
STEPS = 200
config = GRPOConfig(output_dir="out", learning_rate=LR, num_generations=int(os.environ["N"]), max_steps=STEPS)
GRPOTrainer("Qwen/Qwen3-0.6B", args=config, train_dataset=load("x"), callbacks=[1])
"""
    values = read(script(tmp_path, text, "train.py")).values
    assert values["learning_rate"] == 2e-6 and values["model"] == "Qwen/Qwen3-0.6B" and "callbacks" not in values
    for key in ("num_generations", "max_steps", "train_dataset"):
        assert isinstance(values[key], Unknown), key
    assert not Path("EXECUTED").exists()


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("run.sh", "echo nothing", "no command of a trainer"),
        ("run.sh", "echo 'open", "no command of a trainer"),
        ("a.yaml", "loop: {steps: 3}", "it has no actor_rollout_ref"),
        ("a.toml", "a = ", "not TOML"),
        ("a.py", "def", "not Python"),
        ("a.py", "x = 1", "0 calls GRPOConfig"),
    ],
)
def test_a_file_of_no_trainer_is_refused_with_what_to_give(tmp_path: Path, name: str, text: str, says: str) -> None:
    with pytest.raises(UserError, match=says):
        read(script(tmp_path, text, name))
