"""From `model.path` and `model.warmup` to the folder of the initial policy: what is made once, and what anew."""

from __future__ import annotations

import errno
import json
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace

import pytest

from squelch.actors.formats.choice import open_format, stamped
from squelch.actors.pretrained.gguf_file import STAMP
from squelch.cluster.config import RunConfig, dump, load
from squelch.cluster.loop import initial_policy, warming
from squelch.cluster.loop.initial_policy import (
    find_model,
    prepare_model,
    warmed_up,
    warmup_digest,
    with_date_of,
    with_date_of_start,
)
from squelch.cluster.loop.warming import REPORT
from squelch.kit.base.errors import UserError
from squelch.kit.text.stamp import read_stamp
from tests.kit.text.made import CHATML, chatml_bpe, save_folder


def quietly(_: str) -> None:
    """Says nothing."""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Stands in for a converted model."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / STAMP).write_text(json.dumps({"sha256": "0" * 64}))
    return folder


@pytest.fixture
def warmed(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Stands in for the warm-up; holds the folders that it wrote. Models are not checked."""
    written: list[Path] = []

    def warm_up(config: RunConfig, warmup: object, folder: Path, out: Path, *_: object) -> None:
        written.append(out)
        out.mkdir()
        (out / REPORT).write_text("{}")

    monkeypatch.setattr(initial_policy, "_warm_up", warm_up)
    monkeypatch.setattr(initial_policy, "check_model", lambda folder, config, say: folder.resolve())
    return written


def recipe(model: Path, *overrides: str) -> RunConfig:
    cache = model.parent / "cache"
    return load("smollm2-countdown", [f"model.path={model}", f"model.pretrained_cache={cache}", *overrides])


def test_a_model_without_a_warm_up_is_itself(model: Path, warmed: list[Path]) -> None:
    assert prepare_model(recipe(model, "model.warmup=null"), quietly) == model
    assert not warmed


OPTIONS = "{data: 'squelch.envs.prompt_file:example.jsonl', reward: 'squelch.envs.prompt_file.example:reward'}"
MIXED = f"environments=[{{name: Prompts, options: {OPTIONS}}}, {{name: Countdown}}]"


def test_prompts_beside_squelchs_turns_have_our_own_format_or_are_refused_by_name(
    model: Path, warmed: list[Path]
) -> None:
    words = ["environment=null", MIXED, "model.warmup=null"]
    assert prepare_model(recipe(model, *words), quietly) == model and read_stamp(model).format == "own"
    with pytest.raises(UserError, match=r"model\.format=qwen3 is for .* and not for Countdown; leave it out"):
        prepare_model(recipe(model, *words, "model.format=qwen3"), quietly)
    with pytest.raises(UserError, match=r"Prompts has no demonstrate.* set model\.path to the folder"):
        prepare_model(recipe(model, *words, "model.path=tiny"), quietly)


def test_a_warm_up_happens_once_for_runs_that_share_it(model: Path, warmed: list[Path]) -> None:
    first = prepare_model(recipe(model), quietly)
    again = prepare_model(
        recipe(model, "seed=7", "loop.steps=3", "filter.rule=none", "model.warmup.save_every=9"), quietly
    )
    assert first == again == warmed[0] and len(warmed) == 1
    assert first.parent == (model.parent / "cache").resolve() and first.name.startswith("model-Countdown-")


def test_the_day_in_prompts_is_that_of_the_start_and_a_resumed_run_keeps_it(
    model: Path, warmed: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    (model / "chat_template.jinja").write_text("{{ strftime_now('%d %b %Y') }}")

    def started(day: int, resume: bool = False, *words: str) -> tuple[Path, RunConfig, list[str]]:
        monkeypatch.setattr(initial_policy, "datetime", SimpleNamespace(now=lambda: datetime(2026, 11, day)))
        said: list[str] = []
        own = ["model.warmup=null", f"runs_dir={model.parent}", "name=run", *words]
        config = with_date_of_start(recipe(model, *own), resume)
        folder = prepare_model(config, said.append)
        return folder, with_date_of(config, folder, said.append), said

    first, config, said = started(27)
    assert read_stamp(first).date == str(config.model.date) == "2026-11-27" and "day 2026-11-27" in said[-1]
    config.run_dir.mkdir()
    (config.run_dir / "config.yaml").write_text(dump(config))
    assert load(str(config.run_dir / "config.yaml")) == config
    assert started(28, True)[:2] == (first, config), "the same folder, so that all processes write the same prompts"
    assert read_stamp(started(28)[0]).date == "2026-11-28"
    assert read_stamp(started(28, True, "model.date=2024-07-26")[0]).date == "2024-07-26"
    assert read_stamp(started(28, False, f"model.path={first}")[0]).date == "2026-11-27", "as the policy was trained"
    (model / "chat_template.jinja").write_text("no day")
    folder, config, said = started(28, False, "model.date=2024-07-26")
    assert folder == model and config.model.date is None and "without effect: model.date=2024-07-26" in said[-1]


@pytest.mark.parametrize(
    "change",
    [
        "model.warmup.format_validity=0.5",
        "model.warmup.true_reasonings=0.5",
        "model.warmup.quality.grounded=0.5",
        "environment.options.max_number=9",
        "environment.prompt=tiny",
        "learner.ranks=2",
        "learner.share_openings=false",
        "learner.compile=true",
        "learner.lora={rank: 4}",
        "learner.optimizer.weight_decay=0.1",
        "sampling.max_tokens_per_turn=60",
        "sampling.temperature=0.7",
        "rollout.dtype=bfloat16",
    ],
)
def test_whatever_changes_the_weights_causes_another_warm_up(model: Path, change: str) -> None:
    plain, changed = recipe(model), recipe(model, change)
    digests = {warmup_digest(config, config.model.warmup, model) for config in (plain, changed)}
    assert len(digests) == 2


def test_how_checks_are_played_matters_only_where_a_check_may_end_the_warm_up(model: Path) -> None:
    whole = "model.warmup.format_validity=null"
    plain, changed = recipe(model, whole), recipe(model, whole, "rollout.dtype=bfloat16")
    digests = {warmup_digest(config, config.model.warmup, model) for config in (plain, changed)}
    assert len(digests) == 1


def test_the_tasks_of_a_check_are_the_same_for_every_seed_of_the_run(model: Path) -> None:
    seeds = ("seed=7", "environment.validation_seed=5", "environment.train_seed=9")
    plain, other = recipe(model), recipe(model, *seeds)
    assert warming._tickets(plain, plain.model.warmup) == warming._tickets(other, other.model.warmup)


def test_another_model_or_file_causes_another_warm_up(model: Path) -> None:
    chat = model.parent / "chat.jsonl"
    chat.write_text("a")
    config = recipe(model, f"model.warmup.data={chat}")
    first = warmup_digest(config, config.model.warmup, model)
    chat.write_text("b")
    second = warmup_digest(config, config.model.warmup, model)
    (model / STAMP).write_text(json.dumps({"sha256": "1" * 64}))
    assert len({first, second, warmup_digest(config, config.model.warmup, model)}) == 3


def test_a_folder_that_is_there_is_not_warmed_up_again(model: Path, warmed: list[Path]) -> None:
    config, out = recipe(model), model.parent / "out"
    warmed_up(config, config.model.warmup, model, out, True, quietly)
    warmed_up(config, config.model.warmup, model, out, True, quietly)
    assert warmed == [out]


def test_a_model_that_cannot_be_had_names_the_setting(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"model\.path: 'nowhere': there is no such folder"):
        prepare_model(load("smollm2-countdown", ["model.path=nowhere", f"model.pretrained_cache={tmp_path}"]), quietly)


def test_a_missing_file_of_conversations_is_named(model: Path, warmed: list[Path]) -> None:
    with pytest.raises(UserError, match=r"model\.warmup\.data: gone\.jsonl does not exist"):
        prepare_model(recipe(model, "model.warmup.data=gone.jsonl"), quietly)


def test_a_share_of_true_reasonings_is_refused_without_a_judge(model: Path, warmed: list[Path]) -> None:
    words = ("environment.name=MetaMathQA", "environment.options={}", "model.warmup.true_reasonings=0.5")
    with pytest.raises(UserError, match=r"model\.warmup\.true_reasonings=0\.5: MetaMathQA has no judge"):
        prepare_model(recipe(model, *words), quietly)


@pytest.mark.parametrize("error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("no rank is left")])
def test_a_warm_up_that_fails_is_no_bad_input_and_says_how_to_go_on(monkeypatch, model, error) -> None:
    corpus = SimpleNamespace(num_steps=lambda _: 3, num_left_out=0, trained=[], num_tokens=0, digest=lambda: "0")
    monkeypatch.setattr("squelch.actors.play.codec.ChatCodec", lambda _: SimpleNamespace(text=str))
    monkeypatch.setattr("squelch.learner.warmup.corpus.make_corpus", lambda *_: corpus)
    monkeypatch.setattr(initial_policy, "weight_bytes", lambda *_: 0)
    monkeypatch.setattr(initial_policy, "disconnect", lambda: None)

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(initial_policy, "connect", fail)
    config = recipe(model)
    with pytest.raises(UserError, match=r"^the warm-up failed: .*Repeat the command to continue it$") as failed:
        warmed_up(config, config.model.warmup, model, model.parent / "out", True, quietly)
    assert failed.value.exit_code == 1 and str(error) in str(failed.value)


def test_the_models_folder_says_that_its_template_may_remove_reasoning_and_squelchs_turns_are_refused(
    tmp_path: Path,
) -> None:
    model = save_folder(tmp_path / "model", chatml_bpe(), CHATML)
    settings = [f"model.path={model}", f"model.pretrained_cache={tmp_path / 'cache'}", "model.warmup=null"]
    found = find_model(load("prompts", [*settings, "model.keep_reasoning=template"]), quietly)
    assert found != model and stamped(found)[:2] == ("own", "template") and not open_format(found).keeps_reasoning
    assert find_model(load("prompts", settings), quietly) == model
    with pytest.raises(UserError, match=r"keep_reasoning=template is for environments without a turn format of Squelc"):
        find_model(load("frozenlake", [*settings, "model.keep_reasoning=template"]), quietly)
