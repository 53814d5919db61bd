"""The observer as TRL calls it, by keyword and with its extra arguments; no TRL here."""

import json
import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import squelch
from squelch.kit.trl.observer import STATE_FILE, require_whole
from squelch.trl import Observer

STATE = {"global_step": 0, "max_steps": 10, "is_world_process_zero": True}


class GRPOConfig(SimpleNamespace):
    """The settings that the observer reads; TRL's have the same name."""


class Trainer:
    """What the observer sees of a trainer through `log_metric`: it renders texts and messages with its tools."""

    def __init__(self, tokenizer: Any, tools: str = "") -> None:
        self.tokenizer, self.tools, self.rollout_func, self.logged = tokenizer, tools, None, list[tuple[str, float]]()
        self.eos_token_ids = [tokenizer.eos_token_id]

    def _tokenize_prompts(self, prompts: list[Any]) -> tuple[list[list[int]], None, dict[str, Any]]:
        texts = [
            one if isinstance(one, str) else f"<|user|>{self.tools}{one[0]['content']}<|end|><|assistant|>"
            for one in prompts
        ]
        return [self.tokenizer.encode(text, add_special_tokens=False) for text in texts], None, {}

    def log(self, name: str, value: float) -> None:
        self.logged.append((name, value))

    def values(self, name: str) -> list[float]:
        return [value for key, value in self.logged if key == f"squelch/{name}"]


def called(observer: Observer, **changes: Any) -> list[None]:
    """The reward function's call in `GRPOTrainer._calculate_rewards`."""
    given: dict[str, Any] = {
        "prompts": ["a", "b"],
        "completions": ["c", "d"],
        "completion_ids": [[1], [2]],
        "answer": ["", ""],
        "trainer_state": SimpleNamespace(**STATE),
        "log_extra": print,
        "log_metric": print,
    }
    return observer(**given | changes)


def settings(folder: Path) -> GRPOConfig:
    given = {"output_dir": str(folder), "run_name": None, "max_completion_length": 40, "learning_rate": 1e-6}
    return GRPOConfig(temperature=1.0, **given)


def begun(observer: Observer, model: Any, tokenizer: Any, folder: Path, step: int = 0) -> Observer:
    state = SimpleNamespace(**STATE | {"global_step": step})
    observer.on_train_begin(settings(folder), state, None, model=model, processing_class=tokenizer)
    return observer


@pytest.fixture
def unsharded(monkeypatch: pytest.MonkeyPatch) -> None:
    state = SimpleNamespace(distributed_type=SimpleNamespace(value="NO"))
    monkeypatch.setattr("squelch.kit.trl.observer.AcceleratorState", lambda: state)


def test_no_row_gets_a_reward_and_none_has_an_effect_before_training() -> None:
    assert called(Observer(), trainer_state=SimpleNamespace(**STATE | {"max_steps": 0})) == [None, None]


def test_one_that_is_given_in_one_place_only_says_so_once_and_training_goes_on(said: list[str]) -> None:
    only_function, only_callback = Observer(), Observer()
    for _ in range(2):
        assert called(only_function) == [None, None]
        only_callback.on_step_end(None, SimpleNamespace(**STATE), None)
    assert ["add callbacks=[observer]" in said[0], "add it to reward_funcs" in said[1]] == [True, True]
    assert len(said) == 2


@pytest.mark.usefixtures("unsharded")
@pytest.mark.parametrize("column", [{"image": [None, None]}, {"images": [None, []]}])
def test_a_column_without_a_picture_is_no_reason_not_to_score(
    model: Any, tokenizer: Any, tmp_path: Path, said: list[str], column: Any
) -> None:
    observer, trainer = begun(Observer(every=1, export=False), model.train(), tokenizer, tmp_path), Trainer(tokenizer)
    called(observer, log_metric=trainer.log, **column)
    assert trainer.logged and not any("image" in line for line in said)


def test_settings_are_refused_before_a_model_is_loaded() -> None:
    for wrong, text in (({"every": 0}, "every is 0"), ({"max_prompts": 1}, "max_prompts is 1")):
        with pytest.raises(ValueError, match=text):
            Observer(**wrong)


