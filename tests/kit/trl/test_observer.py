"""The observer as TRL calls it, by keyword and with its extra arguments; no TRL here."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from squelch.kit.trl.observer import require_whole
from squelch.trl import Observer

STATE = {"global_step": 0, "max_steps": 10, "is_world_process_zero": True}


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


def begun(observer: Observer, model: Any, tokenizer: Any, tmp_path: Path) -> Observer:
    args = SimpleNamespace(chat_template_kwargs=None, temperature=1.0, output_dir=str(tmp_path), run_name=None)
    given = {"model": model, "processing_class": tokenizer}
    observer.on_train_begin(args, SimpleNamespace(**STATE), None, **given)
    return observer


@pytest.fixture
def unsharded(monkeypatch: pytest.MonkeyPatch) -> None:
    state = SimpleNamespace(distributed_type=SimpleNamespace(value="NO"))
    monkeypatch.setattr("squelch.kit.trl.observer.AcceleratorState", lambda: state)


def test_no_row_gets_a_reward_and_none_has_an_effect_before_training() -> None:
    assert called(Observer(), trainer_state=SimpleNamespace(**STATE | {"max_steps": 0})) == [None, None]


def test_one_that_is_given_in_one_place_only_says_so() -> None:
    with pytest.raises(ValueError, match=r"no callback; add callbacks=\[observer\]"):
        called(Observer())
    with pytest.raises(ValueError, match="no reward function; add it to reward_funcs"):
        Observer().on_step_end(None, SimpleNamespace(**STATE), None)


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


@pytest.mark.usefixtures("unsharded")
def test_what_a_reward_function_cannot_see_is_refused_with_what_can(model, tokenizer, tmp_path: Path) -> None:
    observer = begun(Observer(export=False), model.train(), tokenizer, tmp_path)
    call = [{"role": "assistant", "content": "", "tool_calls": [{}]}, {"role": "tool", "content": "4"}]
    for changes, text in (
        ({"completions": [call, call]}, r"called a tool: use squelch.trl.SquelchGRPOTrainer\("),
        ({"environments": [object(), object()]}, "the samples have `environments`: use squelch.trl.Squelch"),
        ({"image": [object(), None]}, "the samples have `image`: only text"),
    ):
        with pytest.raises(ValueError, match=text):
            called(observer, **changes)
    model.eval()
    assert called(observer, completions=[call, call]) == [None, None], "an evaluation is not observed"


@pytest.mark.usefixtures("unsharded")
def test_steps_between_are_left_out_and_messages_equal_their_rendering(
    model, tokenizer, samples, texts, tmp_path
) -> None:
    prompts, said = samples
    messages = [[{"role": "user", "content": text}] for text in texts[0]]
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in said]
    logs: list[dict[str, float]] = []
    for given in (prompts, messages):
        observer, log = begun(Observer(every=3, export=False), model.train(), tokenizer, tmp_path), {}
        for step in range(6):
            state = SimpleNamespace(**STATE | {"global_step": step})
            mine: dict[str, float] = {}
            rewards = called(
                observer,
                prompts=given,
                completions=said,
                completion_ids=ids,
                trainer_state=state,
                log_metric=mine.__setitem__,
            )
            assert rewards == [None] * len(said)
            log |= {f"{step + 1} {key}": value for key, value in mine.items() if "seconds" not in key}
        logs.append(log)
    assert {key.split()[0] for key in logs[0]} == {"1", "4"}
    assert logs[0]["1 squelch/first_turn/mi_seq_est"] == pytest.approx(logs[1]["1 squelch/first_turn/mi_seq_est"])
