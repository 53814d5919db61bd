"""Squelch and TRL on one GPU: the work is the same, both are loaded before one works, and what fails is recorded."""

import json
import math
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import measure as gpu
from benchmarks.gpu.common import Setting
from benchmarks.gpu.parts import PARTS, WHOLE_RUN
from benchmarks.peer import work as peer_work
from benchmarks.peer.on_gpu import measure, reward, squelch_side, trl_side
from benchmarks.peer.on_gpu import work as gpu_work
from benchmarks.peer.on_gpu.files import prepare, write_prompts
from benchmarks.peer.on_gpu.sides import Side, grouped, in_turn
from benchmarks.peer.on_gpu.squelch_side import SquelchSide
from benchmarks.peer.on_gpu.trl_side import TrlSide
from benchmarks.peer.on_gpu.work import GpuWork
from squelch.actors.formats.choice import open_format
from squelch.cluster.config import load
from squelch.envs.prompt_file import rewards
from squelch.envs.prompt_file.rows import Prompt

WHOLE = GpuWork("Qwen2.5-0.5B", "cuda", 6)
TINY = GpuWork("Qwen2.5-0.5B", "cpu", 2, prompts=2, samples=4, prompt_tokens=60, new_tokens=16, quick=True)


def test_half_of_ragged_answers_end_early_and_others_hardly_ever() -> None:
    vocabulary, length = 151_936, 256
    for ragged, share in ((True, 0.5), (False, 1.0)):
        ids = gpu_work.ends(vocabulary, length, ragged)
        assert len(set(ids)) == len(ids) and max(ids) < vocabulary and ids[0] == 2
        whole = (1 - len(ids) / vocabulary) ** length
        assert math.isclose(whole, share, abs_tol=0.002)


def test_the_folder_is_one_that_a_run_accepts_with_the_ends_of_the_work(tmp_path: Path) -> None:
    work = GpuWork(**{**vars(TINY), "ragged": True})
    model = prepare(tmp_path / "peer", work)
    one = open_format(model)
    assert set(one.stop_ids) == set(gpu_work.ends(2048, 16, True)) and one.vocab_size == 2048
    rows = [json.loads(line) for line in (tmp_path / "peer" / "data" / "train.jsonl").read_text().splitlines()]
    assert len(rows) >= work.prompts * work.steps and peer_work.load(GpuWork, tmp_path / "peer") == work
    fed = len(one.first_turn(rows[0]["prompt"]))
    assert abs(fed - work.prompt_tokens) <= 25 and fed + work.new_tokens <= work.context


@pytest.mark.parametrize("device", ["cuda", "cpu"])
@pytest.mark.parametrize("workers", [4, 2, 1])
def test_the_settings_are_a_configuration_of_one_gpu(tmp_path: Path, device: str, workers: int) -> None:
    work = WHOLE if device == "cuda" else TINY
    write_prompts(tmp_path / "data", TINY)
    own = squelch_side.settings(work, tmp_path, "run", workers, 6)
    config = load("one-card", [f"{key}={json.dumps(value)}" for key, value in own.items()])
    assert (config.loop.prompts * config.sampling.group_size, config.learner.minibatches) == (work.sequences, 1)
    assert config.sampling.max_tokens_per_turn == work.new_tokens and config.filter.rule == "none"
    shares = config.learner.num_gpus + workers * config.rollout.num_gpus
    assert shares == pytest.approx(0.8 if device == "cuda" else 0) and config.validation.early_stop == "off"
    assert work.prompt_tokens + work.new_tokens <= config.rollout.max_model_len <= config.learner.token_budget


def test_both_sides_get_the_reward_of_one_file_which_waits_for_their_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    function = rewards.load(f"{squelch_side.REWARD}:share", 1.0)
    chat, ids = [{"role": "user", "content": "abc"}], [[4, 6, 7, 2], [5, 5], [2]]
    assert rewards.group_rewards([function], Prompt(chat, chat, {}, "key"), ["", "", ""], ids) == [2 / 3, 0, 0]
    barrier = tmp_path / "go"
    monkeypatch.setenv(gpu_work.BARRIER, str(barrier))
    found: list[list[float]] = []
    waiting = threading.Thread(target=lambda: found.append(reward.share(ids)))
    waiting.start()
    until_there(tmp_path / "go.reached")
    assert waiting.is_alive()
    barrier.touch()
    waiting.join(180)
    assert found == [[2 / 3, 0.0, 0.0]]


def until_there(path: Path) -> None:
    end = time.monotonic() + 180
    while not path.exists():
        assert time.monotonic() < end, path
        time.sleep(0.01)


