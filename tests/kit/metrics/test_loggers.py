"""TensorBoard and W&B show the metrics of the registry, and a resumed run continues them without a step twice."""

import json
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from squelch.cluster.cli import main
from squelch.cluster.metrics import REGISTRY
from squelch.kit.metrics import wandb_log
from squelch.kit.metrics.exporter import Recorder
from squelch.kit.metrics.loggers import Loggers, open_loggers, require_packages
from squelch.kit.metrics.settings import RecorderConfig


def metrics(step: int) -> dict[str, float | None]:
    return {"kept_mass": step / 10, "success": None, "first_turn/mi_est": float("nan"), "time": 5.0}


def opened(folder: Path, clock: int, *loggers: str) -> Loggers:
    config = RecorderConfig(port=0, loggers=loggers, wandb_mode="offline", logger_timeout_s=30)
    exporter = Recorder(config, REGISTRY)
    return Loggers(exporter, open_loggers(config, REGISTRY, folder, "run", {"seed": 3}, clock))


def log(folder: Path, clock: int, steps: range, *loggers: str) -> None:
    """One process of a run: it continues after `clock` and records these steps."""
    with opened(folder, clock, *loggers) as sinks:
        for step in steps:
            sinks.step(step, metrics(step))
        sinks.exit_code = 0


def test_a_metric_is_named_by_its_section_and_key_and_left_out_without_a_value() -> None:
    assert REGISTRY.named(metrics(2)) == {"Filter/kept_mass": 0.2, "Progress/time": 5.0}
    with pytest.raises(ValueError, match="did you mean"):
        REGISTRY.named({"kept_mas": 1.0})


def scalars(folder: Path) -> list[tuple[int, float]]:
    read = EventAccumulator(str(folder / "tensorboard"))
    read.Reload()
    assert read.Tags()["scalars"] == ["Filter/kept_mass", "Progress/time"]
    assert read.SummaryMetadata("Filter/kept_mass").summary_description == REGISTRY.spec("squelch_kept_mass_ratio").help
    return [(event.step, round(event.value, 6)) for event in read.Scalars("Filter/kept_mass")]


def test_tensorboard_reads_a_resumed_run_as_one_without_a_step_twice(tmp_path: Path) -> None:
    log(tmp_path, -1, range(5), "tensorboard")
    assert scalars(tmp_path) == [(step, step / 10) for step in range(5)]
    log(tmp_path, 2, range(3, 7), "tensorboard")
    assert scalars(tmp_path) == [(step, step / 10) for step in range(7)]


def test_a_killed_process_leaves_every_step_that_it_recorded(tmp_path: Path) -> None:
    sinks = opened(tmp_path, -1, "tensorboard")
    for step in range(4):
        sinks.step(step, metrics(step))
    assert [step for step, _ in scalars(tmp_path)] == list(range(4)), "without a close"
    log(tmp_path, 3, range(4, 6), "tensorboard")
    assert [step for step, _ in scalars(tmp_path)] == list(range(6))


def test_a_run_that_begins_again_without_a_checkpoint_replaces_its_steps(tmp_path: Path) -> None:
    log(tmp_path, -1, range(5), "tensorboard")
    log(tmp_path, -1, range(2), "tensorboard")
    assert scalars(tmp_path) == [(0, 0.0), (1, 0.1)]


