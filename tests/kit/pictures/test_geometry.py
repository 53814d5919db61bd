"""A model folder's own files decide how pictures are fed, and files that do not are refused by name."""

import pytest

from squelch.kit.pictures.geometry import Grid, vision_of
from squelch.kit.untrusted.files import Unreadable


def test_a_picture_becomes_one_token_for_each_merged_square_of_patches(folder_with) -> None:
    vision = vision_of(folder_with())
    assert vision is not None and vision.side_multiple == 8
    assert vision.grid(48, 32) == Grid(8, 12) and vision.tokens(48, 32) == 4 * 6
    assert vision.control_ids == {90, 91, 92, 93}


@pytest.mark.parametrize("architectures", [["Qwen2ForCausalLM"], ["LlavaForConditionalGeneration"], "Qwen", [], None])
def test_the_architecture_alone_says_whether_a_model_has_a_tower(folder_with, architectures) -> None:
    assert vision_of(folder_with("config.json", "architectures", architectures)) is None


@pytest.mark.parametrize("size", [(30, 32), (32, 28), (0, 8), (-8, 8), (8, 4)])
def test_a_side_that_is_no_multiple_of_patch_times_merge_is_refused_and_not_resized(folder_with, size) -> None:
    with pytest.raises(ValueError, match=r"multiples of 8 .* never resized"):
        vision_of(folder_with()).tokens(*size)


def test_a_size_that_the_published_processor_would_resize_is_refused(folder_with) -> None:
    vision = vision_of(folder_with("preprocessor_config.json", "min_pixels", 65))
    with pytest.raises(ValueError, match="fewer than 65 or more than 16384"):
        vision.tokens(8, 8)
    assert vision.tokens(128, 128) == 256
    with pytest.raises(ValueError, match="fewer than 65 or more than 16384"):
        vision.tokens(136, 128)


def test_the_size_that_would_fit_is_the_published_processors(folder_with) -> None:
    module = pytest.importorskip("transformers.models.qwen2_vl.image_processing_pil_qwen2_vl")
    vision = vision_of(folder_with("preprocessor_config.json", "min_pixels", 640))
    for width, height in [(30, 32), (3, 7), (8, 8), (500, 90), (1000, 9), (131, 127), (2000, 2000)]:
        found = module.smart_resize(height, width, 8, vision.least_pixels, vision.most_pixels)
        assert vision.fitting(width, height) == found[::-1]
    with pytest.raises(ValueError, match="32 x 32 would fit"):
        vision.grid(30, 32)
    with pytest.raises(ValueError, match="more than 200 times"):
        vision.fitting(8, 2000)


SHOWN = "preprocessor_config.json"


@pytest.mark.parametrize(
    ("file", "key", "value", "says"),
    [
        ("config.json", "vision_config", None, "vision_config in config.json is None"),
        ("config.json", "vision_config", 3, "vision_config in config.json is 3"),
        ("config.json", "vision_config.patch_size", 8, "patch_size in config.json is 8, but .* is 4"),
        ("config.json", "vision_config.spatial_merge_size", True, "spatial_merge_size in config.json is True"),
        ("config.json", "vision_config.temporal_patch_size", 10**9, "number from 1 to 8"),
        ("config.json", "vision_config.in_chans", 1, "channels"),
        ("config.json", "image_token_id", 96, "image_token_id .* with a vocab_size of 96"),
        ("config.json", "video_token_id", 92, "the same id"),
        ("config.json", "text_config.vocab_size", None, "vocab_size of None"),
        (SHOWN, "patch_size", [4, 4], "patch_size in preprocessor_config.json"),
        (SHOWN, "image_mean", None, "image_mean .* three numbers"),
        (SHOWN, "image_std", [0.5, 0.0, 0.5], "image_std"),
        (SHOWN, "image_std", [0.5, float("nan"), 0.5], "image_std"),
        (SHOWN, "do_normalize", False, "do_normalize"),
        (SHOWN, "rescale_factor", 1.0, "rescale_factor"),
        (SHOWN, "max_pixels", None, "max_pixels"),
        (SHOWN, "min_pixels", 20000, "min_pixels"),
    ],
)
def test_files_that_leave_the_treatment_of_pictures_open_are_refused(folder_with, file, key, value, says) -> None:
    folder = folder_with(file, key, value)
    with pytest.raises(Unreadable, match=says) as error:
        vision_of(folder)
    assert str(folder) in str(error.value)


def test_a_tower_without_the_processors_file_is_refused(folder_with) -> None:
    folder = folder_with()
    (folder / SHOWN).unlink()
    with pytest.raises(Unreadable, match=r"no preprocessor_config\.json"):
        vision_of(folder)
