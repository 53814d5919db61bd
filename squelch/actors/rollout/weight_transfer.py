"""Loads new weights into a vLLM engine: a back end of vLLM's own weight-transfer interface.

Weights reach the engine's process in one of four ways (which one is taken: `actors.weight_ways`; when:
`cluster.fleet.delivery`):

- The learner, on the same GPU, has written them to a block of its memory (`actors.gpu_weights`), which the engine's
  process opens by its handle.
- The learner, on the same host, has written them to one file in memory (`actors.weights_file`), whose path the rollout
  worker sends to the engine's process, which maps the file.
- The rollout worker takes a bundle's arrays from the Ray object store, writes them to one file in memory
  of its own, and sends that file's path.
- The engine's process is a member of a weight group (`actors.weight_group`), in which the learner broadcasts.

`SquelchWeightTransferEngine` is the back end for all. Every engine process finds it through the
`vllm.general_plugins` entry point `squelch`, which calls `register`.

Invariants:

- From a copy, nothing is loaded before the digest of all arrays equals the learner's: after a refused transfer the
  engine still has its previous weights. The learner's own file is sealed: nobody can have changed it since the digest
  was taken, and it is not read a second time.
- From a block on the GPU, nothing is loaded before the digest of all parameters equals the learner's; if the block
  holds another version after loading, that is an error, and the weights are partly new.
- From a group, one bucket is loaded after another, so that no second copy of the model is needed: each bucket's digest
  is compared before it is loaded, that of the version after the last, and after an error the weights are partly new.
- A bundle that lacks a parameter of the model is an error.
- After loading, every packed copy of a weight is rebuilt. On CPU vLLM keeps a separate packed copy of an output head
  that is tied to the embedding, and vLLM's own reload does not update that copy.

The worker waits for the engine's process for at most `update_timeout_s`. The engine's process waits for the other
members of its group only, for at most the group's `timeout_s`.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.fused_moe.routed_experts import RoutedExperts
from vllm.model_executor.layers.vocab_parallel_embedding import VocabParallelEmbedding
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.model_executor.models import ModelRegistry
from vllm.platforms import current_platform

from squelch.actors import gpu_weights
from squelch.actors.device_sums import DeviceDigest
from squelch.actors.gpus.memory import GpuMemory
from squelch.actors.messages import GroupMember, OnGpu, TensorEntry
from squelch.actors.process.parent_watch import watch_parent
from squelch.actors.rollout import norms
from squelch.actors.weight_group import WeightGroup
from squelch.actors.weights import checksum
from squelch.actors.weights_file import ArraySpec, Unreachable, read_arrays
from squelch.kit.models.conversion import published

BACKEND = "squelch"
SHOWN = "Qwen2_5_VLForConditionalGeneration"
"""The architecture for whose models vLLM takes the class that is fed pictures as patches."""
NOTHING_LOADED = "nothing was loaded"
"""Part of an error's message if the engine still has its previous weights: only the message leaves its process."""


@dataclass
class MemberInfo(WeightTransferInitInfo):
    """The rollout worker as a member of a new weight group: the keywords of `GroupMember`. `rank` is that of the
    engine's first process; its further tensor-parallel processes have the ranks after it."""

    member: dict[str, Any]


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """One version's weights and their digest: a file and the table of its arrays, or, without a path, the table of what
    the block on the GPU holds, or of what the group is about to receive."""

    version: int
    path: str | None = None
    checksum: str = ""
    arrays: list[dict[str, Any]] = field(default_factory=list)
    table: list[tuple[str, str, list[int]]] = field(default_factory=list)
    sealed: bool = False
    """Whether the file is the learner's own, which is sealed."""
    gpu: dict[str, Any] | None = None
    """The fields of `OnGpu`."""

    def specs(self) -> list[ArraySpec]:
        """The entries of the file's table, in published order."""
        return [ArraySpec.of(entry) for entry in self.arrays]

    def entries(self) -> list[TensorEntry]:
        """The parameters that the block holds, or the group receives, in published order."""
        return [TensorEntry(name, dtype, tuple(shape)) for name, dtype, shape in self.table]


def _as_tensor(array: np.ndarray, bfloat16: bool) -> torch.Tensor:
    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16) if bfloat16 else torch.from_numpy(array)


