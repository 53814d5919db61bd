"""`squelch.Monitor` says of each step what `squelch.score` says, under the names that are exported, and remembers."""

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import squelch
from squelch.kit.api.inputs import reader_of
from squelch.kit.api.metrics import REGISTRY
from squelch.kit.diagnosis.metrics import REGIMES

PROBE = "probe/link/dependence"


@pytest.fixture(scope="module")
def observed(model, tokenizer, samples) -> dict[str, float]:
    return squelch.Monitor(tokenizer).observe(3, model, *samples, rewards=[1.0] * 20 + [None])


def test_a_step_has_the_numbers_of_score(observed, model, tokenizer, samples) -> None:
    found = squelch.score(model, tokenizer, *samples)
    assert found.answers is not None and found.answers.links is not None
    certain = ("recall@8", "recall@8_low", "recall@8_high")  # of 7 prompts: a run leaves it out
    for key, value in ((key, value) for key, value in found.metrics().items() if key not in certain):
        assert observed[f"first_turn/{key}"] == pytest.approx(value, abs=1e-6, nan_ok=True), key
    for key, value in found.answers.links.metrics().items():
        assert observed[f"probe/link/{key}"] == pytest.approx(value, abs=1e-6, nan_ok=True), key
    assert [name for name in REGIMES if observed[f"first_turn/regime/{name}"]] == [found.regime]
    assert observed["first_turn/num_samples"] == 21 and observed["scorer/step"] == 3


def test_every_key_is_one_that_metrics_exports(observed, model, tokenizer, samples) -> None:
    probed = squelch.Monitor(tokenizer).observe_probe(3, model, *samples)
    for key in (*observed, *probed):
        assert REGISTRY.series_of(key), key
    assert all(type(value) is float for value in (observed | probed).values())


def test_a_step_of_one_prompt_is_counted_and_ends_no_run(observed, model, tokenizer, samples) -> None:
    prompts, said = samples
    few = ["so " + said[0], said[1], "<think> </think>"]
    monitor = squelch.Monitor(tokenizer)
    found = monitor.observe(1, model, prompts[:3], few)
    assert "Excluded rows: text before the reasoning: 1; empty reasoning: 1" in monitor.unscored
    assert found.keys() == observed.keys() and math.isnan(found["first_turn/mi_est"])
    assert (found["first_turn/excluded/one_prompt"], found["first_turn/excluded/empty"]) == (1, 2)
    assert found["first_turn/num_excluded"] == 3 and found["first_turn/regime/unknown"] == 1
    monitor.observe(2, model, *samples)
    assert not monitor.unscored


def test_of_whole_completions_only_their_dependence_on_prompts_is_known(observed, model, tokenizer, samples) -> None:
    """No MI, no regime and no alarm, with the keys and numbers of `score`."""
    monitor = squelch.Monitor(tokenizer, reasoning="completion")
    found, one = monitor.observe(1, model, *samples), squelch.score(model, tokenizer, *samples, reasoning="completion")
    own = {key.removeprefix("completion/"): value for key, value in found.items() if key.startswith("completion/")}
    assert own == pytest.approx(one.metrics(), nan_ok=True) and own["num_samples"] == 21 and not monitor.unscored
    assert found.keys() - observed.keys() == {f"completion/{key}" for key in own} and not observed.keys() - found.keys()
    assert not any(found[f"first_turn/regime/{name}"] for name in REGIMES)
    unknown = ("mi_est", "mi_seq_est", "retrieval_accuracy", "reasoned", "repeated", "mi_seq_est_p_value")
    assert all(math.isnan(found[f"first_turn/{key}"]) for key in unknown) and math.isnan(found[PROBE])
    assert found["first_turn/num_prompts"] == 7 and all(REGISTRY.series_of(key) for key in found)
    few = monitor.observe(2, model, *(rows[:3] for rows in samples))
    assert few.keys() == found.keys() and "at least 2 prompts" in monitor.unscored
    with pytest.raises(ValueError, match="with reasoning=completion there is none to tell"):
        monitor.observe_probe(3, model, *samples)
    assert squelch.score(model, tokenizer, *samples, markers=None).metrics() == one.metrics()


