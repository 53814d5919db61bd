"""Copies a model folder for other programs, in another type of numbers if that is asked."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from squelch.kit.base.disk import partial_path, put_in_place
from squelch.kit.models.model_folder import INDEX, read_config, weight_files
from squelch.kit.models.written import save_tensors


def copy_model(source: Path, target: Path, dtype: str | None, beside: Mapping[str, str]) -> None:
    """Copies the files of a checked model folder, with the floating-point weights in `dtype`; None: as they are. One
    file of weights is in memory at a time. `beside`: further files, by name. `target` appears once it is whole.

    Raises OSError if it cannot be written.
    """
    aside = partial_path(target)
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    weights, size = {path.name for path in weight_files(source)}, 0
    for path in sorted(source.iterdir()):
        if path.name in weights and dtype is not None:
            kind: torch.dtype = getattr(torch, dtype)
            read = load_file(path).items()
            tensors = {name: one.to(kind) if one.is_floating_point() else one for name, one in read}
            save_tensors(tensors, aside / path.name)
            size += sum(one.nbytes for one in tensors.values())
        elif path.is_file():
            shutil.copyfile(path, aside / path.name)
    if dtype is not None:
        config = {key: value for key, value in read_config(source).items() if key != "torch_dtype"}
        _write(aside / "config.json", {**config, "dtype": dtype})
        if (aside / INDEX).is_file():
            index = json.loads((aside / INDEX).read_text(encoding="utf-8"))
            _write(aside / INDEX, {**index, "metadata": {"total_size": size}})
    for name, text in beside.items():
        (aside / name).write_text(text, encoding="utf-8")
    put_in_place(aside, target)


def _write(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
