"""`squelch monitor`: each step is scored under the weights that sampled it, and exported; what cannot be is named."""

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from prometheus_client.parser import text_string_to_metric_families

from benchmarks.common import random_qwen2, word
from squelch.cluster.cli import main, parse
from squelch.kit.base.errors import UserError
from squelch.kit.commands import monitor
from squelch.kit.commands.following import Follower, Ready
from squelch.kit.metrics.exporter import Recorder
from squelch.kit.process.signals import Interrupted
from squelch.kit.readers.format import Format
from squelch.kit.readers.formats import FORMATS, format_of
from squelch.kit.readers.weights import WeightsRule
from tests.kit.readers import trainer_files

MARKERS = ("--markers", word(5), word(6))
PROMPTS, SAMPLES = 6, 2


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Four models of a few parameters with one tokenizer."""
    folder = tmp_path_factory.mktemp("models")
    for seed in range(4):
        random_qwen2(folder / str(seed), seed=seed, vocabulary=64, width=16, layers=1, hidden=16, heads=2)
    return [folder / str(seed) for seed in range(4)]


class Trainer:
    """Writes what TRL writes: the samples of step N before checkpoint-N."""

    def __init__(self, out: Path, models: list[Path]) -> None:
        self.out, self.models = out, models
        self.samples = out / "completions"
        self.samples.mkdir(parents=True)

    def sample(self, step: int) -> Path:
        rng = np.random.default_rng(step)

        def words(size: int) -> str:
            return " ".join(word(i) for i in rng.integers(7, 64, size))

        prompts = [words(6) + " " for _ in range(PROMPTS)]
        rows = [
            {
                "step": step,
                "prompt": prompt,
                "completion": f"{word(5)} {words(5)} {word(6)} {words(2)}",
                "advantage": 0.0,
                "right": float(step),
            }
            for prompt in prompts
            for _ in range(SAMPLES)
        ]
        path = self.samples / f"completions_{step:05d}.parquet"
        pq.write_table(pa.Table.from_pylist(rows), path)
        return path

    def save(self, number: int) -> Path:
        return Path(shutil.copytree(self.models[number], self.out / f"checkpoint-{number}"))

    def arguments(self, *more: str) -> list[str]:
        return ["monitor", str(self.samples), "--model", str(self.out), *MARKERS, *more]


@pytest.fixture
def trainer(tmp_path: Path, models: list[Path]) -> Trainer:
    return Trainer(tmp_path / "out", models)


def events(capsys: pytest.CaptureFixture[str], *argv: str) -> list[dict]:
    assert main([*argv, "--json"]) == 0, capsys.readouterr().err
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


def of_kind(found: list[dict], kind: str) -> list[dict]:
    return [one for one in found if one["event"] == kind]


def session_of(trainer: Trainer, *more: str) -> monitor.Session:
    return monitor.Session(parse(trainer.arguments(*more)))


def test_each_step_is_scored_under_the_weights_that_sampled_it(trainer: Trainer, models: list[Path], capsys) -> None:
    files = {step: trainer.sample(step) for step in (1, 2, 3)}
    trainer.save(1), trainer.save(2)
    trainer.sample(4)
    told = events(capsys, *trainer.arguments("--once", "--initial", str(models[0])))
    assert "checkpoint-3, whose weights sampled step 4" in told[-1]["text"]
    found = of_kind(told, "scored")
    assert [(one["step"], one["checkpoint"]) for one in found] == [
        (1, "the initial model"),
        (2, "checkpoint-1"),
        (3, "checkpoint-2"),
    ]
    for one in found:
        model = str(models[one["step"] - 1])
        assert main(["score", str(files[one["step"]]), "--model", model, *MARKERS, "--json"]) == 0
        score = json.loads(capsys.readouterr().out)
        for key in ("mi_est", "mi_seq_est", "retrieval_accuracy"):
            assert one["metrics"][f"first_turn/{key}"] == pytest.approx(score[key], abs=1e-6), (one["step"], key)
        assert one["metrics"][f"first_turn/regime/{score['regime']}"] == 1
        assert one["metrics"]["reward_mean"] == one["step"]


def test_a_scored_steps_line_shows_d_as_a_share_too_where_it_is_known(trainer: Trainer) -> None:
    ready = Ready(3, (), "checkpoint-2", trainer.out)
    metrics = {"first_turn/num_prompts": 8.0, "first_turn/num_excluded": 0.0, "seconds/score": 2.0}
    metrics |= {"probe/link/dependence": 0.5, "probe/link/dependence_share": 0.25}
    bounds = {f"{key}_{end}": metrics[key] for key in list(metrics) if "/link/" in key for end in ("low", "high")}
    line = monitor.scored_text(ready, metrics | bounds)
    assert "; D 0.50 [0.50, 0.50] nats per answer; D / surprise 0.25 [0.25, 0.25]; 8 prompts; " in line
    assert "surprise" not in monitor.scored_text(ready, metrics | {"probe/link/dependence_share": math.nan})


def test_what_cannot_be_scored_is_skipped_with_its_reason(trainer: Trainer, capsys) -> None:
    for step in (1, 2, 4):
        trainer.sample(step)
    trainer.sample(3).write_bytes(b"no table")
    broken = trainer.save(1)
    trainer.save(2), trainer.save(3)
    (broken / "config.json").write_text("{}")
    for path in trainer.out.glob("*/*"):
        os.utime(path, (1e9, 1e9))
    found = events(capsys, *trainer.arguments("--once"))
    reasons = {step: one["reason"] for one in of_kind(found, "skipped") for step in one["steps"]}
    assert "--initial" in reasons[1] and "checkpoint-1" in reasons[2] and "completions_00003" in reasons[3]
    assert [one["step"] for one in of_kind(found, "scored")] == [4]


def test_a_monitor_that_is_started_again_goes_on_with_its_averages(trainer: Trainer, models, capsys) -> None:
    trainer.sample(1), trainer.sample(2), trainer.save(1)
    arguments = trainer.arguments("--once", "--initial", str(models[0]))
    events(capsys, *arguments)
    trainer.sample(3), trainer.save(2)
    second = events(capsys, *arguments)
    (last,) = of_kind(second, "scored")
    assert second[0]["event"] == "continued" and last["step"] == 3
    whole = of_kind(events(capsys, *arguments, "--state", str(trainer.out / "anew.json")), "scored")
    same = {key: value for key, value in whole[-1]["metrics"].items() if "seconds" not in key}
    assert {key: last["metrics"][key] for key in same} == same and len(whole) == 3
    assert main([*arguments, "--temperature", "0.5"]) == 2
    assert "other settings" in capsys.readouterr().err


def test_a_live_run_is_at_the_endpoint_under_the_names_of_train(trainer: Trainer) -> None:
    session = session_of(trainer, "--port", "0", "--poll", "0.05", "--idle", "60")
    ended = threading.Event()

    def follow() -> None:
        with session.serving():
            session.follow()
        ended.set()

    thread = threading.Thread(target=follow, daemon=True)
    thread.start()
    trainer.save(1), trainer.sample(2)
    series: dict[str, float] = {}
    deadline = time.monotonic() + 180
    while series.get("squelch_scorer_step") != 2 and time.monotonic() < deadline:
        time.sleep(0.1)
        if session.recorder is not None:
            series = scraped(session.recorder.url)
    session.args.idle = 0.0
    assert ended.wait(180) and series["squelch_step"] == 2 and series["squelch_scorer_step"] == 2
    assert series["squelch_reward_mean{all}"] == 2 and series["squelch_mi_est_nats{first_turn}"] > -10
    assert sorted(next(name for name in series if "run_info" in name)[:-1].partition("{")[2].split(",")) == [
        "completions",
        "files",
        "none",
    ]


@pytest.mark.parametrize(("error", "ended"), [(None, 1), (Interrupted(15), 1), (RuntimeError("a bug"), 0)], ids=str)
def test_the_endpoint_says_whether_the_command_ended_without_an_error(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch, error: BaseException | None, ended: float
) -> None:
    session, last, close = session_of(trainer, "--port", "0"), list[float](), Recorder.close

    def read_and_close(recorder: Recorder) -> None:
        last.append(scraped(recorder.url)["squelch_run_ended"])
        close(recorder)

    monkeypatch.setattr(Recorder, "close", read_and_close)
    with suppress(Interrupted, RuntimeError), session.serving():
        if error is not None:
            raise error
    assert last == [ended]


def scraped(url: str) -> dict[str, float]:
    """The series at `/metrics` by name and label values."""
    with urllib.request.urlopen(url, timeout=180) as answer:
        text = answer.read().decode()
    return {
        sample.name + (f"{{{','.join(sample.labels.values())}}}" if sample.labels else ""): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_sigterm_ends_it_at_once(trainer: Trainer) -> None:
    command = [sys.executable, "-m", "squelch.cluster.cli", *trainer.arguments("--port", "0", "--poll", "60")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(2)]
    process.send_signal(signal.SIGTERM)
    assert process.wait(180) == 128 + signal.SIGTERM, lines
    assert "metrics at http://127.0.0.1:" in lines[0] and "waiting for the first file" in lines[1]


def test_one_model_in_the_place_of_checkpoints_is_refused(trainer: Trainer, models: list[Path], capsys) -> None:
    assert main(["monitor", str(trainer.samples), "--model", str(models[0])]) == 2
    assert "--initial" in capsys.readouterr().err


@pytest.mark.parametrize("once", [True, False])
def test_a_step_whose_checkpoint_is_still_being_written_is_scored_once_that_is_whole(
    trainer: Trainer, capsys: pytest.CaptureFixture[str], once: bool
) -> None:
    """Weights and tokenizer come one after the other, and a look may fall between them."""
    checkpoint = trainer.save(1)
    whole = (checkpoint / "tokenizer.json").read_bytes()
    (checkpoint / "tokenizer.json").unlink()
    trainer.sample(2)
    session = session_of(trainer, *(["--once"] if once else []))
    session.follower.settled = True  # no look comes before
    ready = session.follower.look(0.0).ready
    assert ready is not None and not session._score(ready)
    assert "waiting for the end of step 2" in capsys.readouterr().out and not session.path.exists()
    (checkpoint / "tokenizer.json").write_bytes(whole)
    ready = session.follower.look(1.0).ready
    assert ready is not None and session._score(ready) and session.follower.last == 2


def test_training_that_starts_again_in_the_folder_is_said_once(trainer: Trainer, capsys) -> None:
    for step in (2, 3):
        trainer.sample(step), trainer.save(step - 1)
    told = [one["event"] for one in events(capsys, *trainer.arguments("--once")) if one["event"] != "finding"]
    assert told == ["scored", "scored", "waiting"]
    assert not of_kind(events(capsys, *trainer.arguments("--once")), "again")
    later = time.time() + 10
    os.utime(trainer.sample(2), (later, later))
    (again,) = of_kind(events(capsys, *trainer.arguments("--once")), "again")
    assert "completions_00002.parquet" in again["text"] and "steps up to 3 are not scored again" in again["text"]
    session = session_of(trainer)
    capsys.readouterr()
    for _ in range(2):
        session._tell_again(session.follower.look(0.0))
    assert capsys.readouterr().out.count("started again") == 1


def test_a_finding_is_told_as_it_begins_and_not_again_by_a_monitor_that_goes_on(trainer: Trainer, capsys) -> None:
    trainer.sample(2), trainer.save(1)
    (first,) = of_kind(events(capsys, *trainer.arguments("--once")), "finding")
    found = first["finding"]
    assert (first["change"], first["step"], found["since"]) == ("began", 2, 2)
    assert first["text"] == found["says"] and found["causes"] and found["page"].startswith("docs/")
    trainer.sample(3), trainer.save(2)
    later = of_kind(events(capsys, *trainer.arguments("--once")), "finding")
    assert found["name"] not in [one["finding"]["name"] for one in later if one["change"] == "began"]
    trainer.sample(4), trainer.save(3)
    assert main(trainer.arguments("--once")) == 0
    assert "step 4 under" in capsys.readouterr().out


# -- following, without a model ---------------------------------------------------------------------------------------


def test_a_file_or_a_checkpoint_that_still_grows_is_waited_for(trainer: Trainer) -> None:
    follower = Follower(trainer.samples, trainer.out)
    assert "first file" in str(follower.look(0.0).waiting)
    path = trainer.sample(2)
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    assert follower.look(1.0).ready is None and follower.look(2.0).ready is None
    path.write_bytes(whole)
    assert "still being written" in str(follower.look(3.0).waiting)
    assert "checkpoint-1" in str(follower.look(4.0).waiting)
    checkpoint = trainer.save(1)
    assert "checkpoint-1, which is still being written" in str(follower.look(5.0).waiting)
    with (checkpoint / "model.safetensors").open("ab") as file:
        file.write(b"more")
    assert follower.look(6.0).ready is None
    ready = follower.look(7.0).ready
    assert ready is not None and (ready.step, ready.model) == (2, checkpoint)


def test_conversations_beside_a_trainers_samples_do_not_end_the_following(trainer: Trainer) -> None:
    chat = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
    trainer_files.jsonl(trainer.samples / "0.jsonl", [chat])
    follower = Follower(trainer.samples, trainer.out)
    assert "first file" in str(follower.look(0.0).waiting)
    with pytest.raises(UserError, match="the format chat does not say which checkpoint sampled a step"):
        Follower(trainer.samples, trainer.out, settled=True).look(0.0)
    trainer.sample(2), trainer.save(1)
    for now in (1.0, 2.0, 3.0):
        look = follower.look(now)
    assert look.ready is not None and look.ready.step == 2


def test_a_checkpoint_that_does_not_come_is_waited_for_so_long_and_all_that_waited_are_skipped_together(
    trainer: Trainer,
) -> None:
    follower = Follower(trainer.samples, trainer.out, wait_s=100.0)
    trainer.sample(2), trainer.sample(3)
    follower.look(0.0)
    look = follower.look(40.0)
    assert look.left_s == 60.0 and "checkpoint-1, whose weights sampled step 2" in str(look.waiting)
    look = follower.look(101.0)
    assert [one.step for one in look.skipped] == [2, 3] and "100 s" not in str(look.waiting)
    assert "1 min 40 s (--wait)" in look.skipped[0].reason and look.waiting == "the next step"


def test_a_pruned_checkpoint_is_not_waited_for(trainer: Trainer) -> None:
    follower = Follower(trainer.samples, trainer.out, settled=True)
    trainer.sample(2), trainer.sample(4), trainer.save(3)
    look = follower.look(0.0)
    assert [one.step for one in look.skipped] == [2] and "checkpoint-3 is" in look.skipped[0].reason
    assert look.ready is not None and look.ready.step == 4


def test_only_every_nth_step_is_scored(trainer: Trainer) -> None:
    follower = Follower(trainer.samples, trainer.out, initial=trainer.models[0], every=3, settled=True)
    for step in (1, 2, 3, 4):
        trainer.sample(step)
    trainer.save(3)
    first = follower.look(0.0).ready
    assert first is not None and first.step == 1
    follower.decided(1, scored=True)
    second = follower.look(0.0)
    assert second.ready is not None and second.ready.step == 4 and not second.skipped


def test_weights_of_which_a_shard_is_missing_are_waited_for(trainer: Trainer) -> None:
    trainer.sample(2)
    checkpoint = trainer.save(1)
    (checkpoint / "model.safetensors").rename(checkpoint / "model-00001-of-00002.safetensors")
    follower = Follower(trainer.samples, trainer.out, settled=True)
    assert "no whole model" in str(follower.look(0.0).waiting)
    shutil.copy(checkpoint / "model-00001-of-00002.safetensors", checkpoint / "model-00002-of-00002.safetensors")
    assert follower.look(1.0).ready is not None


@pytest.mark.parametrize("huge", [10**17, 10**6], ids=["no-step", "far-step"])
def test_one_record_with_a_huge_step_does_not_end_the_following(trainer: Trainer, huge: int) -> None:
    trainer.sample(huge), trainer.sample(2), trainer.save(1)
    follower = Follower(trainer.samples, trainer.out, wait_s=100.0)
    for now in (0.0, 1.0, 2.0):
        look = follower.look(now)
    assert look.ready is not None and look.ready.step == 2
    follower.decided(2, scored=True)
    follower.look(3.0), follower.look(200.0)
    assert follower.skipped == {huge}
    trainer.sample(3), trainer.save(2)
    for now in (201.0, 202.0, 203.0):
        look = follower.look(now)
    assert look.ready is not None and (look.ready.step, look.newest, look.again) == (3, 3, None)


def test_rows_of_no_step_and_late_ones_are_no_new_training_and_new_earlier_steps_are(
    tmp_path: Path, models: list[Path]
) -> None:
    def rows(step: int) -> str:
        return (trainer_files.prime_rl(tmp_path / "other", step) / "00000.jsonl").read_text()

    file = trainer_files.prime_rl(tmp_path / "samples", 7) / "00000.jsonl"
    shutil.copytree(models[0], tmp_path / "saved" / "step_7")
    follower = Follower(tmp_path / "samples", tmp_path / "saved", settled=True)
    ready = follower.look(0.0).ready
    assert ready is not None and ready.step == 7
    follower.decided(7, scored=True)
    for step, again in ((7, None), (3, file)):
        file.write_text(file.read_text() + rows(step))
        os.utime(file, (time.time() + 10, time.time() + 10))
        assert follower.look(1.0).again == again, step


@pytest.mark.parametrize(
    ("late", "run", "again"),
    [
        (list(range(30)), "r", True),  # from the start
        (list(range(12, 30)), "r", True),  # from a checkpoint
        (list(range(25, 30)), "other", True),
        ([29, 20, 29, 14, 29], "r", False),  # rows that came late
        ([30], "other", False),  # the next step, by a run that goes on where the first one ended
    ],
)
@pytest.mark.parametrize("pending", [False, True])
def test_a_training_that_starts_again_in_a_stream_that_holds_its_steps_is_noticed(
    tmp_path: Path, models: list[Path], late: list[int], run: str, again: bool, pending: bool
) -> None:
    def rows(steps: list[int], run: str) -> str:
        policies = ({"type": "train", "step": step, "policy": {"start": step, "end": step}} for step in steps)
        found = [trainer_files.episode(*trainer_files.SAMPLES[0], type="train", id=run, work=one) for one in policies]
        return "".join(json.dumps(one) + "\n" for one in found)

    file = tmp_path / "samples" / "00000.jsonl"
    file.parent.mkdir()
    file.write_text(rows(list(range(30)), "r"))
    for step in range(29 if pending else 30):
        shutil.copytree(models[0], tmp_path / "saved" / f"step_{step}")
    follower = Follower(tmp_path / "samples", tmp_path / "saved", settled=True)
    while (ready := follower.look(1.0).ready) is not None:
        follower.decided(ready.step, scored=True)
    assert follower.last == (28 if pending else 29) and follower.look(2.0).again is None
    file.write_text(file.read_text() + rows(late, run))
    os.utime(file, (time.time() + 10, time.time() + 10))
    assert follower.look(3.0).again == (file if again else None)
    if pending:
        follower.decided(29, scored=False)
        os.utime(file, (time.time() + 20, time.time() + 20))
        assert follower.look(4.0).again == (file if again else None), "whatever is decided meanwhile"


def test_a_record_with_a_huge_step_does_not_make_a_growing_file_whole(tmp_path: Path) -> None:
    place = trainer_files.prime_rl(tmp_path / "samples", 10**17)
    wrong = (place / "00000.jsonl").read_text()
    trainer_files.prime_rl(tmp_path / "samples", 4)
    file = place / "00000.jsonl"
    rows = file.read_text()
    file.write_text(rows + wrong)
    (tmp_path / "saved").mkdir()
    follower = Follower(tmp_path / "samples", tmp_path / "saved")
    assert "step 4: 00000.jsonl is still being written" in str(follower.look(0.0).waiting)
    file.write_text(rows + rows + wrong)
    look = follower.look(1.0)
    assert "step 4: 00000.jsonl is still being written" in str(look.waiting) and look.newest == 4


def test_a_look_at_thousands_of_files_reads_each_and_lists_the_checkpoints_once(
    trainer: Trainer, monkeypatch: pytest.MonkeyPatch
) -> None:
    count, reads, lists = 4000, Counter[Path](), 0

    def read(path: Path) -> Format:
        reads[path] += 1
        return format_of(path)

    def listed(rule: WeightsRule, folder: Path) -> dict[int, Path]:
        nonlocal lists
        lists += 1
        return all_of(rule, folder)

    all_of = WeightsRule.checkpoints
    monkeypatch.setattr("squelch.kit.commands.following.format_of", read)
    monkeypatch.setattr(WeightsRule, "checkpoints", listed)
    for number in range(count):
        (trainer.samples / f"{number}.jsonl").write_text('{"other": 1}\n')
    follower = Follower(trainer.samples, trainer.out)
    follower.look(0.0), follower.look(1.0)
    assert set(reads.values()) == {1} and len(reads) == count
    for number in range(count):
        (trainer.samples / f"{number}.jsonl").write_text('{"input": "", "output": "", "score": 0, "step": 1}\n')
    (trainer.out / f"global_step_{count}").mkdir()
    follower.look(2.0)
    look = follower.look(3.0)
    assert len(look.skipped) == count and lists == 1 and sum(reads.values()) == count + 1


@pytest.mark.parametrize("name", ["trl", "verl", "nemo_rl", "areal", "slime", "prime_rl"])
def test_the_samples_of_every_trainer_are_followed_to_the_checkpoint_that_sampled_them(
    tmp_path: Path, models: list[Path], name: str
) -> None:
    getattr(trainer_files, name)(tmp_path / "samples")
    found = FORMATS["verifiers" if name == "prime_rl" else name]
    assert found.weights is not None
    number = found.weights.sampled_by(100)
    shutil.copytree(models[0], tmp_path / "saved" / found.weights.folder.format(number) / "huggingface")
    look = Follower(tmp_path / "samples", tmp_path / "saved", settled=True).look(0.0)
    assert look.ready is not None, look
    assert (look.ready.step, look.ready.checkpoint) == (100, found.weights.name(number))
    assert look.ready.model.name == "huggingface"
