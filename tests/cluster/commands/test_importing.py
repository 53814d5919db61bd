"""`squelch import`: a recipe that loads, with the values of the other trainer, or exit code 2."""

import re
import runpy
from pathlib import Path
from typing import Any

import pytest

from squelch.cluster.cli import main
from squelch.cluster.config import load, read_recipe
from squelch.cluster.setting_keys import flat

PRIME_RL = """
max_steps = 40
seq_len = 4096
[deployment]
num_train_gpus = 2
num_infer_gpus = 6
[model]
name = "Qwen/Qwen3-0.6B"
[wandb]
project = "reverse"
name = "reverse text"
[orchestrator]
batch_size = 512
group_size = 16
[orchestrator.train.sampling]
max_completion_tokens = 128
repetition_penalty = 1.1
[[orchestrator.train.env]]
taskset = { id = "reverse-text" }
[trainer.optim]
lr = 3e-6
[trainer.model.ac]
"""
OPENRLHF = """python3 -m openrlhf.cli.train_ppo_ray --pretrain Qwen/Qwen2.5-7B-Instruct --remote_rm_url math_reward.py
 --prompt_data train.jsonl --input_key question --label_key answer --rollout_batch_size 128 --n_samples_per_prompt 8
 --train_batch_size 256 --actor_learning_rate 5e-7 --prompt_max_len 1024 --generate_max_len 3072 --temperature 0.9
 --advantage_estimator group_norm --init_kl_coef 1e-3 --use_kl_loss --kl_estimator k3 --eps_clip_low_high 0.2 0.27
 --actor_num_nodes 1 --actor_num_gpus_per_node 4 --vllm_num_engines 4 --normalize_reward --gradient_checkpointing
"""


def imported(folder: Path, name: str, text: str, *more: str) -> tuple[int, dict[str, Any]]:
    """The exit code, and the recipe's settings by dotted key; none if no file was written."""
    (folder / name).write_text(text.replace("\n ", " \\\n "))
    out = folder / "mine.yaml"
    code = main(["import", str(folder / name), *more, "--out", str(out)])
    return code, flat(read_recipe(str(out))) if out.exists() else {}


def verl(**changes: str) -> str:
    """A script of verl with the usual overrides."""
    given = {
        "algorithm.adv_estimator": "grpo",
        "data.train_files": "train.parquet",
        "data.train_batch_size": "512",
        "data.max_prompt_length": "1024",
        "data.max_response_length": "2048",
        "actor_rollout_ref.model.path": "Qwen/Qwen2.5-7B-Instruct",
        "actor_rollout_ref.actor.optim.lr": "1e-6",
        "actor_rollout_ref.actor.ppo_mini_batch_size": "128",
        "actor_rollout_ref.actor.use_kl_loss": "True",
        "actor_rollout_ref.actor.kl_loss_coef": "0.01",
        "actor_rollout_ref.rollout.tensor_model_parallel_size": "1",
        "actor_rollout_ref.rollout.n": "8",
        "trainer.n_gpus_per_node": "8",
        "trainer.nnodes": "1",
        "trainer.total_training_steps": "100",
        "trainer.test_freq": "5",
        **changes,
    }
    return "python3 -m verl.trainer.main_ppo \\\n" + " \\\n".join(f"  {key}={value}" for key, value in given.items())


