"""What a model's own configuration says about pictures: patches, normalisation and the ids that stand for them.

Invariants:

- Nothing is assumed: a folder whose files disagree, lack a value or ask for another treatment of pixels is refused.
- A picture is never resized here. `Vision.grid` accepts only sizes that the model's published processor leaves as they
  are; all others are refused, with the size that would be right (`Vision.fitting`).
- Only architectures in `PROVEN` are fed pictures: families differ in the order of patches and in positions, and none
  of these differences raises an error. `is_proven` alone decides; a `vision_config` that another model's file has, as
  one that was cut out of a larger model may, says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from squelch.kit.untrusted.files import MIB, Unreadable, brief, is_file, read_bytes
from squelch.kit.untrusted.text import parse_object

PROVEN = ("Qwen2_5_VLForConditionalGeneration",)
"""Architectures whose patches and positions were compared with the published ones."""
CONFIG, PREPROCESSOR = "config.json", "preprocessor_config.json"
_MAX_JSON = 16 * MIB
_MAX_PATCH, _MAX_MERGE, _MAX_TEMPORAL = 64, 8, 8
_MAX_RATIO = 200
"""Of a picture's sides."""
_NUMBERS = {"patch_size": _MAX_PATCH, "merge_size": _MAX_MERGE, "temporal_patch_size": _MAX_TEMPORAL}
"""Keys of the preprocessor's file that config.json has too, each with its largest value."""
_IN_CONFIG = {"merge_size": "spatial_merge_size"}
"""The names of such keys in `vision_config`, where they differ."""
_IDS = ("vision_start_token_id", "vision_end_token_id", "image_token_id", "video_token_id")
_ALWAYS = ("do_rescale", "do_normalize", "do_convert_rgb")


class Grid(NamedTuple):
    """Rows and columns of a picture's patches, before they are merged."""

    rows: int
    columns: int


