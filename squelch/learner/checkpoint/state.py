"""The state of a trained module as named tensors, and what makes a checkpoint one of this run's model."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from squelch.kit.untrusted.files import brief
from squelch.learner.checkpoint.manifest import CONFIG, EXPORT, TOKENIZER, Manifest, Module, shown, tokenizer_digest
from squelch.learner.checkpoint.shards import STEP, Piece, held
from squelch.learner.policy.model import Policy
from squelch.learner.publish import entries

POLICY = "policy"
PARAMETER = "parameter"
MOMENTS = ("exp_avg", "exp_avg_sq")
NO_PART_OF_THE_FUNCTION = frozenset(
    {"_name_or_path", "transformers_version", "dtype", "torch_dtype", "use_cache"}
    | {"bos_token_id", "eos_token_id", "pad_token_id"}
)
"""Keys of a model's configuration that do not affect the function it computes."""


@dataclass(frozen=True)
class Trained:
    """A module under FSDP2 with the AdamW that trains it; `name` begins the names of its tensors in the files."""

    name: str
    module: nn.Module
    optimizer: Optimizer

    def state(self) -> dict[str, dict[str, Tensor]]:
        """AdamW's state of each parameter that it has updated, by the parameter's name.

        Raises RuntimeError for an optimizer that keeps anything but step count and moments.
        """
        kept = {name: self.optimizer.state.get(tensor, {}) for name, tensor in entries(self.module).items()}
        found = {name: state for name, state in kept.items() if state}
        if strange := {key for state in found.values() for key in state} - {"step", *MOMENTS}:
            raise RuntimeError(
                f"the optimizer of the {self.name} keeps {sorted(strange)}, which checkpoints do not hold"
            )
        return found

    def trainable(self) -> set[str]:
        """Names of the parameters that the optimizer trains."""
        own = {id(tensor) for group in self.optimizer.param_groups for tensor in group["params"]}
        return {name for name, tensor in entries(self.module).items() if id(tensor) in own}

    def tensors(self) -> dict[str, Tensor]:
        """All tensors that a checkpoint holds, by their names in the files."""
        found = {f"{self.name}/{PARAMETER}/{name}": tensor for name, tensor in entries(self.module).items()}
        return found | {f"{self.name}/{key}/{name}": t for name, own in self.state().items() for key, t in own.items()}

    def described(self) -> Module:
        """The manifest's entry."""
        return Module(parameters=shapes(self.module), stepped=sorted(self.state()))

    def pieces(self, stepped: list[str]) -> dict[str, Piece]:
        """This rank's pieces of the tensors in a checkpoint whose optimizer has updated the parameters `stepped`."""
        found = parameter_pieces(self.name, self.module)
        for name in stepped:
            own = found[f"{self.name}/{PARAMETER}/{name}"]
            found |= {f"{self.name}/{key}/{name}": own for key in MOMENTS} | {f"{self.name}/step/{name}": STEP}
        return found

    def restore(self, found: dict[str, Tensor], stepped: list[str]) -> None:
        """Takes over the tensors that were read for `pieces(stepped)`, and removes them from `found`."""
        restore_parameters(self.name, self.module, found)
        own = entries(self.module)
        self.optimizer.state.clear()
        for name in stepped:
            state = {"step": torch.zeros((), dtype=torch.float32, device=own[name].device)}
            state |= {key: torch.zeros_like(own[name], memory_format=torch.preserve_format) for key in MOMENTS}
            for key, tensor in state.items():
                held(tensor).copy_(found.pop(f"{self.name}/{key}/{name}"))
            self.optimizer.state[own[name]] = state


def shapes(module: nn.Module) -> dict[str, list[int]]:
    """Names and unsharded shapes of all parameters; a checkpoint fits a module only if they are equal."""
    return {name: list(tensor.shape) for name, tensor in entries(module).items()}


def parameter_pieces(name: str, module: nn.Module) -> dict[str, Piece]:
    """This rank's pieces of the parameters of the module that a checkpoint calls `name`."""
    return {f"{name}/{PARAMETER}/{each}": Piece.of(tensor) for each, tensor in entries(module).items()}


@torch.no_grad()
def restore_parameters(name: str, module: nn.Module, found: dict[str, Tensor]) -> None:
    """Takes over the tensors that were read for `parameter_pieces`, and removes them from `found`."""
    for each, tensor in entries(module).items():
        held(tensor).copy_(found.pop(f"{name}/{PARAMETER}/{each}"))


def identity(policy: Policy, model_dir: Path | None) -> dict[str, Any]:
    """Properties that distinguish models with equal parameter shapes, by name, as plain JSON data: the configuration,
    the adapters' scale, and a digest of the tokenizer in `model_dir`."""
    found = {f"{CONFIG}: {key}": value for key, value in policy.model.config.to_dict().items()}
    found = {name: value for name, value in found.items() if name.partition(": ")[2] not in NO_PART_OF_THE_FUNCTION}
    if policy.lora is not None:
        found["learner.lora.alpha"] = policy.lora.alpha
    if model_dir is not None:
        found[TOKENIZER] = tokenizer_digest(model_dir)
    return json.loads(json.dumps(found))


def require_same_parameters(path: Path, manifest: Manifest, name: str, module: nn.Module) -> None:
    """Raises ValueError unless the checkpoint's module `name` has the names and shapes of `module`."""
    saved = manifest.modules[name].parameters if name in manifest.modules else {}
    own = shapes(module)
    if saved == own:
        return
    if differing := [each for each in own if each in saved and saved[each] != own[each]]:
        each = differing[0]
        what = f"{each} has shape {brief(saved[each])} there and {own[each]} here"
    else:
        lone = sorted(saved.keys() ^ own.keys())
        what = f"{shown(lone[0])} exists only {'there' if lone[0] in saved else 'here'} ({len(lone)} such parameters)"
    raise ValueError(
        f"checkpoint {path} is of another {'model' if name == POLICY else name}: {what}. Resume with the model that "
        f"wrote it (its weights are in {path / EXPORT}), or start a new run."
    )


def require_same_stepped(path: Path, manifest: Manifest, own: Trained) -> None:
    """Raises ValueError if the checkpoint has moments of parameters that are not trained here, or has none although its
    optimizer took steps."""
    stepped = manifest.modules[own.name].stepped
    frozen = sorted(set(stepped) - own.trainable())
    if frozen:
        raise ValueError(
            f"checkpoint {path} has moments of {shown(frozen[0])}, which this run does not train. Resume with the "
            "learner.* settings that wrote it, or start a new run."
        )
    if manifest.optimizer_steps and not stepped:
        raise ValueError(
            f"checkpoint {path} took {manifest.optimizer_steps} optimizer steps, but has no moments of the {own.name}; "
            "it is damaged. Resume from the checkpoint before it."
        )