def test_a_script_of_verl_becomes_a_recipe_for_its_gpus(tmp_path: Path, capsys) -> None:
    code, found = imported(tmp_path, "run.sh", verl())
    assert code == 0
    wanted = {
        "environment.name": "Prompts",
        "environment.options.data": "train.parquet",
        "model.path": "Qwen/Qwen2.5-7B-Instruct",
        "loop.prompts": 512,
        "loop.steps": 100,
        "sampling.group_size": 8,
        "sampling.max_tokens_per_turn": 2048,
        "rollout.max_model_len": 3072,
        "learner.minibatches": 4,
        "learner.optimizer.learning_rate": 1e-6,
        "learner.objective.advantage": "grpo",
        "learner.objective.aggregation": "token_mean",
        "learner.objective.clip_high": 0.2,
        "learner.objective.dual_clip": 3.0,
        "learner.objective.anchor": "recomputed",
        "learner.objective.kl.coefficient": 0.01,
        "learner.objective.kl.estimator": "k3",
        "learner.objective.kl.place": "loss",
        "filter.rule": "none",
        "learner.ranks": 4,
        "rollout.count": 4,
        "rollout.num_gpus": 0.7,
        "scorer.num_gpus": 0.3,
        "validation.every": 5,
    }
    assert {key: found.get(key) for key in wanted} == wanted
    said = capsys.readouterr().out
    assert "learner.minibatches=4  <-  actor_rollout_ref.actor.ppo_mini_batch_size=128" in said
    assert (
        "learner.optimizer.weight_decay=0.01  <-  actor_rollout_ref.actor.optim.weight_decay=0.01 (its default)" in said
    )
    assert "learner.minibatches: Their size, in prompts, there; their number here." in said
    assert "no function is named; verl chooses a built-in one" in said and "next: squelch plan " in said
    assert said.endswith("mine.yaml environment.options.reward=FILE.py:FUNCTION\n"), "it would be refused without"
    assert (tmp_path / "mine.yaml").read_text().startswith("# Imported from verl's ")


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"actor_rollout_ref.actor.loss_agg_mode": "seq-mean-token-sum"}, {"learner.objective.normaliser_tokens": 1}),
        ({"actor_rollout_ref.actor.policy_loss.loss_mode": "gspo"}, {"learner.objective.ratio": "sequence"}),
        ({"algorithm.norm_adv_by_std_in_grpo": "False"}, {"learner.objective.advantage": "grpo_no_std"}),
        ({"algorithm.adv_estimator": "gae"}, {"learner.algorithm": "ppo", "learner.critic.clip": 0.5}),
        (
            {"algorithm.filter_groups.enable": "True"},
            {"filter.rule": "top_p", "filter.rho": 1.0, "filter.refill": True},
        ),
        ({"actor_rollout_ref.model.lora_rank": "32"}, {"learner.lora.rank": 32, "learner.lora.alpha": 16}),
        ({"trainer.n_gpus_per_node": "1"}, {"learner.num_gpus": 0.5, "rollout.num_gpus": 0.3}),
        ({"trainer.nnodes": "2"}, {"learner.ranks": 8, "rollout.count": 8}),
        (
            {"trainer.logger": "[console,wandb]"},
            {"recorder.loggers": ["wandb"]},
        ),
    ],
)
def test_a_key_of_verl_becomes_its_setting(tmp_path: Path, changes: dict[str, str], wanted: dict[str, Any]) -> None:
    code, found = imported(tmp_path, "run.sh", verl(**changes))
    assert code == 0 and {key: found.get(key) for key in wanted} == wanted


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"algorithm.adv_estimator": "rloo"}, "algorithm.adv_estimator='rloo': Of its values only grpo, gae have"),
        (
            {"actor_rollout_ref.rollout.top_p": "0.9"},
            "actor_rollout_ref.rollout.top_p=0.9: Rollouts sample from the whole",
        ),
        ({"actor_rollout_ref.actor.ppo_epochs": "2"}, "ppo_epochs=2: Every trajectory is trained on once."),
        ({"a.new.key": "3"}, "a.new.key: no key of verl"),
        (
            {"trainer.total_training_steps": "null", "trainer.total_epochs": "15"},
            "trainer.total_epochs: loop.steps: give epochs * rows / loop.prompts (15 there)",
        ),
    ],
)
def test_what_has_no_counterpart_and_what_is_unknown_is_said(tmp_path: Path, capsys, changes, says: str) -> None:
    assert imported(tmp_path, "run.sh", verl(**changes))[0] == 0
    assert says in capsys.readouterr().out
    assert says.partition(":")[0].partition("=")[0] in (tmp_path / "mine.yaml").read_text()


