import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from squelch.cluster import cli
from squelch.cluster.cli import main, parse
from squelch.cluster.config import dump, load
from squelch.kit.base import package
from tests.learner.checkpoint.hostile import write_older

ROOT = Path(__file__).parents[2]


def test_overrides_may_stand_before_or_behind_flags():
    options = parse(["train", "frozenlake", "loop.steps=2", "--resume", "filter.rho=0.5"])
    assert options.resume and options.overrides == ["loop.steps=2", "filter.rho=0.5"]


def test_what_a_command_does_with_its_words_is_not_there_for_the_next():
    parse(["train", "frozenlake"]).overrides.append("loop.steps=2")
    assert parse(["train", "frozenlake"]).overrides == []


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", "frozenlake", "--resum"], "--resum"),
        (["status", "runs/x", "a=b"], "a=b"),
        (["trian"], "there is no command 'trian'. Did you mean 'train'?"),
        ([], "`squelch train frozenlake` is the demo"),
    ],
)
def test_an_unknown_or_missing_word_is_an_error_of_usage(words, says, capsys):
    with pytest.raises(SystemExit) as caught:
        parse(words)
    said = capsys.readouterr().err
    assert caught.value.code == 2 and "usage" in said and says in said


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", "frozenlake", "filter.roh=1"], ["filter.roh", "rho"]),
        (["train", "frozenlak"], ["frozenlake"]),
        (["train", "frozenlake", "model.path=nowhere", "recorder.port=0"], ["nowhere", "config.json"]),
        (["train", "frozenlake", "--address", "[::1]:1", "recorder.port=0"], ["address='[::1]:1'", "ray start"]),
        (["status", "nowhere"], ["nowhere", "config.yaml"]),
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
    (tmp_path / "it" / "metrics.jsonl").write_text('{"step": 1}\n')
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
    done = subprocess.run(words, capture_output=True, text=True, timeout=180, check=True)
    code, *loaded = done.stdout.splitlines()[-1].split(" ")
    assert code == "0" and len(done.stdout.splitlines()) > 1
    assert not HEAVY & set(loaded)


def test_the_driver_of_a_run_and_the_check_of_a_built_tiny_policy_load_neither_torch_nor_transformers():
    modules = "squelch.cluster.commands.train, squelch.cluster.loop.run, squelch.learner.warmup.tiny"
    code = f"import sys; import {modules}; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=180, check=True)
    loaded = set(done.stdout.split())
    assert "ray" in loaded and not loaded & {"torch", "transformers", "vllm"}


def test_doctor_finds_this_machine_well(capsys):
    assert main(["doctor"]) == 0, capsys.readouterr().out


def test_the_version_names_the_commit_of_a_checkout(capsys, monkeypatch):
    with pytest.raises(SystemExit, match=r"^0$"):
        main(["--version"])
    found = re.fullmatch(r"squelch (\S+), commit ([0-9a-f]{7,}(?:-dirty)?)\n", capsys.readouterr().out)
    assert found is not None and (found[1], found[2]) == (package.code_version(), package.commit())
    monkeypatch.setattr(package, "checkout", lambda: None)
    assert package.commit() is None and package.version_text() == package.installed_version()


@pytest.fixture
def three_runs(tmp_path, monkeypatch):
    """A folder in which `runs` holds a run that ended, one of a sweep, and one that cannot be read."""
    monkeypatch.chdir(tmp_path)
    for name in ("mine", "sweep/arm_s0", "damaged"):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "config.yaml").write_text(dump(load("frozenlake")))
    line = {"step": 3, "time": time.time() - 200, "success": 0.25, "total_steps": 60, "no_signal_streak": 2}
    (tmp_path / "runs/mine/metrics.jsonl").write_text(json.dumps(line | {"schema": 1}) + "\n")
    (tmp_path / "runs/damaged/metrics.jsonl").write_text("not JSON\n")
    return tmp_path


def test_status_alone_lists_the_runs_the_newest_first(three_runs, capsys):
    assert main(["status"]) == 0
    header, *rows = [re.split("  +", line) for line in capsys.readouterr().out.splitlines()]
    assert header == ["run", "state", "step", "success", "last step", "alarms"]
    assert rows[0] == ["mine", "running", "3/60", "0.250", "3 min 20 s ago", "no signal for 2 steps"]
    assert {row[0]: row[1] for row in rows[1:]} == {"damaged": "unreadable", "sweep/arm_s0": "starting"}
    assert main(["status", str(three_runs / "runs" / "sweep"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["arm_s0"]["state"] == "starting"
    os.chdir(three_runs / "runs")
    assert main(["status"]) == 2 and "`squelch train frozenlake` makes one" in capsys.readouterr().err


def test_a_run_may_be_given_by_its_name_and_a_path_wins(three_runs, capsys):
    assert main(["status", "mine"]) == 0 and "mine: running, step 3/60" in capsys.readouterr().out
    assert main(["status", "sweep/arm_s0"]) == 0 and "arm_s0: starting" in capsys.readouterr().out
    for command in ("eval", "gradients", "inspect", "report", "trace", "watch"):
        options = cli.parse([command, "mine"])
        assert "runs/mine" in (str(vars(options).get("run_dir")), *vars(options).get("runs", ()))
    assert main(["trace", "mien"]) == 2 and "mien holds no run" in (said := capsys.readouterr().err)
    assert "Did you mean 'mine'?" in said
    (three_runs / "mine").mkdir()
    assert main(["status", "mine"]) == 2 and "runs/mine" not in capsys.readouterr().err
