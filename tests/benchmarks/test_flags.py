"""Every benchmark has the same two flags; the peer benchmark's work is what its metrics claim."""

import importlib
import re
import sys
from pathlib import Path

import pytest

import benchmarks
from benchmarks import common
from benchmarks.peer import trl as peer_trl
from benchmarks.peer import work as peer_work
from benchmarks.peer.work import Work


def commands(folder: Path) -> list[str]:
    """The modules below a package's folder that are commands, without those that commands run as workers."""
    files = (path for path in folder.rglob("*.py") if 'if __name__ == "__main__":' in path.read_text())
    names = (".".join(path.relative_to(folder).with_suffix("").parts) for path in files)
    return sorted(name for name in names if not name.endswith("_worker"))


BENCHMARKS = commands(Path(benchmarks.__file__).parent)


def flags_of(module: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> set[str]:
    """The flags that a command's `--help` names."""
    monkeypatch.setattr(sys, "argv", [module, "--help"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(module).main()
    assert ended.value.code == 0
    return set(re.findall(r"--\w+", capsys.readouterr().out.split("options:")[1]))


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_can_be_quick_and_can_speak_json(name, monkeypatch, capsys):
    assert {"--quick", "--json"} <= flags_of(f"benchmarks.{name}", monkeypatch, capsys)


@pytest.mark.parametrize("name", BENCHMARKS)
def test_a_benchmark_refuses_a_flag_it_does_not_have(name, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", [name, "--quick", "--json", "--no-such-flag"])
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(f"benchmarks.{name}").main()
    assert ended.value.code == 2
    assert "--no-such-flag" in capsys.readouterr().err


def test_quick_does_not_install_the_peer(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(peer_trl, "PEER_VENV", tmp_path / "absent")
    with pytest.raises(SystemExit) as ended:
        peer_trl.peer_python(may_install=False)
    assert ended.value.code == 2
    assert "absent" in capsys.readouterr().err
    assert not (tmp_path / "absent").exists()


def test_a_text_has_exactly_the_ids_of_its_words(tmp_path):
    from transformers import PreTrainedTokenizerFast

    common.word_tokenizer(tmp_path, 64)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    prompt = Work(num_steps=1, vocabulary=64).prompts(0)[0]
    assert tokenizer([" ".join(map(common.word, prompt))])["input_ids"] == [prompt]


def test_prompts_are_a_function_of_the_step_and_new_in_every_one():
    work = Work(num_steps=2)
    assert work.prompts(0) == Work(num_steps=9).prompts(0)
    assert not set(map(tuple, work.prompts(0))) & set(map(tuple, work.prompts(1)))
    assert {len(prompt) for prompt in work.prompts(0)} == {work.prompt_tokens}


def test_work_cut_short_or_on_other_prompts_is_refused():
    work = Work(num_steps=2, num_prompts=2, num_samples=2, new_tokens=3)
    prompts = [prompt for prompt in work.prompts(1) for _ in range(2)]
    work.check(prompts, [[1, 2, 3]] * 4, 1)
    with pytest.raises(RuntimeError, match=r"\[2, 3\] tokens"):
        work.check(prompts, [[1, 2, 3]] * 3 + [[1, 2]], 1)
    with pytest.raises(RuntimeError, match="prompts"):
        work.check(prompts, [[1, 2, 3]] * 4, 0)


def test_work_reaches_the_workers_unchanged(tmp_path):
    work = Work(num_steps=3, new_tokens=5)
    peer_work.save(work, tmp_path)
    assert peer_work.load(tmp_path) == work


@pytest.mark.slow
def test_the_ratio_is_of_median_steps_and_the_target_is_held_to_it():
    def row(step: float) -> dict[str, float]:
        return {"step": step, "generation": step / 2, "update": step / 2, "publication": 0.0, "cpu": step}

    ready: dict[str, dict[str, object]] = {trainer: {} for trainer in peer_trl.TRAINERS}
    steps = {"squelch": [row(1.0), row(2.0), row(50.0)], "trl": [row(7.0), row(9.0), row(8.0)], "trl_tuned": [row(3.0)]}
    found = peer_trl.summary(Work(num_steps=4), 10, ready, steps)
    assert found["ratio"] == 4.0 and found["ratio_tuned"] == 1.5 and found["reached"]
    steps["trl"][2] = row(7.9)
    assert peer_trl.summary(Work(num_steps=4), 10, ready, steps)["reached"] is False
    lesser = Work(num_steps=4, new_tokens=16)
    assert peer_trl.summary(lesser, 10, ready, steps)["reached"] is None