@pytest.mark.parametrize(
    ("key", "setting"),
    [
        ("actor_rollout_ref.rollout.n", "sampling.group_size"),
        ("data.train_batch_size", "loop.prompts"),
        ("actor_rollout_ref.actor.optim.lr", "learner.optimizer.learning_rate"),
        ("actor_rollout_ref.model.path", "model.path"),
        ("data.train_files", "environment.options.data"),
    ],
)
def test_without_a_value_that_a_recipe_needs_the_exit_code_is_2_and_nothing_is_written(
    tmp_path: Path, capsys, key: str, setting: str
) -> None:
    text = verl(**{key: "$(python compute.py)"})
    code, found = imported(tmp_path, "run.sh", text)
    assert code == 2 and found == {}
    said = capsys.readouterr().err
    assert setting in said and "compute.py" in said
    given = {"environment.options.data": "b.parquet", "model.path": "some/model"}.get(setting, "4")
    code, found = imported(tmp_path, "run.sh", text, f"{setting}={given}", "learner.minibatches=1")
    assert code == 0 and str(found[setting]) == given


def test_the_next_command_has_the_number_of_gpus(tmp_path: Path, capsys) -> None:
    assert imported(tmp_path, "run.sh", verl(**{"trainer.nnodes": "2"}))[0] == 0
    assert "mine.yaml --gpus 16 --device-gib GIB; squelch train " in capsys.readouterr().out
    (tmp_path / "mine.yaml").unlink()
    assert imported(tmp_path, "run.sh", verl(**{"trainer.nnodes": "$NODES"}))[0] == 0
    assert "--gpus N --device-gib GIB" in capsys.readouterr().out


def test_what_the_user_gives_is_not_called_unknown_and_decides_what_follows_from_it(tmp_path: Path, capsys) -> None:
    text = verl(
        **{"data.train_files": "$DATA", "trainer.total_training_steps": "null", "actor_rollout_ref.rollout.n": "$N"}
    )
    given = [
        "environment.options.data=own.jsonl",
        "environment.options.reward=mine.py:right",
        "loop.steps=20",
        "sampling.group_size=4",
        "rollout.tensor_parallel_size=2",
    ]
    code, found = imported(tmp_path, "run.sh", text, *given)
    recipe, said = (tmp_path / "mine.yaml").read_text(), capsys.readouterr().out
    assert code == 0 and "# unknown" not in recipe and "\nunknown\n" not in said
    assert found["environment.options.data"] == "own.jsonl" and "  loop.steps=20  <-  as given" in said
    assert (found["rollout.num_gpus"], found["learner.ranks"], found["rollout.count"]) == (2, 5, 1)


def test_files_of_validation_are_those_of_the_configuration_whatever_their_names(tmp_path: Path, capsys) -> None:
    code, found = imported(tmp_path, "run.sh", verl(**{"data.val_files": "test.parquet"}))
    said = capsys.readouterr().out
    assert code == 0 and found["environment.options.validation_data"] == "test.parquet"
    assert "environment.options.data='train.parquet'  <-  data.train_files='train.parquet'" in said
    assert "environment.options.validation_data='test.parquet'  <-  data.val_files='test.parquet'" in said
    (tmp_path / "mine.yaml").unlink()
    code, found = imported(tmp_path, "run.sh", verl(**{"data.val_files": "train.parquet"}))
    assert code == 0 and "environment.options.validation_data" not in found
    assert (
        "data.val_files='train.parquet': It is trained on; every eighth prompt is held out." in capsys.readouterr().out
    )


