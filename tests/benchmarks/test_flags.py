"""Every benchmark has the same two flags."""

import importlib
import re
import sys
from pathlib import Path

import pytest

import benchmarks
from benchmarks import common


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


def test_a_text_has_exactly_the_ids_of_its_words(tmp_path):
    from transformers import PreTrainedTokenizerFast

    common.word_tokenizer(tmp_path, 64)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert tokenizer([" ".join(map(common.word, range(64)))])["input_ids"] == [[*range(64)]]
