"""Patches are those of the published processor, for every size that is accepted."""

import numpy as np
import pytest

from squelch.kit.pictures.geometry import vision_of
from squelch.kit.pictures.patches import patches

SIZES = [(8, 8), (32, 32), (48, 32), (16, 72), (128, 128)]


@pytest.fixture(scope="module")
def pictures() -> list[np.ndarray]:
    rng = np.random.default_rng(3)
    found = [rng.integers(0, 256, (height, width, 3), np.uint8) for width, height in SIZES]
    found[1].reshape(-1)[:256] = np.arange(256)  # every level
    return found


def test_patches_are_bit_for_bit_those_of_the_published_processor(folder_with, pictures) -> None:
    module = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    folder = folder_with()
    vision = vision_of(folder)
    published = module.Qwen2VLImageProcessorPil.from_pretrained(folder, local_files_only=True)
    for rgb in pictures:
        theirs = published([rgb], return_tensors="np", input_data_format="channels_last")
        mine = patches(rgb, vision)
        assert mine.dtype == np.float32 and np.array_equal(mine, theirs["pixel_values"])
        grid = vision.grid(rgb.shape[1], rgb.shape[0])
        assert theirs["image_grid_thw"].tolist() == [[1, *grid]]


def test_a_changed_pixel_changes_the_frames_of_one_patch_alone(folder_with, pictures) -> None:
    vision, rgb = vision_of(folder_with()), pictures[2]
    other = rgb.copy()
    other[5, 6, 1] ^= 128  # row 1, column 1 of the patches: the last patch of the first token
    changed = np.argwhere(patches(rgb, vision) != patches(other, vision))
    assert set(changed[:, 0]) == {3} and len(changed) == vision.temporal


@pytest.mark.parametrize("wrong", [np.zeros((8, 8, 3)), np.zeros((8, 8), np.uint8), np.zeros((8, 8, 4), np.uint8)])
def test_anything_but_8_bit_rgb_is_refused(folder_with, wrong: np.ndarray) -> None:
    with pytest.raises(ValueError, match="uint8"):
        patches(wrong, vision_of(folder_with()))


def test_a_picture_that_does_not_fit_is_refused_and_not_resized(folder_with) -> None:
    with pytest.raises(ValueError, match="never resized"):
        patches(np.zeros((12, 8, 3), np.uint8), vision_of(folder_with()))