def test_every_key_that_became_a_setting_is_printed_as_it_is_spelled(tmp_path: Path, capsys) -> None:
    (tmp_path / "score.py").write_text("def mine(**_): ...\n")
    path = {"custom_reward_function.path": str(tmp_path / "score.py"), "custom_reward_function.name": "mine"}
    assert imported(tmp_path, "run.sh", verl(**path))[0] == 0
    said = capsys.readouterr().out
    assert re.search(r"  environment\.options\.reward=.*  <-  custom_reward_function\.path=", said)
    assert "It calls mine of that file (custom_reward_function.name)." in said
    for setting in ("learner.ranks=4", "rollout.count=4", "rollout.num_gpus=0.7", "scorer.num_gpus=0.3"):
        assert f"  {setting}  <-  trainer.n_gpus_per_node=8" in said


def test_homes_of_paths_are_shown_as_they_are_taken_and_values_of_nothing_are_not_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    text = verl(**{"actor_rollout_ref.model.path": "~/models/a", "reward_model.reward_manager": "null"})
    code, found = imported(tmp_path, "run.sh", text)
    said = capsys.readouterr().out
    assert code == 0 and found["model.path"] == "/home/me/models/a" and "  model.path='/home/me/models/a'  <-  " in said
    assert "reward_manager" not in said


def test_home_and_a_scripts_own_values_are_taken_and_the_recipe_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    text = "MODEL=${MODEL:-Qwen/Qwen2.5-7B}\n" + verl(
        **{"data.train_files": "$HOME/data/train.parquet", "actor_rollout_ref.model.path": "$MODEL"}
    )
    code, found = imported(tmp_path, "run.sh", text)
    assert code == 0 and found["environment.options.data"] == "/home/me/data/train.parquet"
    assert found["model.path"] == "Qwen/Qwen2.5-7B"
    recipe = (tmp_path / "mine.yaml").read_text()
    assert "# chosen: HOME: /home/me, yours as of this import" in recipe
    assert "# chosen: environment: the script's own values for variables that it does not set: MODEL='Qwen/" in recipe


def test_a_reward_function_that_is_not_there_is_named(tmp_path: Path, capsys) -> None:
    assert imported(tmp_path, "run.sh", verl(**{"custom_reward_function.path": "gone/score.py"}))[0] == 0
    assert "custom_reward_function.path: gone/score.py is not there: " in capsys.readouterr().out


def test_a_recipe_without_a_reward_is_refused_for_the_reward_alone(tmp_path: Path, capsys) -> None:
    assert imported(tmp_path, "run.sh", verl(**{"data.train_files": "/nowhere/train.parquet"}))[0] == 0
    assert main(["config", str(tmp_path / "mine.yaml")]) == 2
    said = capsys.readouterr().err
    assert "environment.options.reward: Field required" in said and "if it has moved" not in said


def test_engines_that_leave_no_gpu_for_a_learner_are_named(tmp_path: Path, capsys) -> None:
    code, found = imported(tmp_path, "run.sh", verl(**{"actor_rollout_ref.rollout.tensor_model_parallel_size": "8"}))
    assert code == 0 and "learner.ranks" not in found
    assert "8 GPUs are too few for a learner, a scorer and rollout.tensor_parallel_size=8" in capsys.readouterr().out


def test_a_recipe_is_never_overwritten(tmp_path: Path, capsys) -> None:
    assert imported(tmp_path, "run.sh", verl())[0] == 0
    capsys.readouterr()
    assert imported(tmp_path, "run.sh", verl())[0] == 2
    said = capsys.readouterr()
    assert "exists" in said.err and not said.out, "it is refused first"


def test_verls_reward_function_is_called_with_its_own_arguments(tmp_path: Path) -> None:
    (tmp_path / "score.py").write_text(
        "def mine(data_source, solution_str, ground_truth, extra_info=None):\n"
        "    return {'score': float(solution_str == ground_truth), 'at': extra_info['index']}\n"
    )
    path = {"custom_reward_function.path": str(tmp_path / "score.py"), "custom_reward_function.name": "mine"}
    code, found = imported(tmp_path, "run.sh", verl(**path))
    file, _, name = found["environment.options.reward"].rpartition(":")
    assert code == 0 and name == "reward"
    reward = runpy.run_path(file)[name]
    said = [[{"role": "assistant", "content": text}] for text in ("42", "41")]
    columns = {"data_source": ["m"] * 2, "reward_model": [{"ground_truth": "42"}] * 2, "extra_info": [{"index": 1}] * 2}
    assert reward(prompts=[None] * 2, completions=said, **columns) == [1.0, 0.0]


