"""Reward functions of the user, with TRL's signature:

    def right(prompts, completions, answer, **columns):
        return [1.0 if wanted in said else 0.0 for said, wanted in zip(completions, answer)]

One call gets the trajectories of one group, by keyword: `prompts`, `completions`, `completion_ids`, and each other
column of the file, all lists of the same length. Where prompts are messages a completion is a list with one message of
the assistant, else it is text. A function returns one number for each, or None where it does not apply; it may be
`async`. Several functions are summed with their weights, without those that do not apply, as TRL does.

Contract:

- Whatever a function returns that is no such list (NaN, text, a wrong length), and whatever it raises, is an error that
  names the function, file and line. No such reward becomes 0.
- A function is called outside any running event loop, so that it may run one of its own. What `async` functions return
  is awaited in one loop, the current one of this thread from the import of the first function on: what a module holds
  for its loop (a client, a semaphore) serves every group.
"""

from __future__ import annotations

import asyncio
import importlib
import importlib.util
import inspect
import math
import sys
import traceback
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from squelch.envs.options import nearest
from squelch.envs.prompt_file.rows import Prompt
from squelch.kit.untrusted.files import brief, reason

KEY = "environment.options.reward"
NONE_APPLIES = "no reward function applies to it: all returned None"


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """The process's event loop for reward functions."""
    return asyncio.new_event_loop()


class RewardFunction(NamedTuple):
    """One function; `name`: as the settings name it."""

    name: str
    weight: float
    call: Callable[..., Any]


def load(name: str, weight: float) -> RewardFunction:
    """The function `module:function` or `file.py:function`, also of a module in the working folder. Raises ValueError
    that says what is wrong."""
    source, _, attribute = name.rpartition(":")
    if not source or not attribute.isidentifier():
        raise ValueError(f"{KEY}: {brief(name)} is not of the form module:function or file.py:function")
    asyncio.set_event_loop(_loop())
    try:
        module = _module(source)
        found = getattr(module, attribute, None)  # not of `vars`: `trl.rewards` imports its functions when asked
    except Exception as error:  # the module is the user's, and may be unfinished
        raise ValueError(f"{KEY}: {brief(name)} cannot be imported: {reason(error)}{_place(error)}") from error
    if not callable(found):
        own = vars(module)
        functions = [key for key in dir(module) if key[0] != "_" and (key not in own or callable(own[key]))]
        raise ValueError(f"{KEY}: {source} defines no function {attribute!r}; {nearest(attribute, functions)}")
    return RewardFunction(name, weight, found)


def _module(source: str) -> Any:
    path = Path(source).resolve()
    is_file = source.endswith(".py")
    folder = str(path.parent if is_file else Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)  # a module beside the file, or beside the run, is found, as with `python script.py`
    if not is_file:
        return importlib.import_module(source)
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    return _of_file(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=64)
def _of_file(path: Path, _: int) -> Any:
    """The module of a file as it was at a time. Its functions, of all environments here, share what it holds."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules.setdefault(path.stem, module)  # what it defines can be pickled, and its dataclasses resolved
    spec.loader.exec_module(module)
    return module


def group_rewards(
    functions: Sequence[RewardFunction], prompt: Prompt, completions: Sequence[str], ids: Sequence[Sequence[int]]
) -> list[float | str]:
    """The weighted sum of the functions for each completion; text, the reason, where none applies.

    Raises:
        RuntimeError: a function raised, or returned what is no list of numbers or None; the text names it.
    """
    count = len(completions)
    chat = not isinstance(prompt.given, str)
    said = [[{"role": "assistant", "content": text}] if chat else text for text in completions]
    given: dict[str, Any] = {name: [value] * count for name, value in prompt.columns.items()}
    given |= {"prompts": [prompt.given] * count, "completions": said, "completion_ids": [list(one) for one in ids]}
    answers = _answers(functions, given)
    rows = [_checked(function, answer, count) for function, answer in zip(functions, answers, strict=True)]
    found: list[float | str] = []
    for values in zip(*rows, strict=True):
        applied = [one.weight * value for one, value in zip(functions, values, strict=True) if value is not None]
        found.append(math.fsum(applied) if applied else NONE_APPLIES)
    return found


def _answers(functions: Sequence[RewardFunction], given: Mapping[str, Any]) -> list[Any]:
    """What the functions return; those that are `async` wait beside each other."""
    returned = list[Any]()
    try:
        for function in functions:
            asyncio.set_event_loop(_loop())  # `asyncio.run` in a function leaves none
            with _naming(function):
                returned.append(function.call(**given))
    except RuntimeError:
        for one in filter(inspect.iscoroutine, returned):
            one.close()
        raise
    waiting = {index: one for index, one in enumerate(returned) if inspect.isawaitable(one)}
    if waiting:
        found = _loop().run_until_complete(_together([(functions[index], one) for index, one in waiting.items()]))
        for index, answer in zip(waiting, found, strict=True):
            returned[index] = answer
    return returned


async def _together(waiting: Sequence[tuple[RewardFunction, Awaitable[Any]]]) -> list[Any]:
    """What the awaitables return. The first error ends the others: they would go on beside the next group."""

    async def answer(function: RewardFunction, awaited: Awaitable[Any]) -> Any:
        with _naming(function):
            return await awaited

    tasks = [asyncio.ensure_future(answer(*one)) for one in waiting]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@contextmanager
def _naming(function: RewardFunction) -> Iterator[None]:
    """Raises RuntimeError, which names the function, for whatever is raised in the block."""
    try:
        yield
    except Exception as error:  # the function is the user's
        said = f"{type(error).__name__}: {reason(error)}{_place(error)}"
        raise RuntimeError(f"the reward function {function.name} raised {said}") from error


def _checked(function: RewardFunction, answer: Any, count: int) -> list[float | None]:
    """The numbers of one function. Raises RuntimeError for anything else."""
    where = f"the reward function {function.name} returned"
    if isinstance(answer, str | bytes | Mapping) or not hasattr(answer, "__len__"):
        raise RuntimeError(f"{where} {brief(answer)}; a list with a number, or None, for each completion is needed")
    if len(answer) != count:
        raise RuntimeError(f"{where} {len(answer)} rewards for {count} completions")
    return [None if value is None else _number(where, value) for value in answer]


def _number(where: str, value: Any) -> float:
    """A reward as a float; also a number of NumPy or a tensor with one element."""
    try:
        number = math.nan if isinstance(value, str | bytes) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise RuntimeError(f"{where} the reward {brief(value)}; a finite number, or None, is needed")
    return number


def _place(error: BaseException) -> str:
    """File and line of the last frame of an error that is in the user's code."""
    ours = (f"{Path(__file__).parents[2]}/", "<")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(ours)]
    return f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
