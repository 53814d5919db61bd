"""Small pictures for tests: a different one for each name."""

from __future__ import annotations

import hashlib

import numpy as np

from squelch.kit.records.content import Picture as PlacedPicture
from squelch.kit.records.pictures import Picture


def picture(kind: bytes = b"", width: int = 8, height: int = 8) -> Picture:
    """Pixels that the name determines."""
    seed = int.from_bytes(hashlib.sha256(kind).digest()[:8], "big")
    return Picture(np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8))


def placed(position: int, kind: bytes = b"") -> PlacedPicture:
    """Such a picture in a trajectory."""
    return PlacedPicture.of(position, picture(kind))
