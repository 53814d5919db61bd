"""Which files hold a data set: a file, several, a folder as the Hugging Face hub publishes it, or a data set's hub id.

Splits are told from names as the hub tells them (its page "File names and splits"): `NAME-00000-of-00004.parquet` is
split NAME; else a key word (train, training, validation, valid, val, dev, test, testing, eval, evaluation) in the
file's name or else its folders, set off by other characters than letters; else train. A subset is a folder that is none
of these (`taco/train-00000-of-00001.parquet`). The network is used only for a hub id that the user named.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

SUFFIXES = (".parquet", ".jsonl", ".json")
NOT_DATA = frozenset({"dataset_info.json", "dataset_infos.json", "config.json", "state.json"})
DEFAULT_SUBSET = "default"
CONVERTED = "refs/convert/parquet"
"""Where the hub keeps the Parquet files that it makes of a data set published otherwise."""

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")
_SHARD = re.compile(r"(?P<split>\w[\w.]*)-\d{4,5}-of-\d{4,5}(-[0-9a-f]+)?")
_WORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "val", "dev"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SPLIT_OF_WORD = {word: split for split, words in _WORDS.items() for word in words}


class UnknownSplitError(ValueError):
    """The data set does not publish the split asked for; the message names those that it does."""


@dataclass(frozen=True)
class Place:
    """What a file's name says about it."""

    subset: str
    split: str
    suffix: str


def find_files(source: Source, split: str, subset: str | None = None) -> list[Path]:
    """The files of one split, sorted; downloaded first if `source` is a hub id.

    ValueError for nothing at that path, for no data files there, and for an unknown split or subset (names those that
    exist).
    """
    if not isinstance(source, str | os.PathLike):
        return _pick_local([Path(path) for path in source], None, split, subset)
    path = Path(source)
    if path.is_dir():
        names = [p for p in path.rglob("*") if p.is_file() and not any(part[0] == "." for part in _inside(p, path))]
        return _pick_local(names, path, split, subset)
    if not path.exists() and _HUB_ID.fullmatch(str(source)):
        return _from_hub(str(source), split, subset)
    return _pick_local([path], None, split, subset)


def pick_files(names: Iterable[str], split: str, subset: str | None, where: str) -> list[str]:
    """Those of the relative `names` that hold `split` of `subset`: Parquet if there is any, else JSON; sorted."""
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
    """What a file's name, relative to the data set's folder, says; None if it is no data file."""
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


def _inside(path: Path, folder: Path) -> tuple[str, ...]:
    return path.relative_to(folder).parts


def _choose_subset(known: Sequence[str], subset: str | None, where: str) -> str:
    if subset is None and len(known) > 1 and DEFAULT_SUBSET not in known:
        raise ValueError(f"{where}: it has the subsets {', '.join(known)}; say which")
    if subset is not None and subset not in known:
        raise ValueError(f"{where}: no subset {subset!r}; it has {', '.join(known)}")
    return subset or (DEFAULT_SUBSET if DEFAULT_SUBSET in known else known[0])


def _pick_local(paths: Sequence[Path], folder: Path | None, split: str, subset: str | None) -> list[Path]:
    """`paths` lie in `folder`, whose layout says what they hold; without one, only their own names do."""
    for path in paths:
        if not path.is_file():
            raise ValueError(f"{path}: no such file or folder{_hub_hint(path)}")
        if folder is None and place_of(path.name) is None:
            raise ValueError(f"{path}: not a data file; its name must end in {', '.join(SUFFIXES)}")
    names = {path.relative_to(folder).as_posix() if folder else path.name: path for path in paths}
    if len(names) < len(paths):  # files of one name in several folders: the folders' names matter then
        names = {path.as_posix(): path for path in paths}
    where = str(folder or ", ".join(map(str, paths)))
    return [names[name] for name in pick_files(names, split, subset, where)]


def _hub_hint(path: Path) -> str:
    return " (nor does it read as OWNER/NAME, a data set of the Hugging Face hub)" if len(path.parts) != 2 else ""


def _from_hub(dataset: str, split: str, subset: str | None) -> list[Path]:
    """Download one split of a published data set; without a network, what an earlier download left in the cache."""
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError, HTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    where = f"data set {dataset} of the Hugging Face hub"
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
    """Names of the Parquet files that the hub made of a data set; empty if it made none."""
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
    raise ValueError(missing)


def _brief(error: Exception) -> str:
    """The first line of an error's text."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
