"""Low-rank adapters by `peft`: they are trained instead of the model's matrices, and merged into them for publishing.

Invariants:

- The model's own parameters are frozen; every linear layer but the output head has an adapter, W + (alpha / rank) B A,
  and so has every expert of a mixture. Routers, and gates of shared experts, have none. A vision tower has none, and is
  frozen.
- The adapters' first values depend on the run's seed alone, and all ranks have the same.
- Published and exported weights are merged and carry the model's own names: other parts of the system see no adapters.
  A model for which this does not hold is refused before its weights are read.

PEFT rewrites the targets of mixtures by names of earlier versions of transformers, routers included, if it knows the
model's type. It is therefore handed the model inside a module without a configuration.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from re import fullmatch
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from squelch.actors.model_counts import expert_weights
from squelch.kit.packed.vision import tower
from squelch.learner.config import LoraSettings

ROUTER = r"(.*\.)?([^.]*_)?(gate|router)(\..*)?"
"""Names of modules that weigh experts, and of their layers."""
HELD = "held."
"""Name of the model in the module that PEFT gets."""


@dataclass(frozen=True)
class Adapted:
    """A weight with an adapter. `down`, `up`: A, (rank * experts, inputs), and B, (outputs, rank * experts), by name in
    the state dict of the model with adapters; `experts`: None for a plain matrix, (outputs, inputs)."""

    down: str
    up: str
    scale: float
    experts: int | None
    inputs_first: bool
    """Whether an expert's matrix is (inputs, outputs)."""

    def joined(self, weight: Tensor, parts: dict[str, Tensor]) -> Tensor:
        """The merged weight. `parts`: has the adapter's tensors by name, which are taken out of it."""
        down, up = parts.pop(self.down), parts.pop(self.up)
        if self.experts is None:
            return weight + self.scale * (up @ down)
        of_experts = up.reshape(len(up), -1, self.experts).permute(2, 0, 1)
        product = of_experts @ down.reshape(self.experts, -1, down.shape[1])
        return weight + self.scale * (product.mT if self.inputs_first else product)


Adapters = dict[str, Adapted]
"""By the weight's name in the state dict of the model with adapters."""


def targets(model: PreTrainedModel) -> tuple[list[str], list[str]]:
    """The names of the linear layers, and of the parameters that hold a matrix for each expert, that get an adapter."""
    seeing = tower(model)
    without = {model.get_output_embeddings(), *(() if seeing is None else seeing.modules())}
    named = [(name, module) for name, module in model.named_modules() if module not in without]
    layers = [name for name, own in named if isinstance(own, nn.Linear) and not fullmatch(ROUTER, name)]
    return layers, list(expert_weights(model))


def add_adapters(model: PreTrainedModel, settings: LoraSettings, seed: int) -> None:
    """Freeze the model and add adapters to its linear layers and experts, in place; B starts at 0, so the output stays
    the same. Raises ValueError for a model whose merged weights would not be its own."""
    from peft import LoraConfig, inject_adapter_in_model

    own = {name: tensor.shape for name, tensor in model.state_dict().items()}
    layers, inner = targets(model)
    alpha: Any = settings.alpha  # PEFT annotates it as int but only divides it by the rank, so a float works
    config = LoraConfig(
        r=settings.rank,
        lora_alpha=alpha,
        target_modules=[HELD + name for name in layers],
        target_parameters=[HELD + name for name in inner],
        lora_dropout=0.0,
    )
    holder = nn.Module()
    holder.add_module(HELD.removesuffix("."), model)
    with _stand_ins(model), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        inject_adapter_in_model(config, holder)
    for module in model.modules():
        if isinstance(module, nn.ModuleDict) and "default" in module:
            module["default"].to(torch.float32)
    _require_own(model.eval(), own)


def adapters_of(model: nn.Module) -> Adapters:
    """The adapters in the model, none if it was given none."""
    from peft.tuners.lora import LoraLayer
    from peft.tuners.lora.layer import ParamWrapper

    found: Adapters = {}
    for name, layer in model.named_modules():
        if not isinstance(layer, LoraLayer):
            continue
        of_experts = isinstance(layer, ParamWrapper)
        base: Any = layer
        path = name
        while isinstance(base, LoraLayer):
            base, path = base.base_layer, f"{path}.base_layer"
        weight = layer.parameter_name if of_experts else "weight"
        found[f"{path}.{weight}"] = Adapted(
            f"{name}.lora_A.default.weight",
            f"{name}.lora_B.default.weight",
            layer.scaling["default"],
            layer.num_experts if of_experts else None,
            of_experts and not layer._did_swap_in_out_features,
        )
    return found


def _require_own(model: nn.Module, own: dict[str, torch.Size]) -> None:
    """Raises ValueError unless the merged weights have the names and shapes `own`."""
    state = model.state_dict()
    merged_shapes = {name: tensor.shape for key, tensor in state.items() if (name := published_name(key)) is not None}
    kind = type(model).__name__
    if amiss := sorted(merged_shapes.items() ^ own.items()):
        raise ValueError(
            f"learner.lora: {kind} with adapters has other weights than its own once they are merged, the first "
            f"{amiss[0][0]}; train it without learner.lora"
        )
    for name, adapted in adapters_of(model).items():
        (inner, inputs), (outputs, other) = state[adapted.down].shape, state[adapted.up].shape
        sizes = (inputs, outputs) if adapted.inputs_first else (outputs, inputs)
        if inner != other or tuple(state[name].shape) != ((adapted.experts,) if adapted.experts else ()) + sizes:
            raise ValueError(
                f"learner.lora: the adapter of {published_name(name)} of {kind} has another shape than the weight; "
                "train it without learner.lora"
            )


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
    return None if ".lora_A." in name or ".lora_B." in name else name.replace(".base_layer", "")


def merged(named: Iterator[tuple[str, Tensor]], adapters: Adapters) -> Iterator[tuple[str, Tensor]]:
    """Yields (name, tensor) of the merged model, in the order of `named`.

    `named`: the unsharded parameters of the model with adapters, in the order of its state dict. At most one layer's
    matrices are held at a time. Raises RuntimeError when a layer's matrices or adapters are incomplete.
    """
    waiting, parts = dict[str, Tensor](), dict[str, Tensor]()
    for name, tensor in named:
        (parts if published_name(name) is None else waiting)[name] = tensor
        yield from _complete(waiting, parts, adapters)
    if waiting or parts:
        raise RuntimeError(f"{next(iter(waiting | parts))} came without the rest of its layer")


def _complete(waiting: dict[str, Tensor], parts: dict[str, Tensor], adapters: Adapters) -> Iterator[tuple[str, Tensor]]:
    """Takes out and yields, merged, the first of the waiting weights as long as its adapter is complete."""
    while waiting:
        name = next(iter(waiting))
        adapted = adapters.get(name)
        if adapted is not None and not {adapted.down, adapted.up} <= parts.keys():
            return
        tensor, published = waiting.pop(name), published_name(name)
        assert published is not None
        yield published, tensor if adapted is None else adapted.joined(tensor, parts)