def records(file: Path) -> Iterator[Any]:
    """The records of a `.wandb` file: LevelDB's log format after a header of 7 bytes, in blocks of 32 KiB."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, part = file.read_bytes(), 7, b""
    while at + 7 <= len(data):
        if (left := 2**15 - at % 2**15) < 7:
            at += left
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        part, at = part + data[at + 7 : at + 7 + length], at + 7 + length
        if kind in (1, 4):  # a whole record, or the last piece of one
            yield Record.FromString(part)
            part = b""


@pytest.mark.slow
def test_wandb_offline_keeps_one_run_over_a_resume_and_no_step_twice(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    import wandb

    try:
        log(tmp_path, -1, range(5), "wandb")
        log(tmp_path, 2, range(3, 7), "wandb")
    finally:
        wandb.teardown()
    assert capfd.readouterr().out == "", "the terminal is the run's"
    files = sorted((tmp_path / "wandb").glob("offline-run-*/*.wandb"))
    found = [record for file in files for record in records(file)]
    runs = {(record.run.run_id, record.run.project) for record in found if record.HasField("run")}
    assert runs == {(json.loads((tmp_path / "wandb" / "run.json").read_text())["id"], "squelch")} and len(files) == 2
    steps = [values(record.history) for record in found if record.HasField("history")]
    assert [(step["_step"], step["Filter/kept_mass"]) for step in steps] == [(s, s / 10) for s in range(7)]


def values(history: Any) -> dict[str, float]:
    return {item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in history.item}


def test_a_damaged_file_of_the_wandb_run_is_named(tmp_path: Path) -> None:
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "run.json").write_text("{")
    with pytest.raises(ValueError, match=r"run\.json is damaged .* remove it"):
        opened(tmp_path, -1, "wandb")


def test_without_credentials_wandb_is_refused_with_what_helps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import wandb

    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(wandb, "login", lambda prompt: False)
    with pytest.raises(ValueError, match=r"nobody is logged in.*wandb_mode=offline"):
        open_loggers(RecorderConfig(loggers=("wandb",)), REGISTRY, tmp_path, "run", {}, -1)
    assert not (tmp_path / "wandb").exists()


def test_wandb_takes_no_settings_from_the_current_folder_or_the_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import wandb

    monkeypatch.chdir(tmp_path)
    (tmp_path / "wandb").mkdir()
    (tmp_path / "wandb" / "settings").write_text("[default]\nbase_url = http://127.0.0.1:9\nproject = stolen\n")
    wandb.teardown()
    try:
        found = wandb.setup().settings
        assert found.settings_workspace == str(tmp_path / "wandb" / "settings")
        assert found.base_url != "http://127.0.0.1:9" and found.project is None
    finally:
        wandb.teardown()


@pytest.mark.parametrize(("logger", "package"), [("tensorboard", "tensorboard"), ("wandb", "wandb")])
def test_a_missing_extra_is_refused_at_the_start_with_the_command_that_installs_it(
    logger: str, package: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Missing:
        def find_spec(self, name: str, *_: object) -> None:
            if name.split(".")[0] == package:
                raise ModuleNotFoundError(f"No module named {name!r}", name=package)

    for name in [name for name in sys.modules if name.split(".")[0] == package]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [Missing(), *sys.meta_path])
    assert main(["train", "frozenlake", f"runs_dir={tmp_path}", f"recorder.loggers=[{logger}]"]) == 2
    error = capsys.readouterr().err
    assert f"recorder.loggers=[{logger}] needs the package {package}" in error
    assert f"pip install 'squelch-rl[{logger}]'" in error and not list(tmp_path.iterdir())


def test_a_logger_of_another_name_is_refused_and_none_needs_no_package() -> None:
    with pytest.raises(ValueError, match="tensorboard"):
        RecorderConfig(loggers=("tensorbord",))
    require_packages(RecorderConfig())


def test_a_second_record_of_the_newest_step_reaches_wandb_and_one_of_an_earlier_process_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Found by a reviewer: a scorer step recorded alone before the last step's record made W&B drop that record."""
    logged: list[tuple[int, dict[str, float]]] = []
    run = SimpleNamespace(id="x", log=lambda metrics, step: logged.append((step, metrics)), finish=lambda code: None)
    monkeypatch.setattr(wandb_log, "_start", lambda *_: run)
    log(tmp_path, -1, range(3), "wandb")
    with opened(tmp_path, 1, "wandb") as sinks:
        sinks.step(2, metrics(2))
        sinks.step(3, {"first_turn/retrieval_accuracy": 0.5})
        sinks.step(3, metrics(3))
        sinks.exit_code = 0
    assert [step for step, _ in logged] == [0, 1, 2, 3, 3]
    assert logged[-1][1]["Filter/kept_mass"] == 0.3 and len(logged[-2][1]) == 1
