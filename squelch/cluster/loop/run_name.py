"""The name of a run that is started without `name=`. It is one of those of its recipe: the recipe's own, or that with
`-2`, `-3` and so on, in `runs_dir` and in `store`.

    start       the first name under which no step was recorded, no process drives a run, and none is about to
    --resume    the newest unfinished run; if all are finished, the newest
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path

from squelch.cluster.config import RunConfig
from squelch.cluster.runs.ending import is_complete
from squelch.cluster.runs.folder import RunFolder
from squelch.cluster.runs.in_store.manifest import Snapshot, answering, newest
from squelch.cluster.runs.listing import runs_in
from squelch.kit.archive.bucket import open_store
from squelch.kit.archive.reader import CONFIG

Runs = Mapping[str, RunFolder]


@contextmanager
def named(config: RunConfig, resume: bool, say: Callable[[str], None]) -> Iterator[RunConfig]:
    """The configuration with the run's name, which is said unless it is the recipe's and new. Within this context no
    other start on this host gets a new name twice. UserError if `runs_dir` or `store` cannot be read."""
    runs = _runs_of(config)
    with ExitStack() as claim:
        name = _newest(runs) if resume else _next_free(config, runs, claim)
        yield _with_name(config, name, resume, runs, say)


def _with_name(config: RunConfig, name: str | None, resume: bool, runs: Runs, say: Callable[[str], None]) -> RunConfig:
    found = config.model_copy(update={"name": name or config.name})
    if resume and name is not None:
        state = "" if is_complete(runs[name].summary()) else "unfinished "
        say(f"--resume goes on with {found.run_dir}, the newest {state}run of {config.name}; name=NAME takes another")
    elif found.name != config.name:
        say(f"{config.run_dir} holds a run, so this one is {found.run_dir}; name=NAME gives it another name")
    return found


def _runs_of(config: RunConfig) -> Runs:
    """The runs of the recipe by name: the folder on this host, else the copy in the store."""
    pattern = re.compile(rf"{re.escape(config.name)}(-[1-9][0-9]*)?")
    folders = config.run_dir.parent.iterdir() if config.run_dir.parent.is_dir() else ()
    here = {one.name: RunFolder(one) for one in folders if pattern.fullmatch(one.name) and one.is_dir()}
    if not config.store:
        return here
    with answering(config.store):
        there = [name for name in runs_in(open_store(config.store)) if pattern.fullmatch(name)]
        stores = {name: open_store(config.store, name=name) for name in there if name not in here}
        return {name: RunFolder(Snapshot(store, newest(store))) for name, store in stores.items()} | here


def _next_free(config: RunConfig, runs: Runs, claim: ExitStack) -> str:
    free = (one for one in _names(config.name) if one not in runs or not (runs[one].has_begun() or runs[one].driven()))
    return next(one for one in free if claim.enter_context(_claimed(config.run_dir.parent / f".{one}.starting")))


@contextmanager
def _claimed(path: Path) -> Iterator[bool]:
    """Whether no other process has this file, which is then this process's until the end of the context. The folder is
    made, and then removed if it stays empty. True where no file can be made: the start says why."""
    folders = [] if path.parent.exists() else [path.parent]
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        opened = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    except OSError:
        yield True
        return
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(opened)
        yield not isinstance(error, BlockingIOError)
        return
    try:
        yield True
    finally:
        with suppress(OSError):
            path.unlink()
            for folder in folders:
                folder.rmdir()
        os.close(opened)


def _names(name: str) -> Iterator[str]:
    yield name
    yield from (f"{name}-{number}" for number in count(2))


def _newest(runs: Runs) -> str | None:
    """The newest unfinished run that no process drives, else the newest of the finished, else of those driven."""
    found = {name: run for name, run in runs.items() if run.store.stat(CONFIG) is not None}
    ranked = {name: (not run.driven(), not is_complete(run.summary()), _last(run)) for name, run in found.items()}
    return max(ranked, key=ranked.__getitem__, default=None)


def _last(run: RunFolder) -> float:
    """When the run recorded its last step, in Unix seconds; 0 if it has none."""
    return run.metrics()[-1].get("time", 0.0) if run.has_begun() else 0.0
