"""Loads new weights into a vLLM engine: a back end of vLLM's own weight-transfer interface.

The rollout worker takes a bundle's arrays from the Ray object store, writes them to one file in memory
(`actors.rollout.weights_file`), and sends that file's path to the engine's process, where
`ObjectStoreWeightTransferEngine` maps the file and loads it. Every engine process finds the back end through the
`vllm.general_plugins` entry point `squelch`, which calls `register`.

Invariants:

- Nothing is loaded before the checksum of all received arrays equals the learner's: after a refused transfer the engine
  still has its previous weights.
- A bundle that lacks a parameter of the model is an error.
- After loading, every packed copy of a weight is rebuilt. On CPU vLLM keeps a separate packed copy of an output head
  that is tied to the embedding, and vLLM's own reload does not update that copy.

The worker waits for the engine's process for at most `update_timeout_s`; the engine's process waits for nobody.
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
"""Part of an error's message if the engine still has its previous weights: only the message leaves its process."""


@dataclass
class ObjectStoreInitInfo(WeightTransferInitInfo):
    """Empty: no process group is built."""


@dataclass
class ObjectStoreUpdateInfo(WeightTransferUpdateInfo):
    """One version's weights: the file, the table of its arrays, and their expected checksum."""

    path: str
    version: int
    checksum: str
    arrays: list[dict[str, Any]] = field(default_factory=list)

    def specs(self) -> list[ArraySpec]:
        """The table's entries, in published order."""
        return [ArraySpec.of(entry) for entry in self.arrays]


def _as_tensor(array: np.ndarray, bfloat16: bool) -> torch.Tensor:
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) if bfloat16 else torch.from_numpy(array)


class ObjectStoreWeightTransferEngine(WeightTransferEngine[ObjectStoreInitInfo, ObjectStoreUpdateInfo]):
    """Loads one version at a time from a mapped file. One update transfers a complete version."""

    init_info_cls = ObjectStoreInitInfo
    update_info_cls = ObjectStoreUpdateInfo
    supports_draft_weight_update = False

    def init_transfer_engine(self, init_info: ObjectStoreInitInfo) -> None:
        """Does nothing: no connection is needed."""

    def start_weight_update(self) -> None:
        """Does nothing: the model is prepared for loading only after the checksum has been verified."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Like the base class, but synchronises only if there is an accelerator."""
        self.receive_weights(self.parse_update_info(update_info))
        if not current_platform.is_cpu():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: ObjectStoreUpdateInfo) -> None:
        """Map, verify and load a version. Raises RuntimeError with both checksums if they differ."""
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
                model: Any = self.model
                loaded = model.load_weights(iter(weights))
            finally:
                finalize_layerwise_reload(self.model, self.model_config)
        self._repack_embeddings()
        missing = sorted(expected - set(loaded))
        if missing:
            names = ", ".join(missing[:3])
            raise RuntimeError(f"weights of version {version} do not hold {len(missing)} parameters, such as {names}")

    def _repack_embeddings(self) -> None:
        """On CPU, rebuild the packed copies of embeddings and heads: vLLM's reload leaves a tied head's copy stale."""
        if not current_platform.is_cpu():
            return
        for module in self.model.modules():
            if isinstance(module, VocabParallelEmbedding):
                method: Any = module.quant_method
                method.process_weights_after_loading(module)

    def finish_weight_update(self) -> None:
        """Does nothing: `receive_weights` has already loaded the complete version."""

    def shutdown(self) -> None:
        """Does nothing: the back end holds no resources."""


@contextmanager
def _quiet_reload() -> Iterator[None]:
    """Silences vLLM's wrong warning that a tied head failed to load: `_load` checks every parameter by name."""
    reload_logger = logging.getLogger("vllm.model_executor.model_loader.reload.layerwise")
    level = reload_logger.level
    reload_logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        reload_logger.setLevel(level)


def register() -> None:
    """The plugin's entry point, which vLLM calls in every process of an engine, possibly more than once."""
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, ObjectStoreWeightTransferEngine)
        watch_parent()
