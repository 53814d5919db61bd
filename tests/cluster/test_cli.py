import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from squelch.cluster.cli import main, parse
from squelch.cluster.config import dump, load
from tests.learner.checkpoint.hostile import write_older

ROOT = Path(__file__).parents[2]


def test_overrides_may_stand_before_or_behind_flags():
    options = parse(["train", "frozenlake", "loop.steps=2", "--resume", "filter.rho=0.5"])
    assert options.resume and options.overrides == ["loop.steps=2", "filter.rho=0.5"]


@pytest.mark.parametrize("words", [["train", "frozenlake", "--resum"], ["status", "runs/x", "a=b"], ["trian"]])
def test_an_unknown_word_is_an_error_of_usage(words, capsys):
    with pytest.raises(SystemExit) as caught:
        parse(words)
    assert caught.value.code == 2 and "usage" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", "frozenlake", "filter.roh=1"], ["filter.roh", "rho"]),
        (["train", "frozenlak"], ["frozenlake"]),
        (["train", "frozenlake", "model.path=nowhere", "recorder.port=0"], ["nowhere", "config.json"]),
        (["train", "frozenlake", "--address", "[::1]:1", "recorder.port=0"], ["address='[::1]:1'", "ray start"]),
        (["status", "nowhere"], ["nowhere", "config.yaml"]),
        (["watch", "nowhere"], ["nowhere", "config.yaml"]),
        (["eval", "nowhere"], ["nowhere", "config.yaml"]),
        (["submit", "frozenlake"], ["runs_dir", "absolute"]),
        (["tiny", "somewhere", "--env", "FrozenLak"], ["FrozenLake"]),
        (["warmup", "smollm2", "out"], ["--env", "--data", "--recipe"]),
        (["warmup", "tiny", "out", "--env", "FrozenLake"], ["squelch tiny"]),
        (["warmup", "nowhere", "out", "--env", "FrozenLake"], ["nowhere", "GGUF"]),
        (["warmup", "nowhere", ".", "--env", "FrozenLake"], ["exists; give a new folder"]),
        (["warmup", "nowhere", "out", "--env", "FrozenLak"], ["FrozenLake"]),
        (["warmup", "nowhere", "out", "--data", "gone.jsonl"], ["gone.jsonl does not exist"]),
        (["train", "frozenlake", "model.warmup.batch=2"], ["model.path=tiny has a warm-up of its own"]),
        (["filter", "nowhere.npz"], ["nowhere.npz"]),
        (["mi", "nowhere.npz"], ["nowhere.npz"]),
    ],
)
def test_bad_input_ends_in_one_paragraph_and_code_2_and_writes_nothing(words, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("squelch: ") and "Traceback" not in error and "\n\n" not in error.strip()
    assert all(part in error for part in says)
    assert list(tmp_path.iterdir()) == []


def test_a_name_already_taken_and_a_resume_of_nothing_are_refused(capsys, tmp_path):
    words = ["train", "frozenlake", f"runs_dir={tmp_path}", "recorder.port=0", "name=it"]
    assert main([*words, "--resume"]) == 2 and "holds no run" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "it").mkdir()
    (tmp_path / "it" / "metrics.jsonl").write_text("")
    assert main(words) == 2 and "--resume" in capsys.readouterr().err


def test_a_resume_from_a_checkpoint_that_would_run_code_is_refused_by_name(capsys, tmp_path):
    words = [f"runs_dir={tmp_path}", "recorder.port=0", "name=it"]
    older = write_older(tmp_path / "it" / "checkpoints" / "step-2", tmp_path / "ran", {})
    (tmp_path / "it" / "config.yaml").write_text(dump(load("frozenlake", words)))
    assert main(["train", "frozenlake", *words, "--resume"]) == 2
    error = capsys.readouterr().err
    assert f"checkpoint {older} was written by an older Squelch" in error and f"model.path={older / 'hf'}" in error
    assert not (tmp_path / "ran").exists()


def commands(capsys) -> set[str]:
    with pytest.raises(SystemExit):
        parse(["--help"])
    return set(re.findall(r"^    (\w+)(?:  |$)", capsys.readouterr().out, flags=re.MULTILINE))


def test_every_command_explains_itself(capsys):
    for command in commands(capsys):
        with pytest.raises(SystemExit) as caught:
            parse([command, "--help"])
        assert caught.value.code == 0 and len(capsys.readouterr().out) > 100


HEAVY = {"torch", "ray", "vllm", "transformers", "gymnasium", "squelch.envs.base"}


def fast_command(name: str, folder: Path) -> list[str]:
    """The words of a command that has to start at once, and the small file or run that it reads."""
    if name == "filter":
        np.savez(folder / "rewards.npz", rewards=np.array([[0.0, 1.0], [1.0, 1.0]]))
        return ["filter", str(folder / "rewards.npz")]
    if name == "mi":
        np.savez(folder / "m.npz", log_likelihood=np.array([[[-1.0, -3.0]], [[-3.0, -1.0]]]), lengths=np.ones((2, 1)))
        return ["mi", str(folder / "m.npz")]
    (folder / "config.yaml").write_text(dump(load("frozenlake")))
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 1, "time": 1.0, "total_steps": 2, "success": 0.5}) + "\n")
    return ["status", str(folder)]


@pytest.mark.parametrize("name", ["filter", "mi", "status"])
def test_a_fast_command_loads_no_heavy_package(name, tmp_path):
    code = "import sys; from squelch.cluster.cli import main; code = main(sys.argv[1:]); print(code, *sys.modules)"
    words = [sys.executable, "-c", code, *fast_command(name, tmp_path)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    code, *loaded = done.stdout.splitlines()[-1].split(" ")
    assert code == "0" and len(done.stdout.splitlines()) > 1
    assert not HEAVY & set(loaded)


def test_the_driver_of_a_run_and_the_check_of_a_built_tiny_policy_load_neither_torch_nor_transformers():
    modules = "squelch.cluster.commands.train, squelch.cluster.loop.run, squelch.learner.warmup.tiny"
    code = f"import sys; import {modules}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(done.stdout.split())
    assert "ray" in loaded and not loaded & {"torch", "transformers", "vllm"}


def test_doctor_finds_this_machine_well(capsys):
    assert main(["doctor"]) == 0, capsys.readouterr().out
