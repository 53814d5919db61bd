"""Finds a model of the Hugging Face hub in the local cache, or downloads it.

The hub's own client keeps the cache (`HF_HOME`, `HF_HUB_CACHE`), resumes broken downloads, and lets processes that need
the same file wait for each other. Here only a model's own files are asked for: safetensors, configuration, tokenizer.
`HF_HUB_OFFLINE=1` keeps it off the network.

| waits | for | unblocked by | on time-out |
|---|---|---|---|
| a start with a hub id | the hub | the hub's answers | the client's bounds (10 s without a byte); then Unreadable |
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from squelch.kit.untrusted.files import Unreadable, brief, reason

HUB_ID = re.compile(r"(?P<name>[\w-][\w.-]{0,95}/[\w-][\w.-]{0,95})(@(?P<revision>[\w./-]{1,200}))?")
"""OWNER/NAME, or OWNER/NAME@REVISION (a branch, a tag or a commit)."""
WANTED = ["*.json", "*.jinja", "*.safetensors", "tokenizer.model", "merges.txt"]
UNWANTED = ["*/*", "consolidated*"]
"""Folders of other formats, and a second copy of the weights that some models have. The cache is asked with the same
patterns as the hub: it would miss files that were never downloaded."""
NEEDED = ("config.json", "tokenizer.json")
"""Besides weights: another program may have cached these alone."""


def snapshot(name: str, say: Callable[[str], None], check: Callable[[Path], object]) -> Path:
    """The folder of the model `OWNER/NAME[@REVISION]`, from the cache if it holds the whole model there. `check` is
    called with a folder that holds its configuration alone, before the weights are downloaded.

    Raises:
        Unreadable: the model is in neither place; the text says what to do. Or as `check`.
    """
    found = HUB_ID.fullmatch(name)
    if found is None:
        raise Unreadable(f"{brief(name)} is no id of the Hugging Face hub; OWNER/NAME or OWNER/NAME@REVISION is needed")
    model, revision = found["name"], found["revision"]
    cached = _cached(model, revision)
    if cached is not None:
        say(f"{name}: commit {cached.name} of the local hub cache")
        return cached
    say(f"{name}: downloading from the Hugging Face hub")
    configured = _downloaded(model, revision, NEEDED[:1])
    if (configured / NEEDED[0]).is_file():
        check(configured)
    folder = _downloaded(model, revision, WANTED)
    if not _complete(folder):  # without a network the client returns whatever part it has
        raise _unreachable(model, f"{folder} lacks {', '.join(NEEDED)} or safetensors files")
    return folder


def _cached(model: str, revision: str | None) -> Path | None:
    """The cached snapshot if the whole model is in it."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(
            snapshot_download(
                model, revision=revision, local_files_only=True, allow_patterns=WANTED, ignore_patterns=UNWANTED
            )
        )
    except LocalEntryNotFoundError:
        return None
    return folder if _complete(folder) else None


def _complete(folder: Path) -> bool:
    """Whether configuration, tokenizer and weights are there, and every file of a sharded model's index."""
    from squelch.kit.models.model_folder import INDEX, WEIGHTS, weight_files

    if not all((folder / name).is_file() for name in NEEDED):
        return False
    if (folder / INDEX).is_file():
        return all(path.is_file() for path in weight_files(folder))
    return (folder / WEIGHTS).is_file()  # without an index a shard is the beginning of an interrupted download


def _downloaded(model: str, revision: str | None, wanted: Sequence[str]) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    try:
        return Path(snapshot_download(model, revision=revision, allow_patterns=list(wanted), ignore_patterns=UNWANTED))
    except HfHubHTTPError as error:
        raise Unreadable(
            f"{model}: the Hugging Face hub refuses it ({reason(error)}), and there is no such folder here; check the "
            "name, or log in with `hf auth login` if the model is gated"
        ) from error
    except (OfflineModeIsEnabled, LocalEntryNotFoundError, HTTPError, OSError) as error:
        raise _unreachable(model, reason(error)) from error


def _unreachable(model: str, why: str) -> Unreadable:
    return Unreadable(
        f"{model}: there is no such folder here, the local hub cache does not hold the whole model, "
        f"and it cannot be downloaded ({why}); where there is a network, run `hf download {model}`, and copy the cache "
        "or give the folder's path"
    )
