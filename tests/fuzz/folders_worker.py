"""Reads hostile model folders and checkpoints, each in a child process of its own.

    python -m tests.fuzz.folders_worker SEED FIRST COUNT

prints one JSON line. The process imports torch and transformers once; each input is read by a fork of it, so that an
input may end its process. One file of a valid folder is mutated, removed, or replaced by another kind of file.
"""

from __future__ import annotations

import json
import os
import random
import resource
import select
import shutil
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from tests.fuzz.in_process_worker import Found
from tests.fuzz.mutation import mutated, mutated_json
from tests.fuzz.target import NAME, Outcome, outcome

HANG_S = 60.0
"""Seconds that a child may take; a checkpoint is loaded into a model that it has to build first."""
_CEILING = 4 * 2**30
"""Bytes by which a child may grow, so that a fault does not use up the machine."""
MODEL, CHECKPOINT = "model folder", "checkpoint"
Read = Callable[[random.Random, Path, Path], None]


def make_valid(folder: Path) -> None:
    """Writes a small model folder `model` and a checkpoint of it, `checkpoint`."""
    from squelch.envs.config import EnvironmentConfig
    from squelch.learner import process_group
    from squelch.learner.warmup.tiny import build_tiny
    from squelch.learner.warmup.tiny_recipe import recipe_for

    build_tiny(folder / "model", EnvironmentConfig(), 0, recipe_for("FrozenLake").model_copy(update={"tokens": 8_000}))
    process_group.start(0, 1, "127.0.0.1", 0, 60.0, "cpu")
    try:
        _trainer(folder / "model").save(folder / "checkpoint", {"clock": 1})
    finally:
        process_group.stop()


def _trainer(model: Path):
    from squelch.learner.config import LearnerConfig
    from squelch.learner.trainer import Trainer

    return Trainer(model, LearnerConfig(), 0, 1, 0, 1.0)


def read_model(rng: random.Random, folder: Path, valid: Path) -> None:
    """Reads a model folder by one of its readers."""
    import torch

    from squelch.actors.play.codec import ChatCodec
    from squelch.actors.scorer.fixed_model import check_scorer_model
    from squelch.kit.models.model_folder import load_model_folder
    from squelch.kit.readers.score_files import Reader

    def codec() -> None:
        found = ChatCodec(folder)
        found.first_turn([{"role": "system", "content": "a"}, {"role": "user", "content": "b <|end|>"}])

    def samples() -> None:
        rows = [{"prompt": [{"role": "user", "content": "x"}], "reasoning": "a", "completion": None}]
        keys = ("prompt_ids", "reasoning_ids", "prompt_id", "step")
        Reader(folder / "x", folder, 512, None).read([(1, dict.fromkeys(keys) | row) for row in rows])

    readers = (
        lambda: load_model_folder(folder, torch.float32),
        codec,
        lambda: check_scorer_model(str(folder), valid / "model"),
        samples,
    )
    rng.choice(readers)()


def read_checkpoint(_: random.Random, folder: Path, valid: Path) -> None:
    """Reads a checkpoint as `squelch train --resume` does."""
    from squelch.cluster.loop.persistence.state import read_state
    from squelch.learner import process_group
    from squelch.learner.checkpoint.folder import load_weights

    read_state(folder)
    process_group.start(0, 1, "127.0.0.1", 0, 60.0, "cpu")
    load_weights(folder, _trainer(valid / "model").policy)


READERS: dict[str, tuple[str, Read]] = {MODEL: ("model", read_model), CHECKPOINT: ("checkpoint", read_checkpoint)}


def make_hostile(rng: random.Random, valid: Path, folder: Path) -> None:
    """Writes a copy of a valid folder with one or two hostile files."""
    shutil.copytree(valid, folder)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    others = [path.read_bytes()[:65_536] for path in files[:6]]
    for path in rng.sample(files, rng.choice((1, 1, 2))):
        _spoil(rng, path, others)


