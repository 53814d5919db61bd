"""TRL's side on one GPU: `benchmarks.peer.on_gpu.trl_worker` in a process, on the packages of this environment."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.common import REPOSITORY, search_path
from benchmarks.gpu.parts import installed
from benchmarks.peer.on_gpu.sides import Side
from benchmarks.peer.on_gpu.work import MEASURED, WHOLE_GPU, GpuWork

SITE = REPOSITORY / ".cache" / "trl"
"""Where `deploy/setup.sh trl` puts TRL, which may also be installed."""
GIB = {"as_it_comes": 34.0, "tuned-16": 44.0, "tuned-32": 60.0, "tuned-64": 84.0}
"""Of the GPU, with the engine, at the shape of Qwen2.5-0.5B."""


def missing() -> str | None:
    """What to install if TRL is not there."""
    there = SITE.is_dir() or (installed("trl") and installed("datasets"))
    return None if there else "TRL is not installed: deploy/setup.sh trl"


def variables() -> dict[str, str]:
    """With which TRL is imported: its folder comes after this environment's, whose torch and vLLM it uses."""
    return {"PYTHONPATH": search_path(SITE), "TOKENIZERS_PARALLELISM": "false"}


class TrlSide(Side):
    """TRL's variants, one after another on one engine: with sleep for all of them, or for none."""

    def __init__(self, name: str, folder: Path, work: GpuWork, variants: Sequence[str]) -> None:
        gib = max(GIB.get(variant.partition("+")[0], WHOLE_GPU) for variant in variants)
        super().__init__(name, folder, gib if work.shape == MEASURED else WHOLE_GPU)
        self.variants, self.out = list(variants), folder / f"{name}.json"

    def command(self) -> list[str]:
        """The worker's command line."""
        own = [str(self.folder), str(self.out), *self.variants]
        return [sys.executable, "-m", "benchmarks.peer.on_gpu.trl_worker", *own]

    def variables(self) -> Mapping[str, str]:
        """Those of `variables`."""
        return variables()

    def found(self) -> dict[str, dict[str, Any]]:
        """A row for each variant that has ended."""
        if not self.out.exists():
            return {}
        found = json.loads(self.out.read_text())
        versions = found.pop("versions")
        return {f"{self.name}, {variant}": row | {"versions": versions} for variant, row in found.items()}