def test_a_command_line_of_openrlhf_with_old_flags_becomes_a_recipe(tmp_path: Path, capsys) -> None:
    code, found = imported(tmp_path, "run.txt", OPENRLHF)
    assert code == 0
    wanted = {
        "model.path": "Qwen/Qwen2.5-7B-Instruct",
        "environment.options.data": "train.jsonl",
        "environment.options.prompt_column": "question",
        "loop.prompts": 128,
        "sampling.group_size": 8,
        "learner.minibatches": 4,
        "learner.optimizer.learning_rate": 5e-7,
        "learner.optimizer.betas": [0.9, 0.95],
        "rollout.max_model_len": 4096,
        "sampling.max_tokens_per_turn": 3072,
        "sampling.temperature": 0.9,
        "learner.algorithm": "grpo",
        "learner.objective.clip_low": 0.2,
        "learner.objective.clip_high": 0.27,
        "learner.objective.kl.place": "loss",
        "learner.objective.kl.estimator": "k3",
        "learner.activation_checkpointing": True,
        "learner.ranks": 4,
        "rollout.count": 4,
    }
    assert {key: found.get(key) for key in wanted} == wanted
    said = capsys.readouterr().out
    assert "normalize_reward=True: Normalise in the reward function." in said and "lr_scheduler" in said
    assert "_theirs.reward_func(queries, asked, columns.get('answer'" in (tmp_path / "mine_reward.py").read_text()


def test_a_toml_of_prime_rl_becomes_a_recipe_once_its_tasks_are_written(tmp_path: Path, capsys) -> None:
    assert imported(tmp_path, "rl.toml", PRIME_RL) == (2, {})
    said = capsys.readouterr()
    assert "verifiers_bridge" in said.err and "reverse-text" in said.err
    assert "repetition_penalty=1.1: Rollouts sample from the whole distribution." in said.out
    given = ["environment.options.data=tasks.jsonl", "environment.options.python=python3"]
    code, found = imported(tmp_path, "rl.toml", PRIME_RL, *given)
    wanted = {
        "name": "reverse-text",
        "environment.name": "Agent",
        "loop.prompts": 32,
        "sampling.group_size": 16,
        "sampling.max_tokens_per_turn": 128,
        "loop.max_staleness": 1,
        "loop.steps": 40,
        "rollout.max_model_len": 4096,
        "learner.optimizer.learning_rate": 3e-6,
        "learner.activation_checkpointing": True,
        "learner.ranks": 2,
        "rollout.count": 6,
        "recorder.wandb_project": "reverse",
    }
    assert code == 0 and {key: found.get(key) for key in wanted} == wanted


def test_an_imported_recipe_is_planned(tmp_path: Path, capsys) -> None:
    (tmp_path / "train.jsonl").write_text('{"prompt": "a"}\n{"prompt": "b"}\n')
    (tmp_path / "rewards.py").write_text("def right(completions, **_):\n    return [0.0] * len(completions)\n")
    files = [
        f"environment.options.data={tmp_path}/train.jsonl",
        f"environment.options.reward={tmp_path}/rewards.py:right",
    ]
    assert imported(tmp_path, "run.sh", verl(), *files)[0] == 0
    recipe = str(tmp_path / "mine.yaml")
    assert load(recipe).sampling.group_size == 8
    capsys.readouterr()
    assert main(["plan", recipe, "--gpus", "8", "--device-gib", "80"]) == 0
    assert "set learner.ranks=" in capsys.readouterr().out
