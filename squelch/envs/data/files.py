"""Finds the files of a data set: one or several files, a folder with the layout of the Hugging Face hub, or a hub id.

Splits are recognised by names as on the hub (its page "File names and splits"): `NAME-00000-of-00004.parquet` is split
NAME. Otherwise a key word (train, training, validation, valid, val, dev, test, testing, eval, evaluation) in the file's
name, or else in its folders, gives the split; the key word must be delimited by characters other than letters.
Otherwise the split is train. A folder without such a key word is a subset (`taco/train-00000-of-00001.parquet`). A
split of which a folder, or the local cache of the hub, holds some of its numbered files only is refused. The network is
used only for a hub id that the user gave, and not within `cached_only`.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from squelch.kit.untrusted.files import is_folder, require_regular, state

Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

SUFFIXES = (".parquet", ".jsonl", ".json")
NOT_DATA = frozenset({"dataset_info.json", "dataset_infos.json", "config.json", "state.json"})
DEFAULT_SUBSET = "default"
CONVERTED = "refs/convert/parquet"
"""Revision with the Parquet files to which the hub converts a data set of another format."""

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_SHARD = re.compile(r"(?P<split>\w[\w.]*)-(?P<number>\d{4,5})-of-(?P<count>\d{4,5})(-[0-9a-f]+)?")
_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_MAY_DOWNLOAD = ContextVar("may_download", default=True)
_SPLIT_OF_WORD = {word: split for split, words in _WORDS.items() for word in words}


class UnknownSplitError(ValueError):
    """The data set does not publish the requested split; the message names its splits."""


class NotCachedError(ValueError):
    """A data set of the hub is not in the local cache, and was not or could not be downloaded. `dataset`: its id."""

    def __init__(self, dataset: str, text: str) -> None:
        super().__init__(text)
        self.dataset = dataset


@contextmanager
def cached_only() -> Iterator[None]:
    """Within it this thread downloads nothing: a hub id is read from the local cache, or raises NotCachedError."""
    token = _MAY_DOWNLOAD.set(False)
    try:
        yield
    finally:
        _MAY_DOWNLOAD.reset(token)


@dataclass(frozen=True)
class Place:
    """Split and subset of a file, according to its name."""

    subset: str
    split: str
    suffix: str


def find_files(source: Source, split: str, subset: str | None = None) -> list[Path]:
    """The files of one split, sorted; downloaded first if `source` is a hub id.

    Raises ValueError if the path does not exist or has no data files, if a folder lacks some of the split's numbered
    files, and for an unknown split or subset (with the existing ones); NotCachedError if a hub id cannot be had.
    """
    if not isinstance(source, str | os.PathLike):
        return _pick_local([Path(path) for path in source], None, split, subset)
    path = Path(source)
    if is_folder(path):
        names = [
            p for p in path.rglob("*") if p.is_file() and not any(part[0] == "." for part in p.relative_to(path).parts)
        ]
        found = _pick_local(names, path, split, subset)
        _require_all(found)
        return found
    if state(path) is None and _HUB_ID.fullmatch(str(source)):
        return _from_hub(str(source), split, subset)
    return _pick_local([path], None, split, subset)


def pick_files(names: Iterable[str], split: str, subset: str | None, where: str) -> list[str]:
    """The relative `names` of the files of `split` and `subset`, sorted: Parquet files if there are any, else JSON."""
    places = {name: place for name in names if (place := place_of(name)) is not None}
    if not places:
        raise ValueError(f"{where}: no data files there; need files that end in {', '.join(SUFFIXES)}")
    chosen = _choose_subset(sorted({place.subset for place in places.values()}), subset, where)
    by_split: dict[str, list[str]] = defaultdict(list)
    for name, place in places.items():
        if place.subset == chosen:
            by_split[place.split].append(name)
    if split not in by_split:
        raise UnknownSplitError(f"{where}: no split {split!r}; it has {', '.join(sorted(by_split))}")
    parquet = [name for name in by_split[split] if name.endswith(".parquet")]
    return sorted(parquet or by_split[split])


def place_of(name: str) -> Place | None:
    """Split and subset from a file's name relative to the data set's folder; None if it is not a data file."""
    path = PurePosixPath(name)
    if path.suffix not in SUFFIXES or path.name in NOT_DATA:
        return None
    shard = _SHARD.fullmatch(path.stem)
    folders = list(path.parent.parts)
    said = [shard["split"]] if shard else [_SPLIT_OF_WORD[word] for word in _words(path.stem) if word in _SPLIT_OF_WORD]
    said += [_SPLIT_OF_WORD[folder] for folder in reversed(folders) if folder in _SPLIT_OF_WORD]
    subsets = [folder for folder in folders if folder != "data" and folder not in _SPLIT_OF_WORD]
    return Place(subsets[0] if subsets else DEFAULT_SUBSET, said[0] if said else "train", path.suffix)


def _words(stem: str) -> list[str]:
    return re.findall(r"[a-z]+", stem.lower())


def _choose_subset(known: Sequence[str], subset: str | None, where: str) -> str:
    if subset is None and len(known) > 1 and DEFAULT_SUBSET not in known:
        raise ValueError(f"{where}: it has the subsets {', '.join(known)}; say which")
    if subset is not None and subset not in known:
        raise ValueError(f"{where}: no subset {subset!r}; it has {', '.join(known)}")
    return subset or (DEFAULT_SUBSET if DEFAULT_SUBSET in known else known[0])


def _pick_local(paths: Sequence[Path], folder: Path | None, split: str, subset: str | None) -> list[Path]:
    """The files of a split among `paths`, according to the layout of `folder`, or without it to their own names."""
    for path in paths:
        if state(path) is None:
            raise ValueError(f"{path}: no such file or folder{_hub_hint(path)}")
        require_regular(path)
        if folder is None and place_of(path.name) is None:
            raise ValueError(f"{path}: not a data file; its name must end in {', '.join(SUFFIXES)}")
    names = {path.relative_to(folder).as_posix() if folder else path.name: path for path in paths}
    if len(names) < len(paths):  # files with equal names in several folders are distinguished by their folders
        names = {path.as_posix(): path for path in paths}
    where = str(folder or ", ".join(map(str, paths)))
    return [names[name] for name in pick_files(names, split, subset, where)]


def _require_all(files: Sequence[Path]) -> None:
    """Raises ValueError if numbered files are missing, as after a download that was interrupted."""
    numbers: dict[tuple[Path, str, int], set[int]] = defaultdict(set)
    for file in files:
        if shard := _SHARD.fullmatch(file.stem):
            numbers[file.parent, shard["split"], int(shard["count"])].add(int(shard["number"]))
    for (parent, name, count), present in numbers.items():
        if len(present) < count:
            there = f"only {len(present)} of the {count} files are there"
            remedy = "fetch the others, or name the files that are to be read"
            raise ValueError(f"{parent / name}-*-of-{count:05d}: {there}; {remedy}")


def _hub_hint(path: Path) -> str:
    if len(path.parts) == 2 or path.is_absolute():
        return ""
    return " (nor does it read as OWNER/NAME, a data set of the Hugging Face hub)"


def _from_hub(dataset: str, split: str, subset: str | None) -> list[Path]:
    """Download one split of a published data set; without a network, use the files in the cache."""
    where = f"data set {dataset} of the Hugging Face hub"
    if not _MAY_DOWNLOAD.get():
        return _from_cache(dataset, split, subset, f"{where} is not in the local cache")
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        revision, names = "main", HfApi().list_repo_files(dataset, repo_type="dataset")
        if not any(name.endswith(".parquet") for name in names):
            converted = _converted(dataset)
            revision, names = (CONVERTED, converted) if converted else (revision, names)
        chosen = pick_files(names, split, subset, where)
        return [Path(hf_hub_download(dataset, name, repo_type="dataset", revision=revision)) for name in chosen]
    except HfHubHTTPError as error:
        raise ValueError(f"{where} cannot be had, and there is no such path here: {_brief(error)}") from error
    except (OfflineModeIsEnabled, LocalEntryNotFoundError, HTTPError, ConnectionError) as error:
        missing = f"{where} is not in the local cache, and the hub cannot be reached ({_brief(error)})"
        return _from_cache(dataset, split, subset, f"{missing}; there is no such path here either")


def _converted(dataset: str) -> list[str]:
    """Names of the Parquet files to which the hub converted a data set; empty if there are none."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    try:
        return HfApi().list_repo_files(dataset, repo_type="dataset", revision=CONVERTED)
    except (RevisionNotFoundError, RepositoryNotFoundError):
        return []


def _from_cache(dataset: str, split: str, subset: str | None, missing: str) -> list[Path]:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    for revision in ("main", CONVERTED):
        try:
            folder = snapshot_download(dataset, repo_type="dataset", revision=revision, local_files_only=True)
        except LocalEntryNotFoundError:
            continue
        if any(place_of(path.name) for path in Path(folder).rglob("*")):
            return find_files(folder, split, subset)
    raise NotCachedError(dataset, missing)


def _brief(error: Exception) -> str:
    """The first line of an error's text."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
