"""How new weights enter a vLLM engine: a back end of vLLM's own weight-transfer interface.

The rollout worker takes a bundle's arrays from the Ray object store, lays them into one file in memory
(`actors.rollout.weights_file`), and names that file to the engine's process, where `ObjectStoreWeightTransferEngine`
maps it and loads it. Every engine process knows the back end through the `vllm.general_plugins` entry point `squelch`,
which calls `register`.

Invariants:

- Nothing is loaded before the checksum over everything received equals the learner's: a refused transfer leaves the
  engine with the weights it had.
- Loading is all or nothing as far as names go: a parameter of the model that the bundle does not hold is an error.
- After loading, every packed copy of a weight is made anew. On CPU vLLM packs an output head that is tied to the
  embedding apart from it, and its own reload leaves that copy stale.

Who waits: the engine's process only for itself, the worker for the engine, within `update_timeout_s`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.platforms import current_platform

from actors.process.parent_watch import watch_parent
from actors.rollout.weights_file import ArraySpec, read_arrays
from actors.weights import checksum

BACKEND = "ray_object_store"
NOTHING_LOADED = "nothing was loaded"
"""Stands in an error after which the engine has the weights it had; a message is all that crosses from its process."""


@dataclass
class ObjectStoreInitInfo(WeightTransferInitInfo):
    """Nothing to agree on: no process group is built."""


@dataclass
class ObjectStoreUpdateInfo(WeightTransferUpdateInfo):
    """One version's weights: the file, what lies in it, and the checksum it must have."""

    path: str
    version: int
    checksum: str
    arrays: list[dict[str, Any]] = field(default_factory=list)

    def specs(self) -> list[ArraySpec]:
        return [ArraySpec.of(entry) for entry in self.arrays]


def _as_tensor(array: np.ndarray, bfloat16: bool) -> torch.Tensor:
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) if bfloat16 else torch.from_numpy(array)


class ObjectStoreWeightTransferEngine(WeightTransferEngine[ObjectStoreInitInfo, ObjectStoreUpdateInfo]):
    """Loads one version at a time from a mapped file. A whole version is one update."""

    init_info_cls = ObjectStoreInitInfo
    update_info_cls = ObjectStoreUpdateInfo
    supports_draft_weight_update = False

    def init_transfer_engine(self, init_info: ObjectStoreInitInfo) -> None:
        """Nothing to set up."""

    def start_weight_update(self) -> None:
        """Nothing yet: the model is only opened for loading once a transfer's checksum has been found right."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """As the base class, but synchronising only where there is an accelerator."""
        self.receive_weights(self.parse_update_info(update_info))
        if not current_platform.is_cpu():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: ObjectStoreUpdateInfo) -> None:
        """Map, verify, load. Raises RuntimeError with both figures when the checksum is another."""
        specs = update_info.specs()
        arrays = read_arrays(update_info.path, specs)
        found = checksum(arrays.items())
        if found != update_info.checksum:
            raise RuntimeError(
                f"weights of version {update_info.version} arrived with checksum {found}, published was "
                f"{update_info.checksum}; {NOTHING_LOADED}"
            )
        self._load([(spec.name, _as_tensor(arrays[spec.name], spec.bfloat16)) for spec in specs], update_info.version)

    def _load(self, weights: list[tuple[str, torch.Tensor]], version: int) -> None:
        expected = {name for name, _ in self.model.named_parameters()}  # a tied head counts once, as the embedding
        with _quiet_reload():
            initialize_layerwise_reload(self.model)
            try:
                loaded = self.model.load_weights(iter(weights))
            finally:
                finalize_layerwise_reload(self.model, self.model_config)
        self._repack_embeddings()
        missing = sorted(expected - set(loaded))
        if missing:
            names = ", ".join(missing[:3])
            raise RuntimeError(f"weights of version {version} do not hold {len(missing)} parameters, such as {names}")

    def _repack_embeddings(self) -> None:
        """CPU: embeddings and heads keep a packed copy beside the weight; a tied head's was not made anew."""
        if not current_platform.is_cpu():
            return
        for module in self.model.modules():
            if isinstance(module, VocabParallelEmbedding):
                module.quant_method.process_weights_after_loading(module)

    def finish_weight_update(self) -> None:
        """Nothing left: `receive_weights` has finished the whole version."""

    def shutdown(self) -> None:
        """Nothing is held."""


@contextmanager
def _quiet_reload() -> Iterator[None]:
    """vLLM warns that a tied head failed to load, every time; `_load` checks by name that nothing failed."""
    reload_logger = logging.getLogger("vllm.model_executor.model_loader.reload.layerwise")
    level = reload_logger.level
    reload_logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        reload_logger.setLevel(level)


def register() -> None:
    """vLLM's plugin entry point, called in every process of an engine, and possibly more than once."""
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, ObjectStoreWeightTransferEngine)
        watch_parent()
