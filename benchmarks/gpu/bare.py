"""Lets the learner and the scorer run where little more than torch, transformers and numpy is installed.

- Without pydantic, `benchmarks.gpu.settings_stand_in` builds the settings.
- Without accelerate, transformers cannot compare a model folder's headers with the model before it loads the folder.
  The folders here are written by the benchmark itself, and loading compares the names again.

Where both are installed nothing changes. As a plugin of pytest (`-p benchmarks.gpu.bare`) the module does the same for
the tests. Imports the standard library only.
"""

from __future__ import annotations

import importlib.util
import sys

from benchmarks.gpu import settings_stand_in


def prepare() -> None:
    """Puts the stand-ins in place; call it before anything of the project is imported."""
    if not installed("pydantic"):
        sys.modules["pydantic"] = settings_stand_in.module()
    if not installed("accelerate"):
        from actors import model_folder

        vars(model_folder)["check_model_folder"] = model_folder.model_config


def installed(package: str) -> bool:
    """Whether the package can be imported; it is not imported."""
    return package in sys.modules or importlib.util.find_spec(package) is not None


prepare()