class Fake(Side):
    """A side of a few lines of Python, which notes in `order` what it does."""

    def __init__(self, name: str, folder: Path, gib: float, code: str) -> None:
        super().__init__(name, folder, gib)
        self.code = code

    def command(self) -> list[str]:
        own = f"""
import os, pathlib, time
go = pathlib.Path(os.environ["{gpu_work.BARRIER}"])
def note(what):
    with open({str(self.folder / "order")!r}, "a") as file: file.write("{self.name} " + what + "\\n")
def turn():
    pathlib.Path(str(go) + ".reached").touch(); note("loaded")
    while not go.exists(): time.sleep(0.01)
{self.code}
"""
        return [sys.executable, "-c", own]

    def found(self) -> dict[str, dict[str, Any]]:
        return {self.name: {"step": 1.0}} if (self.folder / f"{self.name}.done").exists() else {}


WORKS = "turn(); note('works'); (go.parent / (go.stem + '.done')).touch()"


def results(sides: Sequence[Side], gib: float, seconds: float = 60.0) -> dict[str, Any]:
    rows: dict[str, Any] = {}
    for found in in_turn(sides, gib, time.monotonic() + seconds):
        rows |= found
    return rows


def test_both_are_loaded_before_one_works_and_one_works_at_a_time(tmp_path: Path) -> None:
    rows = results([Fake("a", tmp_path, 60, WORKS), Fake("b", tmp_path, 60, WORKS)], 141)
    order = (tmp_path / "order").read_text().split("\n")[:-1]
    assert sorted(order[:2]) == ["a loaded", "b loaded"] and order[2:] == ["a works", "b works"]
    assert rows == {"a": {"step": 1.0}, "b": {"step": 1.0}}


def test_both_fit_an_h200_and_a_shape_whose_memory_is_not_known_is_alone(tmp_path: Path) -> None:
    big = GpuWork("Qwen2.5-3B", "cuda", 4)
    for work, together in ((WHOLE, 1), (big, 2)):
        sides = [SquelchSide("a", tmp_path, work, (4, 2, 1)), TrlSide("b", tmp_path, work, ("tuned-32", "as_it_comes"))]
        assert len(grouped(sides, 139)) == together and len(grouped(sides, 79)) == 2


def test_what_does_not_fit_the_card_is_loaded_later(tmp_path: Path) -> None:
    sides = [Fake(name, tmp_path, gib, WORKS) for name, gib in (("a", 60), ("b", 60), ("c", 20), ("d", 90))]
    assert [[one.name for one in group] for group in grouped(sides, 80)] == [["a"], ["b", "c"], ["d"]]
    results(sides[:2], 80)
    assert (tmp_path / "order").read_text().split("\n")[:-1] == ["a loaded", "a works", "b loaded", "b works"]


def test_a_side_that_fails_says_why_and_the_next_one_works(tmp_path: Path) -> None:
    broken = Fake("a", tmp_path, 1, "raise SystemExit('out of memory')")
    half = Fake("b", tmp_path, 1, f"{WORKS}\nraise SystemExit('a later fault')")
    rows = results([broken, half, Fake("c", tmp_path, 1, WORKS)], 10)
    assert "out of memory" in rows["a"]["error"] and "a later fault" in rows["b"]["error"]
    assert rows["c"] == {"step": 1.0}


def test_a_side_that_hangs_is_ended_at_the_deadline(tmp_path: Path) -> None:
    sides = [Fake("a", tmp_path, 1, "time.sleep(3600)"), Fake("b", tmp_path, 1, "turn(); time.sleep(3600)")]
    rows = results(sides, 1, 3.0)
    assert rows["a"]["error"] == "it was not loaded in time" and "in time" in rows["b"]["error"]
    assert all(one.ended for one in sides)


def lines_of(folder: Path, ups: Sequence[int]) -> None:
    folder.mkdir(parents=True)
    with (folder / "metrics.jsonl").open("w") as file:
        for step, up in enumerate(ups, 1):
            flat = {"step": step, "time": 1.0, "seconds/step": 10.0 + step, "seconds/publish": 0.5, "trajectories": 8}
            flat |= {"wanted/rollout": float(up), "tokens/sampled": 1024.0}
            flat |= {"weights/rollout-0/seconds_paused": 0.2, "weights/rollout-1/seconds_paused": 0.3}
            file.write(json.dumps(flat) + "\n")
    event = {"actor": "rollout", "name": "weights", "start": 1.0, "end": 2.0, "ways": {"ipc": ups[-1]}}
    (folder / "events.jsonl").write_text(json.dumps(event) + "\n")


