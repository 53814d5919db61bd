"""Low-rank adapters by `peft`: they are trained instead of the model's matrices, and merged into them for publishing.

Invariants:

- The model's own parameters are frozen; every linear layer but the output head has an adapter, W + (alpha / rank) B A.
  A vision tower has none, and is frozen.
- Published and exported weights are merged and carry the model's own names: other parts of the system see no adapters.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from re import fullmatch
from typing import Any

import torch
from torch import Tensor, nn

from squelch.learner.config import LoraSettings

TOWER = r"(.*\.)?visual\..*"
"""Names of the layers of a vision tower."""
BASE, DOWN, UP = ".base_layer.weight", ".lora_A.default.weight", ".lora_B.default.weight"


def add_adapters(model: nn.Module, settings: LoraSettings) -> nn.Module:
    """Freeze the model, add adapters to its linear layers, in place; B starts at 0, so the output stays the same."""
    from peft import LoraConfig, inject_adapter_in_model

    alpha: Any = settings.alpha  # PEFT annotates it as int but only divides it by the rank, so a float works
    without = TOWER if any(fullmatch(TOWER, name) for name, _ in model.named_modules()) else None
    config = LoraConfig(
        r=settings.rank, lora_alpha=alpha, target_modules="all-linear", lora_dropout=0.0, exclude_modules=without
    )
    with _stand_ins(model):
        inject_adapter_in_model(config, model)
    for module in model.modules():
        if isinstance(module, nn.ModuleDict) and "default" in module:
            module["default"].to(torch.float32)
    return model.eval()


@contextmanager
def _stand_ins(model: nn.Module) -> Iterator[None]:
    """Within this context, parameters on the meta device are zeros on CPU that take no memory: PEFT moves an adapter to
    the device of its matrix, and the meta device would lose the adapter's first values."""
    empty = [(m, name, p) for m in model.modules() for name, p in m._parameters.items() if p is not None and p.is_meta]
    for module, name, parameter in empty:
        module._parameters[name] = nn.Parameter(torch.zeros(()).expand(parameter.shape))
    yield
    for module, name, parameter in empty:
        stand_in: Any = module._parameters[name]
        parameter.requires_grad = stand_in.requires_grad
        module._parameters[name] = parameter


def published_name(name: str) -> str | None:
    """A parameter's name in the merged model; None for an adapter's parameter."""
    return None if ".lora_A." in name or ".lora_B." in name else name.replace(".base_layer.", ".")


def merged(named: Iterator[tuple[str, Tensor]], settings: LoraSettings) -> Iterator[tuple[str, Tensor]]:
    """Yields (name, tensor) of the merged model.

    `named`: the unsharded parameters of the model with adapters, in the order of its state dict. At most one layer's
    matrices are held at a time. Raises RuntimeError when a layer's matrices or adapters are incomplete.
    """
    held: dict[str, Tensor] = {}
    for name, tensor in named:
        if not held and not name.endswith(BASE):
            yield name, tensor
            continue
        held[name] = tensor
        if name.endswith(UP):
            yield from _joined(held, name.removesuffix(UP), settings)
            held = {}
    if held:
        raise RuntimeError(f"{next(iter(held))} came without the rest of its layer")


def _joined(held: dict[str, Tensor], layer: str, settings: LoraSettings) -> Iterator[tuple[str, Tensor]]:
    for name, tensor in held.items():
        published = published_name(name)
        if name == layer + BASE:
            product = held[layer + UP] @ held[layer + DOWN]
            yield f"{layer}.weight", tensor + (settings.alpha / settings.rank) * product
        elif published is not None:
            yield published, tensor