def _spoil(rng: random.Random, path: Path, others: list[bytes]) -> None:
    data, what = path.read_bytes(), rng.randrange(10)
    path.unlink()
    if what == 0:
        os.mkfifo(path)
    elif what == 1:
        path.symlink_to(rng.choice(("/dev/zero", "/dev/stdin", "/etc", path.name, "/nowhere")))
    elif what == 2:
        path.mkdir()
    elif what < 7 and path.suffix == ".json":
        path.write_bytes(mutated_json(rng, data))
    elif what < 7 and path.suffix == ".safetensors":
        path.write_bytes(_hostile_tensors(rng, data))
    elif what != 3:
        path.write_bytes(mutated(rng, data[: 2**20], others))


def _hostile_tensors(rng: random.Random, data: bytes) -> bytes:
    """Weights with a mutated header. The header is JSON behind its length, 8 bytes."""
    (size,) = struct.unpack("<Q", data[:8])
    header = mutated_json(rng, data[8 : 8 + size])
    stated = rng.choice((len(header), len(header), len(header), 0, 2**40, 2**63, len(data)))
    return struct.pack("<Q", stated) + header + data[8 + size :]


def run(kind: str, valid: Path, seed: int, numbers: range) -> Found:
    """Reads the inputs of these numbers, each in a fork of this process."""
    name, read = READERS[kind]
    found = Found(kind)
    for number in numbers:
        rng = random.Random(f"{kind} {seed} {number}")
        with tempfile.TemporaryDirectory(prefix="fuzz-") as work:
            make_hostile(rng, valid / name, Path(work) / NAME)
            start = time.perf_counter()
            seen, grown = _in_a_fork(lambda: read(rng, Path(work) / NAME, valid))  # noqa: B023  (called at once)
        found.slowest_s = max(found.slowest_s, time.perf_counter() - start)
        found.inputs += 1
        found.refused += seen.refused
        found.growth_mib = max(found.growth_mib, grown / 2**20)
        if seen.fault is not None:
            found.faults.append((number, seen.fault))
    return found


def _in_a_fork(read: Callable[[], None]) -> tuple[Outcome, int]:
    """How the reading ended, and the bytes by which the child grew."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        _child(read, writing)
    os.close(writing)
    with open(reading, "rb") as pipe:
        told = pipe.read() if select.select([pipe], [], [], HANG_S)[0] else None
    if told is None:
        os.kill(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    grown = max(0, usage.ru_maxrss - before) * 1024
    if told is None:
        return Outcome(True, f"a hang: more than {HANG_S:g} s"), grown
    if not told:
        return Outcome(True, f"the process ended with status {status}"), grown
    return Outcome(**json.loads(told)), grown


def _child(read: Callable[[], None], writing: int) -> None:
    """Reads, tells how it ended, and leaves without the parent's clean-up."""
    try:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        resource.setrlimit(resource.RLIMIT_DATA, (_CEILING, _CEILING))
        told = json.dumps(asdict(outcome(read))).encode()
    except BaseException as error:  # a panic in Rust is no Exception
        told = json.dumps(asdict(Outcome(True, f"{type(error).__name__}: {str(error)[:300]}"))).encode()
    os.write(writing, told)
    os._exit(0)


def _import_for_the_forks() -> None:
    import torch
    from transformers import AutoModelForCausalLM, Qwen2ForCausalLM  # noqa: F401

    from squelch.cluster.loop.persistence import state  # noqa: F401
    from squelch.kit.readers import score_files  # noqa: F401
    from squelch.learner import trainer  # noqa: F401

    torch.set_num_threads(1)


def main(argv: list[str]) -> None:
    """Runs the inputs; see the module's head. Half of them are model folders, half checkpoints."""
    os.environ |= {"TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    seed, first, count = map(int, argv)
    with tempfile.TemporaryDirectory(prefix="fuzz-valid-") as valid:
        if os.fork() == 0:  # torch's threads would not survive a later fork of the process that started them
            make_valid(Path(valid))
            os._exit(0)
        os.wait()
        _import_for_the_forks()
        for kind in READERS:
            found = run(kind, Path(valid), seed, range(first, first + count // 2))
            sys.stdout.write(json.dumps(asdict(found)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