def test_a_run_has_a_row_for_each_number_of_engines_without_steps_of_a_change(tmp_path: Path) -> None:
    side = SquelchSide("Squelch", tmp_path, WHOLE, (4, 2, 1))
    assert side.found() == {}
    lines_of(side.run, [4, 4, 4, 4, 2, 2, 2])
    side._held = {3}
    found = side.found()
    assert found["Squelch, 4 engines"]["steps"] == [12.0, 13.0] and found["Squelch, 2 engines"]["steps"] == [16.0, 17.0]
    assert found["Squelch, 4 engines"]["paused"] == 0.3 and found["Squelch, 4 engines"]["new_tokens_mean"] == 128
    assert {str(row["ways"]) for row in found.values()} == {"{'ipc': 2}"} and "loaded" not in found[
        "Squelch, 2 engines"
    ]
    assert list(SquelchSide("Squelch, ragged", tmp_path, WHOLE, (2,)).found()) == []


def test_trls_rows_are_those_of_its_variants(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    side = TrlSide("TRL", tmp_path, WHOLE, ("tuned-32", "as_it_comes"))
    assert side.gib == 60 and side.found() == {} and side.command()[-2:] == ["tuned-32", "as_it_comes"]
    side.out.write_text(json.dumps({"versions": {"trl": "1.16.0"}, "tuned-32": {"step": 7.7}}))
    assert side.found() == {"TRL, tuned-32": {"step": 7.7, "versions": {"trl": "1.16.0"}}}
    monkeypatch.setattr(trl_side, "SITE", tmp_path / "nowhere")
    monkeypatch.setattr(trl_side, "installed", lambda package: False)
    reason = trl_side.missing()
    assert reason is not None and "deploy/setup.sh trl" in reason


def test_the_table_compares_the_best_number_of_engines_with_the_best_tuned_peer() -> None:
    rows: dict[str, Any] = {
        "work": WHOLE.facts(),
        "Squelch, 4 engines": {"step": 4.0},
        "Squelch, 2 engines": {"step": 3.0},
    }
    rows |= {"Squelch, staleness 1": {"step": 2.0}, "TRL, tuned-32": {"step": 7.5}, "TRL, tuned-64": {"step": 8.0}}
    rows |= {"TRL, as_it_comes": {"step": 13.5}, "TRL, sleep": {"error": "no room"}}
    assert [row[:2] for row in measure.table(rows)][:2] == [["Squelch, 4 engines", 4.0], ["Squelch, 2 engines", 3.0]]
    said = "\n".join(measure.notes(rows))
    for part in ("2.50 times as fast as TRL tuned", "4.50 times as fast as TRL as it comes", "TRL, sleep: no room"):
        assert part in said
    assert measure.notes({}) == [""]


def test_without_trl_the_other_side_is_measured_and_sleep_needs_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[str] = []

    def turns(sides: Sequence[Side], *_: object) -> list[dict[str, Any]]:
        started.extend(side.name for side in sides)
        return []

    monkeypatch.setattr(measure, "in_turn", turns)
    monkeypatch.setattr(measure, "missing", lambda: "TRL is not installed")
    found = list(measure.ragged(Setting("cpu", True, tmp_path / "a", time.monotonic() + 180)))
    assert started == ["Squelch, ragged"] and found[0]["work"]["ragged"]
    assert found[1] == {"TRL, ragged": {"skipped": "TRL is not installed"}}
    monkeypatch.setattr(measure, "missing", lambda: None)
    found = list(measure.asleep(Setting("cpu", True, tmp_path / "b", time.monotonic() + 180)))
    assert started[1:] == ["TRL"] and "skipped" in found[0]["TRL, sleep"]


def test_one_word_names_all_parts_of_a_whole_run_in_order_and_a_second_call_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert set(WHOLE_RUN) <= set(PARTS) and not any(PARTS[name].by_name for name in gpu.parts_of("cuda"))
    played: list[str] = []

    def run_part(name: str, *rest: Any) -> None:
        played.append(name)
        rows = {"Squelch, 2 engines": {"step": 3.0}} if name == "run: workers" else {}
        bad = {"TRL, sleep": {"error": "no room"}} if name == "run: sleep" and len(played) < 8 else {}
        rest[-1].add(name, rows | bad | {"part_seconds": 1.0})

    monkeypatch.setattr(gpu, "run_part", run_part)
    out = tmp_path / "run.json"
    asked = ["--device", "cpu", "--quick", "--parts", "run", "--out", str(out)]
    assert gpu.main(asked) == 1 and played == list(WHOLE_RUN)
    assert "\nSquelch, 2 engines  3.000" in capsys.readouterr().out
    assert gpu.main(asked) == 0 and played[len(WHOLE_RUN) :] == ["run: sleep"]
    assert json.loads(out.read_text())["parts"]["run: workers"]["Squelch, 2 engines"] == {"step": 3.0}
    played.clear()
    assert gpu.main([*asked[:2], *asked[3:]]) == 1 and played == list(WHOLE_RUN), "other work is measured anew"