class Diagonal:
    """An engine under which a reasoning is more likely by `strength` nats under its own prompt, as the rows come."""

    context_length = 512
    model = SimpleNamespace(config=SimpleNamespace(get_text_config=lambda: SimpleNamespace(vocab_size=4096)))

    def __init__(self) -> None:
        self.strength = 3.0

    def matrix(self, prompts: list[Any], reasonings: list[Any], *_: object, pictures: Any = None) -> np.ndarray:
        found = np.random.default_rng(len(reasonings)).normal(0, 0.1, (len(reasonings), len(prompts))) - 20
        each = len(reasonings) // len(prompts)
        found[np.arange(len(found)), np.arange(len(found)) // each] += self.strength
        return found


@pytest.fixture
def falling(monkeypatch: pytest.MonkeyPatch, tokenizer) -> tuple[squelch.Monitor, Diagonal]:
    """A monitor of a run whose dependence the test sets."""
    monitor, engine = squelch.Monitor(tokenizer, links=False), Diagonal()

    @contextmanager
    def own(_model: object) -> Iterator[tuple[Diagonal, Any]]:
        yield engine, reader_of(tokenizer, 4096, ("<think>", "</think>"))

    monkeypatch.setattr(squelch.Monitor, "_engine", lambda self, model: own(model))
    return monitor, engine


def test_a_fall_is_said_once_while_the_reward_still_rises(falling, samples) -> None:
    monitor, engine = falling
    said: list[tuple[int, str]] = []
    for step in range(1, 12):
        engine.strength = 3.0 if step < 7 else 0.5
        found = monitor.observe(step, None, *samples, rewards=[0.1 * step] * 21)
        said += [(step, text) for text in monitor.alarms]
    ((step, text),) = said
    assert step == 8 and "input dependence falling since step 6, reward" in text
    assert found["alarm/raised"] == found["alarm/armed"] == found["alarm/reward_trend"] == 1.0


def test_a_restored_monitor_goes_on_exactly(falling, samples, tokenizer) -> None:
    monitor, engine = falling
    for step in range(1, 5):
        monitor.observe(step, None, *samples)
        monitor.observe_probe(step, None, *samples)
    other = squelch.Monitor(tokenizer, links=False)
    other.restore(json.loads(json.dumps(monitor.state())))
    engine.strength = 1.0
    for one in (lambda m: m.observe(5, None, *samples), lambda m: m.observe_probe(5, None, *samples)):
        first, second = ({k: v for k, v in one(m).items() if "seconds" not in k} for m in (monitor, other))
        assert first == pytest.approx(second, abs=0, nan_ok=True)
    assert first["probe/mi_change"] < -0.5 and monitor.state() == other.state()


def test_the_average_of_the_z_score_runs_over_the_steps(falling, samples) -> None:
    monitor, engine = falling
    first = monitor.observe(1, None, *samples)
    engine.strength = 1.0
    second = monitor.observe(2, None, *samples)
    assert first["first_turn/mi_zscore_ema"] == first["first_turn/mi_zscore"]
    assert second["first_turn/mi_zscore_ema"] != second["first_turn/mi_zscore"]


def test_the_probe_takes_over_the_links_and_its_prompts_stay(model, tokenizer, samples) -> None:
    monitor, (prompts, said) = squelch.Monitor(tokenizer), samples
    assert PROBE in monitor.observe(1, model, prompts, said)
    first = monitor.observe_probe(1, model, prompts[:18], said[:18])
    assert first["probe/mi_change"] == 0 and math.isfinite(first[PROBE]) and first["probe/tasks"] == 6
    assert PROBE not in monitor.observe(2, model, prompts, said)
    fewer = monitor.observe_probe(2, model, prompts[3:], said[3:])  # one prompt is missing, one is new
    assert (fewer["probe/tasks"], fewer["probe/num_excluded"]) == (5, 3)
    with pytest.raises(ValueError, match=r"0 prompts of the 2 .* are among the probe's 6, and a comparison needs 2"):
        monitor.observe_probe(3, model, [f"{prompts[0]} ", f"{prompts[3]} "], said[:2])


def test_bad_input_is_named(model, tokenizer, samples) -> None:
    monitor = squelch.Monitor(tokenizer)
    monitor.observe(5, model, *samples)
    with pytest.raises(ValueError, match="observe was called for step 5 and then for 5; steps must rise"):
        monitor.observe(5, model, *samples)
    with pytest.raises(ValueError, match=r"`rewards` has shape \(2,\); it must be \(21,\)"):
        monitor.observe(6, model, *samples, rewards=[0.0, 1.0])
    for name, value in {"max_prompts": 1, "temperature": 0.0, "ema_alpha": 1.0, "half_width": 0.0}.items():
        with pytest.raises(ValueError, match=f"{name} is {value}; it must be"):
            squelch.Monitor(tokenizer, **{name: value})
