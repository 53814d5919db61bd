"""What the judgement of the early warning counts."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from research import alarm
from research.alarm import (
    Series,
    around_trend,
    false_alarms,
    judged,
    onset,
    read_series,
    resampled,
    reward_fall,
)
from research.renoising import BLOCK
from squelch.kit.archive.writer import Archive


def series(values: list[float], success: list[float] | None = None) -> Series:
    scorings = [(5 * i, value, 0.1, True, math.inf) for i, value in enumerate(values)]
    return Series("run", scorings, list(enumerate(success or [0.4] * 100, start=1)))


def made_up(collapse: bool, seed: int, scorings: int = 24, every: int = 5) -> Series:
    """A synthetic series of scorings with correlated noise around 1.5 nats; `collapse`: it decays from the middle on,
    and success follows ten steps later."""
    rng = np.random.default_rng((seed, collapse))
    noise, values = 0.0, []
    for index in range(scorings):
        noise = 0.5 * noise + 0.12 * rng.normal()
        late = max(0, index - scorings // 2) if collapse else 0
        values.append((index * every, 1.5 * 0.6**late + noise, 0.14, True))
    fall = every * (scorings // 2) + 20
    success = [
        (step, 0.4 + 0.003 * min(step, fall) - 0.03 * collapse * max(0, step - fall) + 0.02 * rng.normal())
        for step in range(1, scorings * every)
    ]
    return Series(f"made up {seed}", values, [(step, max(0.0, value)) for step, value in success])


def test_resampled_series_are_whole_blocks_of_one_run() -> None:
    drawn = resampled(series(list(range(20))), 17, np.random.default_rng(0))
    assert [scoring[0] for scoring in drawn] == list(range(17))
    for start in range(0, 16, BLOCK):
        block = [scoring[1] for scoring in drawn[start : start + BLOCK]]
        assert block == list(range(int(block[0]), int(block[0]) + BLOCK))


def test_false_alarms_are_few_on_correlated_noise_and_counted_when_there_are_any() -> None:
    found = false_alarms([made_up(False, seed) for seed in range(6)], 300)
    assert found["rate"] <= 0.02 and found["series"] == 300 and found["runs"] == 6
    jumping = false_alarms([series([1.5] * 8 + [0.2] * 8)], 100)
    assert jumping["raised"] > 50 and jumping["interval"][0] > 0.4


def test_a_run_that_learned_is_judged_on_its_own_course_too() -> None:
    rng = np.random.default_rng(0)
    rising = series([1.0 + 0.03 * i + 0.05 * rng.normal() for i in range(30)])
    assert false_alarms([rising], 100)["raised"] > false_alarms([rising], 100, course=True)["raised"] == 0
    drawn = around_trend(rising, np.random.default_rng(1))
    assert [scoring[0] for scoring in drawn] == [scoring[0] for scoring in rising.scorings]
    assert drawn[-1][1] > drawn[0][1] + 0.4 and drawn != rising.scorings


def test_onset_is_the_fall_that_lasts_and_the_alarm_is_measured_from_it() -> None:
    healthy, passing = series([1.5] * 10), series([1.5] * 5 + [0.3] + [1.5] * 5)
    assert onset(healthy) is None and onset(passing) is None
    fallen = series([1.5] * 5 + [0.5] * 5, [0.4] * 40 + [0.1] * 20)
    assert onset(fallen) == 25 and reward_fall(fallen) == 42
    metrics = {"onset": 25, "alarm": 30, "early": 0, "delay": 5, "reward_fall": 42, "lead": 12}
    assert judged(fallen) == {"run": "run"} | metrics
    assert judged(healthy)["delay"] is None and judged(healthy)["lead"] is None


def test_an_alarm_that_was_lowered_before_the_collapse_is_early_and_no_lead() -> None:
    dipped = series([1.5] * 5 + [0.5] * 3 + [1.5] * 10 + [0.3] * 6)
    found = judged(dipped)
    assert found["onset"] == 90 and found["early"] == 1
    assert 0 <= found["delay"] <= 10


def test_made_up_collapses_are_seen_before_their_reward_falls() -> None:
    rows = [judged(made_up(True, seed)) for seed in range(8)]
    assert all(row["delay"] is not None and row["delay"] <= 10 and row["lead"] > 0 for row in rows), rows


def test_a_runs_folder_is_read_and_a_short_one_refused_by_name(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    keys = {"mi_seq_est": 1.5, "mi_seq_est_standard_error": 0.1, "mi_seq_est_p_value": 0.001}
    keys |= {"retrieval_accuracy": 0.8, "retrieval_chance": 0.1, "conditional_entropy": 1.0}
    scored = {f"first_turn/{key}": value for key, value in keys.items()}
    for step in range(1, 6):
        archive.metrics(step, scored | {"success": 0.3})
    with pytest.raises(ValueError, match=rf"{tmp_path.name}: 5 scorings .* needs 6"):
        read_series(tmp_path)
    archive.metrics(6, scored | {"success": 0.3, "scorer/step": 5.0})
    found = read_series(tmp_path)
    assert found.scorings[-1] == (5, 1.5, 0.1, True, math.inf) and len(found.success) == 6
    assert json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])["step"] == 1


def test_a_folder_that_is_no_run_is_refused_in_a_line(monkeypatch, capsys) -> None:
    """It ended in a trace."""
    monkeypatch.setattr("sys.argv", ["alarm", "--healthy", "/no/such/run", "--quick"])
    with pytest.raises(SystemExit):
        alarm.main()
    assert "/no/such/run: 0 scorings" in capsys.readouterr().err
