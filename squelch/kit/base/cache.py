"""The folder of the user for what may be made or fetched again: indices, copies of models, staged files."""

import os
from pathlib import Path

from platformdirs import user_cache_path

from squelch.kit.untrusted.files import brief, reason

CACHE_VARIABLE = "SQUELCH_CACHE"


def cache_folder(cache: str | os.PathLike[str] | None = None) -> Path:
    """`cache`, else the variable `SQUELCH_CACHE`, else the user's cache folder."""
    named = cache or os.environ.get(CACHE_VARIABLE)
    try:
        return Path(named).expanduser().resolve() if named else user_cache_path("squelch")
    except (RuntimeError, OSError) as error:  # no such user, or a link that leads back to itself
        raise ValueError(f"cache {brief(named)} cannot be found: {reason(error)}") from error
