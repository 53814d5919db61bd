"""Writes safetensors as other files are written."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from stat import S_IMODE
from typing import TYPE_CHECKING

from safetensors.torch import save_file

if TYPE_CHECKING:
    from torch import Tensor


def save_tensors(tensors: Mapping[str, Tensor], path: Path) -> None:
    """Writes a file that others may read as far as the user's umask lets them; safetensors itself writes one that only
    its owner may read. Raises OSError or SafetensorError when it cannot."""
    path.touch()
    mode = S_IMODE(path.stat().st_mode)
    save_file(dict(tensors), path, metadata={"format": "pt"})
    path.chmod(mode)
