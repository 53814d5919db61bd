"""Checkpoints that somebody else wrote: a payload in pickle, and an unpickler that must not be reached."""

import json
import os
import pickle
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.mark),)


def write_older(path: Path, mark: Path, parameters: Mapping[str, list[int]]) -> Path:
    """A checkpoint as torch.distributed.checkpoint wrote it, of a model with these parameters. Its metadata and shards
    make the folder `mark` if anything unpickles them; everything else of it is as it should be."""
    (path / "sharded").mkdir(parents=True)
    (path / "hf").mkdir()
    plant(path / "sharded", mark)
    described = {"optimizer_steps": 1, "algorithm": "", "parameters": parameters, "identity": {}, "others": {}}
    (path / "model.json").write_text(json.dumps(described))
    (path / "loop.json").write_text("{}")
    return path


def plant(folder: Path, mark: Path) -> None:
    """Writes the payload under the names that torch.distributed.checkpoint reads."""
    for name in (".metadata", "__0_0.distcp"):
        (folder / name).write_bytes(pickle.dumps(Payload(mark)))


@contextmanager
def pickle_forbidden() -> Iterator[None]:
    """In this process no pickle can be read: not by `pickle`, in C or Python, nor by torch, nor by a subclass."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise AssertionError("something is unpickled")

    class Refusing:
        def __init__(self, *_: object, **__: object) -> None:
            refuse()

    names = {"Unpickler": Refusing, "_Unpickler": Refusing, "load": refuse, "loads": refuse, "_loads": refuse}
    with mock.patch.multiple(pickle, **names), mock.patch("torch.load", refuse):
        yield
