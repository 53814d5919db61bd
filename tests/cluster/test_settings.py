"""Blocks of settings of which a part is given."""

import typing
from collections.abc import Iterator

from cluster.config import RunConfig, load
from envs.settings import Settings


def test_one_key_of_a_warm_ups_quality_leaves_the_others() -> None:
    """Found by a reviewer: the others went back to the quality of another warm-up."""
    whole = load("smollm2-frozenlake").model.warmup
    part = load("smollm2-frozenlake", ["model.warmup.quality.random_plan=0"]).model.warmup
    assert whole is not None and part is not None
    assert part.quality == whole.quality.model_copy(update={"random_plan": 0.0})


def blocks(model: type[Settings], place: str = "") -> Iterator[tuple[str, Settings]]:
    """The default of every block of settings in the tree of `model`, by its place."""
    for name, field in model.model_fields.items():
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        if isinstance(default, Settings):
            yield f"{place}{name}", default
        for kind in {type(default), field.annotation, *typing.get_args(field.annotation)}:
            if isinstance(kind, type) and issubclass(kind, Settings):
                yield from blocks(kind, f"{place}{name}.")


def test_the_default_of_a_block_is_that_of_its_class() -> None:
    """Otherwise a block of which one key is given would begin from other values than one of which none is."""
    found = dict(blocks(RunConfig))
    assert {"learner.objective.kl", "scorer.probe", "model.warmup.quality"} <= set(found)
    assert [place for place, default in found.items() if default != type(default)()] == []