@pytest.mark.parametrize(("kind", "stage", "name"), [("FSDP", 0, "FSDP"), ("DEEPSPEED", 3, "DeepSpeed ZeRO-3")])
def test_sharded_models_are_refused_by_name(kind: str, stage: int, name: str) -> None:
    plugin = SimpleNamespace(zero_stage=stage)
    with pytest.raises(ValueError, match=rf"the run uses {name}: a forward needs all ranks"):
        require_whole(SimpleNamespace(distributed_type=SimpleNamespace(value=kind), deepspeed_plugin=plugin))
    require_whole(
        SimpleNamespace(
            distributed_type=SimpleNamespace(value="DEEPSPEED"), deepspeed_plugin=SimpleNamespace(zero_stage=2)
        )
    )


@pytest.mark.parametrize("kind", ["DPOConfig", "AsyncGRPOConfig", "OnlineDPOConfig", "SFTConfig"])
def test_a_trainer_that_cannot_be_observed_is_refused_by_name_as_it_is_made(kind: str) -> None:
    args = type(kind, (SimpleNamespace,), {})()
    for hook in (Observer().on_init_end, Observer().on_train_begin):
        with pytest.raises(ValueError, match=rf"cannot watch TRL's {kind.removesuffix('Config')}Trainer"):
            hook(args, SimpleNamespace(**STATE), None)
    for name in ("GRPOConfig", "RLOOConfig"):
        Observer().on_init_end(type("Mine", (type(name, (), {}),), {})(), SimpleNamespace(**STATE), None)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is said on standard error."""
    lines: list[str] = []
    monkeypatch.setattr("squelch.kit.trl.observer.tell", lines.append)
    return lines


def fails(*_: Any, **__: Any) -> Any:
    raise RuntimeError("out of memory at 7")


def fails_silently(*_: Any, **__: Any) -> Any:
    raise ValueError


CALLED = [{"role": "assistant", "content": "", "tool_calls": [{}]}, {"role": "tool", "content": "4"}]


@pytest.mark.usefixtures("unsharded")
@pytest.mark.parametrize(
    ("changes", "break_it", "reason"),
    [
        ({"image": [object(), None]}, None, "the samples have `image`: only text"),
        ({"completions": [CALLED, CALLED]}, None, "a turn without an end token: use squelch.trl.SquelchGRPOTrainer("),
        ({}, lambda trainer, _: vars(trainer).update(rollout_func=fails), "rollout_func renders the prompts itself"),
        ({}, lambda trainer, _: vars(trainer).update(_tokenize_prompts=fails), "RuntimeError: out of memory"),
        ({}, lambda trainer, _: vars(trainer).update(_tokenize_prompts=fails_silently), "ValueError"),
        ({}, lambda _, observer: setattr(observer.monitor, "observe", fails), "RuntimeError: out of memory"),
        ({"log_metric": None}, None, "this release of TRL does not tell how it renders prompts"),
    ],
)
def test_whatever_fails_in_scoring_is_said_once_and_logged_and_training_goes_on(
    model: Any, tokenizer: Any, tmp_path: Path, said: list[str], changes: Any, break_it: Any, reason: str
) -> None:
    observer, trainer = begun(Observer(every=1, export=False), model.train(), tokenizer, tmp_path), Trainer(tokenizer)
    if break_it is not None:
        break_it(trainer, observer)
    given, logged = changes | {"log_metric": trainer.log}, trainer.logged
    if "log_metric" in changes:
        logged = []
        given["log_metric"] = lambda *pair: logged.append(pair)
    for step in range(3):
        state = SimpleNamespace(**STATE | {"global_step": step})
        assert called(observer, trainer_state=state, **given) == [None, None]
    assert logged == [("squelch/not_scored", 1.0)] * 3
    (line,) = said
    assert line.startswith("step 1 cannot be scored: ") and reason in line
    model.eval()
    assert called(observer, **given) == [None, None] and len(logged) == 3, "an evaluation is not observed"


@pytest.mark.usefixtures("unsharded")
def test_a_rank_whose_rows_cannot_be_read_is_gathered_with_the_others_and_the_step_is_not_scored(
    model: Any, tokenizer: Any, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    other = ([[1]], [[2]]), ""
    monkeypatch.setattr("squelch.kit.trl.observer.gather_object", lambda own: [other, *own])
    observer, trainer = begun(Observer(export=False), model.train(), tokenizer, tmp_path), Trainer(tokenizer)
    trainer.rollout_func = fails  # type: ignore[assignment]
    assert called(observer, log_metric=trainer.log) == [None, None]
    assert trainer.logged == [("squelch/not_scored", 1.0)] and "rollout_func" in said[0]


@pytest.mark.usefixtures("unsharded")
def test_reasonings_that_are_cut_are_said_once_with_their_remedy_and_logged_by_reason(
    model: Any, tokenizer: Any, samples: Any, tmp_path: Path, said: list[str]
) -> None:
    """A model that thinks for longer than `max_completion_length`, 40 here: in all rows, and in all but two prompts."""
    prompts, texts = samples
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    cut = [tokenizer.encode("<think>" + " a" * 60, add_special_tokens=False)[:40] for _ in ids]
    for rows, scored in ((cut, 0.0), (ids[:6] + cut[6:], 1.0)):
        said.clear()
        observer = begun(Observer(every=1, export=False), model.train(), tokenizer, tmp_path)
        trainer = Trainer(tokenizer)
        for step in range(2):
            state = SimpleNamespace(**STATE | {"global_step": step})
            called(
                observer,
                prompts=prompts,
                completions=texts,
                completion_ids=rows,
                trainer_state=state,
                log_metric=trainer.log,
            )
        unclosed = sum(row is not own for row, own in zip(rows, ids, strict=True))
        (line,) = said
        share = unclosed / 21 if scored else 1.0
        why = f"{unclosed} have no end, such as </think>"
        assert f"step 1: WARNING nothing_scorable: {share:.0%} of the reasonings cannot be scored: {why}" in line
        assert line.endswith("GRPOConfig(max_completion_length=80), now max_completion_length=40")
        assert trainer.values("finding/nothing_scorable/warning") == [1.0] * 2
        assert trainer.values("not_scored") == [1 - scored] * 2
        assert trainer.values("first_turn/excluded/unclosed") == [unclosed] * 2
        assert len(trainer.values("first_turn/mi_seq_est")) == 2 * scored


@pytest.mark.usefixtures("unsharded")
def test_what_trl_logs_gives_findings_with_settings_of_trl_and_a_resumed_training_does_not_repeat_them(
    model: Any, tokenizer: Any, tmp_path: Path, said: list[str]
) -> None:
    def logged(observer: Observer, *steps: int) -> None:
        for step in steps:
            state = SimpleNamespace(**STATE | {"global_step": step})
            observer.on_log(None, state, None, logs={"reward": 0.5, "kl": 20.0, "completions/clipped_ratio": 0.0})

    observer = begun(Observer(export=False), model.train(), tokenizer, tmp_path)
    logged(observer, *range(1, 6))
    (line,) = said
    assert line.startswith("step 5: CRITICAL kl_high: The policy is far from its reference (KL 20.00 nats per token). ")
    assert line.endswith(": GRPOConfig(learning_rate=5e-07), now learning_rate=1e-06")
    (tmp_path / "checkpoint-5").mkdir()
    observer.on_save(settings(tmp_path), SimpleNamespace(**STATE | {"global_step": 5}), None)
    resumed = begun(Observer(export=False), model.train(), tokenizer, tmp_path, step=5)
    logged(resumed, 6, 7)
    assert len(said) == 1 and [one.name for one in resumed.findings.open] == ["kl_high"]
    logged(begun(Observer(export=False, ignore=["kl_high"]), model.train(), tokenizer, tmp_path), *range(1, 6))
    assert len(said) == 1
    with pytest.raises(ValueError, match="did you mean `kl_high`"):
        Observer(ignore=["kl_hig"])


@pytest.mark.usefixtures("unsharded")
def test_what_else_leaves_nothing_to_score_is_said_by_reason(
    model: Any, tokenizer: Any, samples: Any, tmp_path: Path, said: list[str]
) -> None:
    observer, trainer = begun(Observer(export=False), model.train(), tokenizer, tmp_path), Trainer(tokenizer)
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in ("<think> </think> a", "<think></think>")]
    called(observer, prompts=samples[0][:2], completion_ids=ids, log_metric=trainer.log)
    assert "NOTICE reasoning_mute: The policy writes no reasoning" in said[0]
    assert "give the markers of the model's reasoning" in said[0] and trainer.values("not_scored") == [1.0]
    assert trainer.values("first_turn/excluded/empty") == [2.0]


@pytest.mark.usefixtures("unsharded")
def test_completions_that_mark_no_reasoning_are_scored_before_their_answer_once_the_observer_knows_it(
    model: Any, tokenizer: Any, samples: Any, tmp_path: Path, said: list[str]
) -> None:
    bare = [text.removeprefix("<think>").replace("</think>", "") for text in samples[1]]
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in bare]
    for given, unscored in (({}, 1.0), ({"reasoning": "before_answer", "answer": "<answer>"}, 0.0)):
        observer, trainer = Observer(export=False, **given), Trainer(tokenizer)
        begun(observer, model.train(), tokenizer, tmp_path)
        called(observer, prompts=samples[0], completions=bare, completion_ids=ids, log_metric=trainer.log)
        assert trainer.values("not_scored") == [unscored]
        assert trainer.values("first_turn/regime/unmarked") == [unscored]
    assert "No turn marks a reasoning: 0% of the first turns" in said[0]
    assert "in Python reasoning='before_answer'" in said[0]
    assert not any("regime mute" in line for line in said)


@pytest.mark.usefixtures("unsharded")
def test_a_port_a_state_or_a_hook_that_fails_ends_no_training(
    model: Any, tokenizer: Any, tmp_path: Path, said: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "checkpoint-4").mkdir()
    (tmp_path / "checkpoint-4" / STATE_FILE).write_text(json.dumps({"ema": 1}))
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        observer = begun(Observer(port=taken.getsockname()[1]), model.train(), tokenizer, tmp_path, step=4)
    assert "averages and alarms start anew" in said[0] and "/metrics is not served" in said[1]
    called(observer, trainer_state=SimpleNamespace(**STATE | {"global_step": 4}), log_metric=Trainer(tokenizer).log)
    state = SimpleNamespace(**STATE | {"global_step": 5})
    hooks: list[Callable[[], None]] = [
        lambda: observer.on_step_end(None, state, None),
        lambda: observer.on_log(None, state, None, logs={"reward": 1.0}),
        lambda: observer.on_save(settings(tmp_path / "no"), state, None),
        lambda: observer.on_train_end(None, state, None),
    ]
    observer.endpoint = SimpleNamespace(step=fails, logged=fails, close=fails)  # type: ignore[assignment]
    monkeypatch.setattr("squelch.kit.trl.observer.write_whole", fails)
    for hook in hooks * 2:
        hook()
    assert [line for line in said[2:] if "RuntimeError" in line] == ["RuntimeError: out of memory at 7"]


@pytest.mark.usefixtures("unsharded")
def test_prompts_are_rendered_by_the_trainer_with_its_tools_and_a_turn_ends_before_the_tools_output(
    model: Any, tokenizer: Any, texts: Any, tmp_path: Path
) -> None:
    trainer = Trainer(tokenizer, tools="".join(texts[0][:2]))
    messages = [[{"role": "user", "content": text}] for text in texts[0]]
    first = [tokenizer.encode(text, add_special_tokens=False) + trainer.eos_token_ids for text in texts[1]]
    after = tokenizer.encode("<think> a</think> b", add_special_tokens=False)
    observer = begun(Observer(every=1, export=False), model.train(), tokenizer, tmp_path)
    called(
        observer,
        prompts=messages,
        completions=[CALLED if row % 2 else [CALLED[0]] for row in range(len(first))],
        completion_ids=[ids + after if row % 2 else ids for row, ids in enumerate(first)],
        log_metric=trainer.log,
        environments=[object()] * len(first),
    )
    found = squelch.score(model, tokenizer, trainer._tokenize_prompts(messages)[0], first).metrics()
    without = squelch.score(model, tokenizer, Trainer(tokenizer)._tokenize_prompts(messages)[0], first).metrics()
    assert trainer.values("first_turn/mi_seq_est") == [pytest.approx(found["mi_seq_est"], abs=1e-6)]
    assert found["mi_seq_est"] != pytest.approx(without["mi_seq_est"], abs=1e-3)


@pytest.mark.usefixtures("unsharded")
def test_steps_between_are_left_out(model: Any, tokenizer: Any, samples: Any, tmp_path: Path) -> None:
    prompts, said = samples
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in said]
    observer, trainer = begun(Observer(every=3, export=False), model.train(), tokenizer, tmp_path), Trainer(tokenizer)
    scored = []
    for step in range(6):
        state = SimpleNamespace(**STATE | {"global_step": step})
        given = {"prompts": prompts, "completions": said, "completion_ids": ids, "log_metric": trainer.log}
        assert called(observer, **given, trainer_state=state) == [None] * len(said)
        scored.append(len(trainer.values("first_turn/mi_seq_est")))
    assert scored == [1, 1, 1, 2, 2, 2]