@dataclass(frozen=True)
class Vision:
    """How a model is fed pictures.

    `patch`: side of a patch in pixels; `merge`: patches a side that become one token; `temporal`: times that a
    picture's patch is repeated, as the frames of a video would be. `mean`, `std`: of red, green and blue, for pixels
    scaled to [0, 1]. `least_pixels`, `most_pixels`: outside these the published processor resizes.
    """

    folder: str
    patch: int
    merge: int
    temporal: int
    mean: tuple[float, float, float]
    std: tuple[float, float, float]
    least_pixels: int
    most_pixels: int
    start_id: int
    end_id: int
    picture_id: int
    video_id: int

    @property
    def side_multiple(self) -> int:
        """Pixels of which a picture's sides must be multiples."""
        return self.patch * self.merge

    @property
    def control_ids(self) -> frozenset[int]:
        """The ids that foreign text must never become."""
        return frozenset((self.start_id, self.end_id, self.picture_id, self.video_id))

    def require_apart(self, control: Collection[int]) -> None:
        """Raises ValueError unless the tokenizer, whose control tokens have these ids, keeps pictures apart from
        text."""
        if lacking := sorted(self.control_ids.difference(control)):
            raise ValueError(
                f"{Path(self.folder) / CONFIG}: the ids {lacking} stand for pictures there, but tokenizer.json has no "
                "special tokens with them, so text could spell a picture; take the model's own tokenizer"
            )

    def grid(self, width: int, height: int) -> Grid:
        """The patches of a picture of that size in pixels. Raises ValueError for a size that would need resizing."""
        side, pixels = self.side_multiple, width * height
        if width <= 0 or height <= 0 or width % side or height % side:
            raise ValueError(
                f"a picture of {width} x {height} pixels does not fit the model in {self.folder}: both sides must be "
                f"multiples of {side} (patch {self.patch} x merge {self.merge}); pictures are never resized"
                f"{self._remedy(width, height)}"
            )
        if not self.least_pixels <= pixels <= self.most_pixels:
            raise ValueError(
                f"a picture of {width} x {height} pixels does not fit the model in {self.folder}: its processor "
                f"resizes pictures of fewer than {self.least_pixels} or more than {self.most_pixels} pixels "
                f"({PREPROCESSOR}), and pictures are never resized here{self._remedy(width, height)}"
            )
        return Grid(height // self.patch, width // self.patch)

    def fitting(self, width: int, height: int) -> tuple[int, int]:
        """The (width, height) to which the published processor resizes a picture. Raises ValueError for one whose sides
        differ more than it takes."""
        if _is_narrow(width, height):
            raise ValueError(
                f"a picture of {width} x {height} pixels is none that the model in {self.folder} is fed: one side is "
                f"more than {_MAX_RATIO} times the other"
            )
        side = self.side_multiple
        found = [round(each / side) * side for each in (width, height)]
        if found[0] * found[1] > self.most_pixels:
            shrink = math.sqrt(width * height / self.most_pixels)
            found = [max(side, math.floor(each / shrink / side) * side) for each in (width, height)]
        elif found[0] * found[1] < self.least_pixels:
            grow = math.sqrt(self.least_pixels / (width * height))
            found = [math.ceil(each * grow / side) * side for each in (width, height)]
        return found[0], found[1]

    def _remedy(self, width: int, height: int) -> str:
        if _is_narrow(width, height):
            return ""
        right = self.fitting(width, height)
        return f"; {right[0]} x {right[1]} would fit"

    def placeholders(self, width: int, height: int) -> list[int]:
        """The ids that a policy is fed for a picture: start, one placeholder for each of its tokens, end."""
        return [self.start_id, *[self.picture_id] * self.tokens(width, height), self.end_id]

    def tokens(self, width: int, height: int) -> int:
        """Number of placeholder ids of a picture, without the two around them. Raises ValueError as `grid` does."""
        grid = self.grid(width, height)
        return (grid.rows // self.merge) * (grid.columns // self.merge)


def _is_narrow(width: int, height: int) -> bool:
    """Whether the published processor refuses a picture of that size."""
    return min(width, height) <= 0 or max(width, height) > _MAX_RATIO * min(width, height)


def is_proven(architectures: Any) -> bool:
    """Whether a model of these `architectures` (config.json) has a vision tower that can be fed pictures."""
    return isinstance(architectures, list) and bool(architectures) and architectures[0] in PROVEN


def vision_of(folder: Path) -> Vision | None:
    """What the model folder says about pictures; None for a model without a proven vision tower. Raises Unreadable,
    naming folder, file and key, for files that are incomplete or contradict each other."""
    config = _json(folder, CONFIG)
    if not is_proven(config.get("architectures")):
        return None
    tower = config.get("vision_config")
    if not isinstance(tower, dict):
        raise Unreadable(f"model folder {folder}: vision_config in {CONFIG} is {brief(tower)}; an object is needed")
    shown = _json(folder, PREPROCESSOR)
    sizes = {key: _agreed(folder, key, most, tower, shown) for key, most in _NUMBERS.items()}
    _require_plain_pixels(folder, shown, tower)
    ids = [_id(folder, key, config) for key in _IDS]
    if len(set(ids)) < len(ids):
        raise Unreadable(
            f"model folder {folder}: two of {', '.join(_IDS)} in {CONFIG} are the same id; four are needed"
        )
    least, most = _bounds(folder, shown)
    return Vision(
        str(folder),
        patch=sizes["patch_size"],
        merge=sizes["merge_size"],
        temporal=sizes["temporal_patch_size"],
        mean=_colours(folder, "image_mean", shown, 0.0),
        std=_colours(folder, "image_std", shown, 1e-3),
        least_pixels=least,
        most_pixels=most,
        start_id=ids[0],
        end_id=ids[1],
        picture_id=ids[2],
        video_id=ids[3],
    )


def _json(folder: Path, name: str) -> dict[str, Any]:
    if not is_file(folder / name):
        raise Unreadable(f"model folder {folder}: no {name}; the model's own one is needed")
    return parse_object(read_bytes(folder / name, _MAX_JSON), str(folder / name))


def _whole(value: Any, least: int, most: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def _agreed(folder: Path, key: str, most: int, tower: Mapping[str, Any], shown: Mapping[str, Any]) -> int:
    """A number that both files have. The tower's weights fix it in one, the processor follows the other."""
    name = _IN_CONFIG.get(key, key)
    for file, named, value in ((CONFIG, f"vision_config.{name}", tower.get(name)), (PREPROCESSOR, key, shown.get(key))):
        if not _whole(value, 1, most):
            raise Unreadable(
                f"model folder {folder}: {named} in {file} is {brief(value)}; a number from 1 to {most} is needed"
            )
    if tower[name] != shown[key]:
        raise Unreadable(
            f"model folder {folder}: vision_config.{name} in {CONFIG} is {tower[name]}, but {key} in {PREPROCESSOR} is "
            f"{shown[key]}; they must be equal"
        )
    return tower[name]


def _require_plain_pixels(folder: Path, shown: Mapping[str, Any], tower: Mapping[str, Any]) -> None:
    for key in _ALWAYS:
        if shown.get(key, True) is not True:
            raise Unreadable(f"model folder {folder}: {key} in {PREPROCESSOR} is {brief(shown[key])}; true is needed")
    factor = shown.get("rescale_factor", 1 / 255)
    if not isinstance(factor, float) or abs(factor * 255 - 1) > 1e-6:
        raise Unreadable(f"model folder {folder}: rescale_factor in {PREPROCESSOR} is {brief(factor)}; 1/255 is needed")
    if (channels := tower.get("in_channels", tower.get("in_chans", 3))) != 3:
        raise Unreadable(
            f"model folder {folder}: vision_config has {brief(channels)} channels in {CONFIG}; 3 are needed"
        )


def _colours(folder: Path, key: str, shown: Mapping[str, Any], least: float) -> tuple[float, float, float]:
    value = shown.get(key)
    numbers = value if isinstance(value, list) and len(value) == 3 else [None]
    if not all(isinstance(one, int | float) and least <= one <= 1 for one in numbers):
        raise Unreadable(
            f"model folder {folder}: {key} in {PREPROCESSOR} is {brief(value)}; three numbers from {least} to "
            "1 are needed"
        )
    red, green, blue = (float(one) for one in numbers)
    return red, green, blue


def _bounds(folder: Path, shown: Mapping[str, Any]) -> tuple[int, int]:
    """The fewest and the most pixels that the processor leaves as they are, under the older or the newer keys."""
    size = shown.get("size")
    newer = size if isinstance(size, dict) else {}
    least = shown.get("min_pixels", newer.get("shortest_edge"))
    most = shown.get("max_pixels", newer.get("longest_edge"))
    if not (_whole(least, 1, 2**40) and _whole(most, least, 2**40)):
        raise Unreadable(
            f"model folder {folder}: min_pixels and max_pixels (or size.shortest_edge and size.longest_edge) in "
            f"{PREPROCESSOR} are {brief(least)} and {brief(most)}; the fewest and the most pixels of a picture are "
            "needed"
        )
    return least, most


def _id(folder: Path, key: str, config: Mapping[str, Any]) -> int:
    text = config.get("text_config")
    words = (text if isinstance(text, dict) else config).get("vocab_size", config.get("vocab_size"))
    if not _whole(words, 1, 2**31 - 1) or not _whole(config.get(key), 0, words - 1):
        raise Unreadable(
            f"model folder {folder}: {key} in {CONFIG} is {brief(config.get(key))}, with a vocab_size of "
            f"{brief(words)}; an id of the vocabulary is needed"
        )
    return config[key]
