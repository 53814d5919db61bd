"""Which tensors of a folder's files make up each weight of its model, by transformers' own table of conversions.

    model.layers.0.mlp.experts.0.gate_proj.weight  \\
    model.layers.0.mlp.experts.1.gate_proj.weight   |  MergeModulelist, Concatenate
    model.layers.0.mlp.experts.0.up_proj.weight     |  --> model.layers.0.mlp.experts.gate_up_proj
    model.layers.0.mlp.experts.1.up_proj.weight    /

Published folders hold a mixture's experts one by one, and transformers holds those of a layer as one tensor. It also
knows other names of weights, and other ways to divide them. `assembled` repeats the assignment of
`transformers.core_model_loading.convert_and_load_state_dict_in_model`, which loads a whole model at once, and the
conversions themselves are those of transformers.

transformers counts experts without reading their numbers: it would take a folder's expert 7 for its missing expert 3.
`require_experts` refuses such folders.

torch and transformers are imported inside the functions that need them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from squelch.kit.untrusted.files import Unreadable, brief

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedConfig, PreTrainedModel

NUMBER = r"(\d+)\."
"""What `*.` stands for in a pattern of transformers: the number of an expert."""


@dataclass(frozen=True)
class Assembled:
    """A weight of the model, or several that come of one conversion, and the tensors of the files that it is made
    of."""

    name: str
    """The model's name of the weight; of several, of the first."""
    converter: Any
    """transformers' `WeightConverter`; None if the weight is a tensor of the files as it is."""
    sources: dict[str, dict[str, int | None]] = field(default_factory=dict)
    """By the converter's pattern: the names of tensors in the order in which they are joined, and the number of each
    one's expert if the pattern has one."""

    @property
    def stacked(self) -> bool:
        """Whether each row of the weight is an expert."""
        from transformers.core_model_loading import MergeModulelist

        first = self.converter.operations[0] if self.converter is not None else None
        return type(first) is MergeModulelist and first.dim == 0

    @property
    def by_rows(self) -> bool:
        """Whether a row of the weight is made of one tensor of each pattern, so that rows can be made alone."""
        from transformers.core_model_loading import Concatenate

        return self.stacked and all(type(one) is Concatenate and one.dim > 0 for one in self.converter.operations[1:])

    def made(
        self, model: PreTrainedModel, read: Callable[[str], Tensor], rows: slice = slice(None)
    ) -> dict[str, Tensor]:
        """The weights by name, of these rows if they are made `by_rows`. `read`: reads a tensor of the files."""
        converter = deepcopy(self.converter)
        for pattern, names in self.sources.items():
            for name in list(names)[rows] if self.by_rows else names:
                converter.add_tensor(self.name, name, pattern, partial(read, name))
        found = converter.convert(self.name, model=model, config=model.config)
        return {name: tensor[0] if isinstance(tensor, list) else tensor for name, tensor in found.items()}


def assembled(model: PreTrainedModel, names: Iterable[str]) -> list[Assembled]:
    """What each weight of `model` is made of, if the files hold tensors of these `names`. Tensors that the model does
    not have are left out."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming, dot_natural_key, rename_source_key

    mapping = get_model_conversion_mapping(model)
    renamings = [one for one in mapping if isinstance(one, WeightRenaming)]
    converters = [one for one in mapping if isinstance(one, WeightConverter)]
    of_pattern = {pattern: one for one in converters for pattern in one.source_patterns}
    own, prefix = model.state_dict(), model.base_model_prefix
    found: dict[str, Assembled] = {}
    for name in sorted(names, key=dot_natural_key):
        key, pattern = rename_source_key(name, renamings, converters, prefix, own)
        if key not in own and name in own:
            key, pattern = rename_source_key(name, [], [], prefix, own)
        if key in own:
            one = found.setdefault(key, Assembled(key, of_pattern[pattern] if pattern else None))
            renamed = rename_source_key(name, renamings, [])[0] if pattern else name
            one.sources.setdefault(pattern or "", {})[name] = _number(pattern or "", renamed)
    for one in found.values():  # by number: names with and without the model's prefix sort apart
        one.sources.update({pattern: _by_number(names) for pattern, names in one.sources.items()})
    return list(found.values())


def _by_number(names: dict[str, int | None]) -> dict[str, int | None]:
    return dict(sorted(names.items(), key=lambda one: -1 if one[1] is None else one[1]))


def _number(pattern: str, name: str) -> int | None:
    match = re.search(pattern.replace("*.", NUMBER), name) if "*." in pattern else None
    return int(match.group(1)) if match else None


def require_experts(folder: Path, model: PreTrainedModel, names: Iterable[str]) -> None:
    """Raises Unreadable, naming a tensor, unless the files hold every weight once, and each expert of `model` once."""
    own = model.state_dict()
    for one in assembled(model, names):
        if one.converter is None and len(twice := list(one.sources[""])) > 1:
            raise Unreadable(
                f"model folder {folder}: {brief(twice[0])} and {brief(twice[1])} are both the model's {one.name}; "
                "remove one of them"
            )
        for numbers in one.sources.values():
            _require_numbers(folder, numbers, len(own[one.name]) if one.stacked else None)


def _require_numbers(folder: Path, found: dict[str, int | None], count: int | None) -> None:
    """`count`: the number of experts; None if only their numbers must be without gaps."""
    numbers = {number: name for name, number in found.items() if number is not None}
    if not numbers:
        return
    count = len(numbers) if count is None else count
    within = {name for number, name in numbers.items() if number < count}
    if extra := [name for name in found if name not in within]:
        raise Unreadable(
            f"model folder {folder} holds {brief(extra[0], 120)}, and the model has {count} experts, from 0, each "
            "once; copy the whole folder again"
        )
    if missing := sorted(set(range(count)) - numbers.keys()):
        number, name = next(iter(numbers.items()))
        before, _, after = name.rpartition(f".{number}.")
        raise Unreadable(
            f"model folder {folder} lacks {brief(f'{before}.{missing[0]}.{after}', 120)}, one of the {count} experts "
            "of a layer; copy the whole folder again"
        )


def published(config: PreTrainedConfig, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
    """Yields the model's weights as published folders hold them, each expert by itself: engines know no other names. A
    model whose weights transformers does not convert keeps them. A weight of several is not put together again."""
    from transformers.conversion_mapping import get_checkpoint_conversion_mapping
    from transformers.core_model_loading import PrefixChange, WeightConverter, revert_weight_conversion

    known = get_checkpoint_conversion_mapping(config.model_type) or []
    mapping = [one for one in known if len(one.target_patterns) == 1 and not isinstance(one, PrefixChange)]
    if not any(isinstance(one, WeightConverter) for one in mapping):
        yield from weights
        return
    model: Any = SimpleNamespace(_weight_conversions=mapping, config=config)
    for name, tensor in weights:
        yield from revert_weight_conversion(model, {name: tensor}).items()
