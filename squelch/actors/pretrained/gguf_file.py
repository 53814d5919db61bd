"""Converts GGUF files into ordinary Hugging Face folders, once each.

    file, SHA-256 --> cache/NAME-DIGEST/     config.json, model.safetensors (float32), tokenizer, chat template
                                             squelch_source.json: origin, digest of the file, digests of all files here

A folder is reused if `squelch_source.json` names the same content, every file still has its digest, and no file was
added; any other folder is converted again.

| waits | for | unblocked by | on time-out |
|---|---|---|---|
| a start | another process that converts the same file | its end | ValueError that names the process |
| a start | `gguf_worker`, which reads the file | its end, or a bound | ValueError that names the file |

Invariants:

- A folder under its final name is complete: it is written beside it and renamed.
- The file is read by a process with bounded memory and time, never by this one.
- Converted weights are those of the quantised file, not those that were published before quantisation; the message and
  `squelch_source.json` say so.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from squelch.actors.pretrained import gguf_worker
from squelch.actors.process.folders import EVERYTHING, Entry, file_digest, holds, listing
from squelch.kit.base.disk import partial_path, put_in_place
from squelch.kit.base.file_lock import held
from squelch.kit.untrusted.files import MIB, Unreadable, open_file, read_bytes
from squelch.kit.untrusted.text import parse_object

STAMP = "squelch_source.json"
MAGIC = b"GGUF"
WAIT_S = 1800.0
"""Seconds to wait for another process that converts the same file, and for a conversion; a model of 135 M parameters
takes about 15 on a quiet core."""
SPARE_BYTES = 4 << 30
"""Memory of a conversion besides the tensors: torch, transformers, the tokenizer."""
GROWTH = 24
"""Bytes of memory and disk for each byte of the file: one bit becomes 32, and the tokenizer counts too."""
_KEPT_VARIABLES = ("HOME", "PATH", "LANG", "TMPDIR", "OMP_NUM_THREADS", "LD_LIBRARY_PATH")
Say = Callable[[str], None]


def converted(file: Path, cache: Path, say: Say, sha256: str = "", origin: str = "") -> Path:
    """The folder of the converted file, in `cache`.

    Args:
        sha256: the digest that the file must have; without it any file is taken.
        origin: where the file comes from, for the message and the folder's stamp; by default the file's name.

    Raises:
        Unreadable: the file is damaged, has another digest, or cannot be converted.
    """
    digest = _digest(file)
    if sha256 and digest != sha256:
        raise Unreadable(
            f"{file}: its SHA-256 is {digest}, but {origin or file.name} has {sha256}; it was changed or is another "
            "version: install it again"
        )
    target = folder_of(file.name, digest, cache)
    if intact(target, digest):
        return target
    cache.mkdir(parents=True, exist_ok=True)
    with held(cache / f".{target.name}.lock", "converting this model", WAIT_S):
        if not intact(target, digest):
            _convert(file, target, digest, origin or file.name, say)
    return target


def folder_of(name: str, digest: str, cache: Path) -> Path:
    """The folder in which a file of this name and digest is converted, whether it is there or not."""
    return cache / f"{_plain(Path(name).stem)}-{digest[:16]}"


def intact(folder: Path, digest: str) -> bool:
    """Whether the folder is the conversion of the file with this digest: none of its files has changed, and none was
    added, which might be another template or other stop ids."""
    path = folder / STAMP
    if not path.is_file():
        return False
    try:
        stamp = parse_object(read_bytes(path, MIB), str(path))
        entries = TypeAdapter(tuple[Entry, ...]).validate_python(stamp.get("files"))
    except (Unreadable, ValidationError):
        return False
    return stamp.get("sha256") == digest and bool(entries) and holds(folder, entries, EVERYTHING, besides=STAMP)


def _digest(file: Path) -> str:
    """SHA-256 of a GGUF file; Unreadable for any other file."""
    with open_file(file) as opened:
        if opened.read(len(MAGIC)) != MAGIC:
            raise Unreadable(f"{file} is no GGUF file: it does not begin with the letters GGUF")
    return file_digest(file)


def _plain(name: str) -> str:
    """The name with `_` in place of characters that have a meaning in paths or terminals."""
    return re.sub(r"[^A-Za-z0-9.-]", "_", name).lstrip(".")[:100]


def _convert(file: Path, target: Path, digest: str, origin: str, say: Say) -> None:
    if importlib.util.find_spec("gguf") is None:
        raise Unreadable(f"{file}: reading it needs the package gguf: pip install 'squelch-rl[gguf]'")
    _require_space(file, target.parent)
    say(f"converting {origin} in {target} (once)")
    aside = partial_path(target)
    shutil.rmtree(aside, ignore_errors=True)  # of a killed process: the lock is ours
    aside.mkdir()
    try:
        facts = _worked(file, aside)
        _check(aside, file)
        files = [asdict(entry) for entry in listing(aside)]
        stamp = {"origin": origin, "file": file.name, "sha256": digest, **facts, "files": files}
        (aside / STAMP).write_text(json.dumps(stamp, indent=2) + "\n")
        put_in_place(aside, target)
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    say(f"{target.name}: {facts['parameters'] / 1e6:.1f} M parameters in float32{_lossy(facts['quantisation'])}")


def _lossy(quantisation: str) -> str:
    """Says what a quantised file's weights are."""
    bits = re.search(r"\d+", quantisation)
    if bits is None:
        return ""
    return (
        f", dequantised from {bits[0]} bits ({quantisation}): they differ from the weights that were published in "
        "higher precision"
    )


