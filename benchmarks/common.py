"""Code that the benchmarks share: their two flags, programs that run to their end, a random policy on disk, and the
printing of metrics."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from squelch.kit.process.terminal import aligned, say

if TYPE_CHECKING:
    from transformers import Qwen2Config

REPOSITORY = Path(__file__).resolve().parents[1]
STOP_S, LOG_TAIL = 60.0, 4000
WITHOUT_VLLM = """import runpy, sys
sys.modules['vllm'] = None
del sys.argv[0]
runpy.run_module(sys.argv[0], run_name='__main__')"""
PAD_ID, PAD = 0, "<pad>"
END_ID, END = 1, "<end>"


def restart_with(variables: Mapping[str, str], module: str, argv: Sequence[str] | None) -> None:
    """Restarts this program with these environment variables unless it has them: they are read at process start."""
    if any(os.environ.get(name) != value for name, value in variables.items()):
        command = [sys.executable, "-m", module, *(sys.argv[1:] if argv is None else argv)]
        os.execve(sys.executable, command, os.environ | variables)


def without_vllm(module: str, *words: str) -> list[str]:
    """The command that runs a module in a Python without vLLM, which TRL loads where it is installed; it takes long."""
    return [sys.executable, "-c", WITHOUT_VLLM, module, *words]


def finished(
    command: Sequence[str],
    variables: Mapping[str, str],
    log: Path,
    name: str,
    limit_s: float,
    folder: Path = REPOSITORY,
) -> None:
    """Runs a program to its end, in a session of its own and in a folder. RuntimeError with the end of its log if it
    fails, or if it does not end in time."""
    with log.open("w") as output:
        process = subprocess.Popen(
            command,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, **variables},
            start_new_session=True,
        )
    try:
        code: int | None = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        code = None
    finally:
        end(process, STOP_S)
    if code != 0:
        what = f"did not end within {limit_s:g} s" if code is None else f"ended with code {code}"
        raise RuntimeError(f"{name} {what}; its log ends with:\n{log.read_text()[-LOG_TAIL:]}")


def output_of(command: Sequence[str], variables: Mapping[str, str], limit_s: float, folder: Path = REPOSITORY) -> str:
    """What a command printed that runs in a folder. RuntimeError with the end of its output if it fails."""
    env = {**os.environ, **variables}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=limit_s, check=False)
    if done.returncode:
        raise RuntimeError(f"{command} in {folder} failed:\n{(done.stdout + done.stderr)[-LOG_TAIL:]}")
    return done.stdout


def end(process: subprocess.Popen[Any], patience_s: float) -> None:
    """Ends a process that leads a session, with its children; a run ends its actors itself if it has the time."""
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(patience_s)
    with suppress(ProcessLookupError):  # usually no process is left
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def search_path(*after: Path) -> str:
    """PYTHONPATH with this checkout before it, and folders after it."""
    return os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"), *map(str, after))))


def parser_of(description: str | None, quick_help: str) -> argparse.ArgumentParser:
    """A parser of `--quick` and `--json`, which every benchmark has."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=quick_help)
    parser.add_argument("--json", action="store_true", help="JSON instead of the table")
    return parser


def arguments(description: str | None, quick_help: str) -> argparse.Namespace:
    """Parses `--quick` and `--json`, of a benchmark that has no other flag."""
    return parser_of(description, quick_help).parse_args()


def small_qwen2(*, vocabulary: int, width: int, layers: int, hidden: int, heads: int, **others: Any) -> Qwen2Config:
    """A Qwen2 shape with half as many key-value heads as heads and a tied head. `others`: further settings of
    transformers' Qwen2Config, which win."""
    from transformers import Qwen2Config

    others.setdefault("tie_word_embeddings", True)
    return Qwen2Config(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        **others,
    )


def random_qwen2(folder: Path, *, seed: int, **shape: int) -> int:
    """Writes a random float32 model of `small_qwen2`'s shape as a Hugging Face folder, with the tokenizer of
    `word_tokenizer`. Returns its number of parameters."""
    import torch
    from transformers import Qwen2ForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    torch.manual_seed(seed)
    config = small_qwen2(
        **shape,
        max_position_embeddings=1024,
        pad_token_id=PAD_ID,
        eos_token_id=None,  # vLLM would always stop at it; the tokenizer has one
        bos_token_id=None,
    )
    model = Qwen2ForCausalLM(config)
    model.save_pretrained(folder)
    word_tokenizer(folder, shape["vocabulary"])
    return sum(parameter.numel() for parameter in model.parameters())


def word_tokenizer(folder: Path, vocabulary: int) -> None:
    """Writes a tokenizer that maps the word `t17` to the id 17 and back, so that a text can encode any ids.

    Load it with `PreTrainedTokenizerFast`: `AutoTokenizer` treats every tokenizer in a Qwen2 folder as Qwen2's own.
    """
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit
    from transformers import PreTrainedTokenizerFast

    words = {word(index): index for index in range(vocabulary)}
    tokenizer = Tokenizer(WordLevel(words, unk_token=PAD))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token=PAD, eos_token=END)
    fast.save_pretrained(folder)


def word(index: int) -> str:
    """The word whose id is `index`."""
    return {PAD_ID: PAD, END_ID: END}.get(index, f"t{index}")


def print_metrics(
    metrics: Mapping[str, Any],
    as_json: bool,
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    notes: Sequence[str],
) -> None:
    """Prints `metrics` as one JSON object, or as `printed`."""
    say(json.dumps(metrics) if as_json else printed(columns, rows, notes))


def printed(columns: Sequence[str], rows: Sequence[Sequence[Any]], notes: Sequence[str]) -> str:
    """A table and `notes` under it."""
    return "\n".join([*aligned([[_text(cell) for cell in row] for row in (columns, *rows)]), *notes])


def print_targets(metrics: Mapping[str, Any], as_json: bool, targets: Mapping[str, str]) -> None:
    """Prints a line for each metric with its target, or JSON."""
    shown = {key: value if isinstance(value, str) else format(value, ",.5g") for key, value in metrics.items()}
    rows = [[key, value, targets.get(key, "")] for key, value in shown.items()]
    print_metrics(metrics, as_json, ("metric", "value", "target"), rows, [])


def markdown_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table in Markdown; the cells are taken as they are."""
    return [
        "| " + " | ".join(columns) + " |",
        "|" + "---|" * len(columns),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]


def _text(cell: Any) -> str:
    return f"{cell:,.3f}" if isinstance(cell, float) else str(cell)
