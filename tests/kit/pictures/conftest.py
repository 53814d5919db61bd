"""A model folder that says what a small Qwen2.5-VL says about pictures; it has no weights."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CONFIG: dict[str, Any] = {
    "architectures": ["Qwen2_5_VLForConditionalGeneration"],
    "vision_start_token_id": 90,
    "vision_end_token_id": 91,
    "image_token_id": 92,
    "video_token_id": 93,
    "text_config": {"vocab_size": 96},
    "vision_config": {"patch_size": 4, "spatial_merge_size": 2, "temporal_patch_size": 2},
}
PREPROCESSOR: dict[str, Any] = {
    "patch_size": 4,
    "merge_size": 2,
    "temporal_patch_size": 2,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
    "min_pixels": 64,
    "max_pixels": 16384,
}


def _changed(values: dict[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A copy with another value at the dotted key, or without the key where the value is None."""
    changed = json.loads(json.dumps(values))
    *above, last = key.split(".")
    inner = changed
    for name in above:
        inner = inner[name]
    if value is None:
        del inner[last]
    else:
        inner[last] = value
    return changed


@pytest.fixture
def folder_with(tmp_path: Path) -> Callable[..., Path]:
    """Writes the folder, with one key of one of its files changed, and returns it."""

    def write(file: str = "", key: str = "", value: Any = None) -> Path:
        for name, values in (("config.json", CONFIG), ("preprocessor_config.json", PREPROCESSOR)):
            shown = _changed(values, key, value) if name == file else values
            (tmp_path / name).write_text(json.dumps(shown))
        return tmp_path

    return write
