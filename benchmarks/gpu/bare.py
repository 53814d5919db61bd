"""Lets the learner and the scorer run where little more than torch, transformers and numpy is installed.

- Without pydantic, `benchmarks.gpu.settings_stand_in` builds the settings.
- Without accelerate, transformers cannot compare a model folder's headers with the model before it loads the folder.
  The folders here are written by the benchmark itself, and loading compares the names again.
- Without xxhash, BLAKE2b computes the checksum of published weights, which takes longer.

Where all are installed nothing changes. As a plugin of pytest (`-p benchmarks.gpu.bare`) the module does the same for
the tests. Imports the standard library only.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from functools import partial
from types import ModuleType

from benchmarks.gpu import settings_stand_in


def prepare() -> None:
    """Puts the stand-ins in place; call it before anything of the project is imported."""
    if not installed("pydantic"):
        sys.modules["pydantic"] = settings_stand_in.module()
    if not installed("xxhash"):
        sys.modules["xxhash"] = ModuleType("xxhash")
        vars(sys.modules["xxhash"])["xxh3_128"] = partial(hashlib.blake2b, digest_size=16)
    if not installed("accelerate"):
        from squelch.actors import model_folder

        vars(model_folder)["check_model_folder"] = model_folder.model_config


def installed(package: str) -> bool:
    """Whether the package can be imported; it is not imported."""
    return package in sys.modules or importlib.util.find_spec(package) is not None


prepare()