class SquelchWeightTransferEngine(WeightTransferEngine[MemberInfo, UpdateInfo]):
    """Loads one version at a time. One update transfers a complete version."""

    init_info_cls = MemberInfo
    update_info_cls = UpdateInfo
    supports_draft_weight_update = False
    _group: WeightGroup | None = None

    def init_transfer_engine(self, init_info: MemberInfo) -> None:
        """Leaves the present group and joins a new one."""
        self.shutdown()
        member = GroupMember(**init_info.member)
        member = replace(member, rank=member.rank + self.parallel_config.rank)
        self._group = WeightGroup(member, "cpu" if current_platform.is_cpu() else self.device)

    def start_weight_update(self) -> None:
        """Does nothing: the model is prepared for loading only once its weights are there."""

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Like the base class, but synchronises only if there is an accelerator."""
        self.receive_weights(self.parse_update_info(update_info))
        if not current_platform.is_cpu():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Loads a version. Raises RuntimeError with both checksums if those of a file differ, and if the group fails
        or delivers damaged weights."""
        if update_info.path is not None:
            self._load(iter(_mapped(update_info, update_info.path)), update_info.version)
        elif update_info.gpu is not None:
            self._load_from_gpu(update_info, OnGpu(**update_info.gpu))
        elif self._group is not None:
            self._load(self._received(self._group, update_info), update_info.version)
        else:
            raise RuntimeError(f"this engine is in no weight group; {NOTHING_LOADED}")

    def _load_from_gpu(self, update_info: UpdateInfo, gpu: OnGpu) -> None:
        entries, memory = update_info.entries(), GpuMemory(self.device)
        try:
            with gpu_weights.read(memory, gpu, entries, update_info.checksum) as weights:
                self._load(iter(weights), update_info.version)
        except Unreachable as error:
            raise RuntimeError(f"{error}; {NOTHING_LOADED}") from error

    def _received(self, group: WeightGroup, update_info: UpdateInfo) -> Iterator[tuple[str, torch.Tensor]]:
        """The parameters from the group, which is left if it fails: it is of no more use."""
        digest = DeviceDigest()
        try:
            for bucket in group.receive(update_info.entries()):
                for name, tensor in bucket:
                    digest.add(name, tensor)
                    yield name, tensor
        except RuntimeError:
            self.shutdown()
            raise
        if (found := digest.hexdigest()) != update_info.checksum:
            raise RuntimeError(
                f"weights of version {update_info.version} were received with digest {found}, published was "
                f"{update_info.checksum}"
            )

    def _load(self, weights: Iterator[tuple[str, torch.Tensor]], version: int) -> None:
        expected = {name for name, _ in self.model.named_parameters()}  # a tied head counts once, as the embedding
        with _quiet_reload():
            initialize_layerwise_reload(self.model)
            try:
                model: Any = self.model
                loaded = model.load_weights(published(self.model_config.hf_config, weights))
            finally:
                finalize_layerwise_reload(self.model, self.model_config)
        self._repack()
        missing = sorted(expected - set(loaded))
        if missing:
            names = ", ".join(missing[:3])
            raise RuntimeError(f"weights of version {version} do not hold {len(missing)} parameters, such as {names}")

    def _repack(self) -> None:
        """On CPU, rebuild the packed copies of embeddings and heads, as vLLM's reload leaves a tied head's copy stale,
        and pack the experts of mixtures, which it does not do at all."""
        if not current_platform.is_cpu():
            return
        for module in self.model.modules():
            method: Any = getattr(module, "quant_method", None)
            if isinstance(module, VocabParallelEmbedding):
                method.process_weights_after_loading(module)
            elif isinstance(module, RoutedExperts):
                method.moe_kernel.fused_experts.process_weights_after_loading(module)

    def finish_weight_update(self) -> None:
        """Does nothing: `receive_weights` has already loaded the complete version."""

    def shutdown(self) -> None:
        """Leaves the group."""
        group, self._group = self._group, None
        if group is not None:
            group.close()


def _mapped(update_info: UpdateInfo, path: str) -> list[tuple[str, torch.Tensor]]:
    """The file's parameters; RuntimeError if they cannot be read, or their checksum is not the published one."""
    specs = update_info.specs()
    try:
        arrays = read_arrays(path, specs)
        found = update_info.checksum if update_info.sealed else checksum(arrays.items())
    except (MemoryError, OSError, RuntimeError, ValueError) as error:
        version = update_info.version
        raise RuntimeError(f"weights of version {version} cannot be read ({error}); {NOTHING_LOADED}") from error
    if found != update_info.checksum:
        raise RuntimeError(
            f"weights of version {update_info.version} arrived with checksum {found}, published was "
            f"{update_info.checksum}; {NOTHING_LOADED}"
        )
    return [(spec.name, _as_tensor(arrays[spec.name], spec.bfloat16)) for spec in specs]


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
        WeightTransferEngineFactory.register_engine(BACKEND, SquelchWeightTransferEngine)
        watch_parent()
        ModelRegistry.register_model(SHOWN, "squelch.actors.rollout.pictures:ShownQwen25VL")
    norms.register()
