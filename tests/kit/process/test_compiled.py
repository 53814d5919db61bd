"""A process that compiles is not held to its marks of progress."""

from collections.abc import Callable

import torch

from squelch.kit.process.compiled import watch_compilations
from squelch.kit.process.progress_marks import Marks


def test_no_mark_is_expected_while_torch_compiles_also_after_the_first_mark() -> None:
    marks, meanwhile = Marks(), list[bool]()
    marks.add()

    def backend(graph: torch.fx.GraphModule, _: list[torch.Tensor]) -> Callable[..., object]:
        meanwhile.append(marks.seen().busy)
        return graph.forward

    watch_compilations()
    watch_compilations()
    assert marks.seen().busy
    torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2))
    assert meanwhile == [False] and marks.seen().busy
    assert not marks.seen(busy=False).busy