def _require_space(file: Path, cache: Path) -> None:
    needed, free = file.stat().st_size * GROWTH // 3, shutil.disk_usage(cache).free
    if free < needed:
        raise Unreadable(
            f"{file}: its conversion may take {needed / 2**30:.1f} GiB in {cache}, where {free / 2**30:.1f} GiB are "
            "free; free some, or name another folder with model.pretrained_cache"
        )


def _worked(file: Path, folder: Path) -> dict[str, Any]:
    """What `gguf_worker` says about the file that it has converted. Unreadable if it failed or broke its bounds."""
    size = file.stat().st_size
    bounds = [str(SPARE_BYTES + GROWTH * size), str(600 + size // (10 * MIB))]
    variables = {name: os.environ[name] for name in _KEPT_VARIABLES if name in os.environ}
    try:
        done = subprocess.run(
            [sys.executable, "-I", gguf_worker.__file__, str(file.resolve()), str(folder.resolve()), *bounds],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=WAIT_S,
            env={**variables, "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"},
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise Unreadable(f"{file}: its conversion took more than {WAIT_S:g} s") from error
    if done.returncode == 0:
        return json.loads(done.stdout.decode().rpartition("\n")[2])
    last = _reason(done.stderr.decode(errors="replace"), SPARE_BYTES + GROWTH * size)
    if done.returncode < 0:
        last = f"its process was ended by {signal.Signals(-done.returncode).name}"
    raise Unreadable(f"{file} cannot be converted ({last}); take another file, or a Hugging Face folder of the model")


def _reason(trace: str, most_bytes: int) -> str:
    """The reason on the last line of a trace. `most_bytes`: the process's memory bound."""
    kind, _, said = trace.strip().rpartition("\n")[2].partition(": ")
    if kind == "MemoryError":
        return f"it needs more than the {most_bytes / 2**30:.1f} GiB that a file of its size may take"
    return (said or kind)[:500]


def _check(folder: Path, file: Path) -> None:
    from squelch.kit.models.model_folder import check_model_folder

    try:
        check_model_folder(folder)
    except Unreadable as error:
        raise Unreadable(f"{file} was converted, but cannot be used: {error}") from error
