"""A picture's pixels as the patches that a vision tower of the Qwen-VL family is fed.

Invariants:

- Equal to the model's published processor, bit for bit, for every picture that `Vision.grid` accepts.
- The same pixels give the same patches in every process: one function, numpy alone, no threads and no resizing.
"""

from __future__ import annotations

import numpy as np

from squelch.kit.pictures.geometry import Vision


def patches(rgb: np.ndarray, vision: Vision) -> np.ndarray:
    """(rows * columns, 3 * temporal * patch * patch) float32 of a picture, (height, width, 3) uint8.

    Patches come in the order of the tokens into which they are merged, row by row; within a token likewise. Raises
    ValueError for a size that does not fit, as `Vision.grid` does, and for anything but uint8 RGB.
    """
    if rgb.dtype != np.uint8 or rgb.ndim != 3 or rgb.shape[2] != 3:
        raise ValueError(f"a picture is (height, width, 3) uint8, not {rgb.shape} {rgb.dtype}")
    height, width, _ = rgb.shape
    grid = vision.grid(width, height)
    scaled = _levels(vision)[np.arange(3)[:, None, None], rgb.transpose(2, 0, 1)]
    merge, patch = vision.merge, vision.patch
    parts = scaled.reshape(3, grid.rows // merge, merge, patch, grid.columns // merge, merge, patch)
    parts = parts.transpose(1, 4, 2, 5, 0, 3, 6)[:, :, :, :, :, None]  # then: token, patch of it, colour, frame, pixel
    frames = np.broadcast_to(parts, (*parts.shape[:5], vision.temporal, patch, patch))
    return np.ascontiguousarray(frames.reshape(grid.rows * grid.columns, -1))


def _levels(vision: Vision) -> np.ndarray:
    """(3, 256) float32: what each value of a colour becomes, in the published order of roundings."""
    mean, std = (np.array(one, np.float32)[:, None] for one in (vision.mean, vision.std))
    return ((np.arange(256) * (1 / 255)).astype(np.float32) - mean) / std
