"""What an observation shows beside text: pictures, by their decoded pixels.

A picture is its RGB values and nothing else: its identity is a digest of them and of the size, so that two files with
the same pixels are one picture. Pure.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from squelch.kit.untrusted.files import brief

if TYPE_CHECKING:
    import numpy as np


@dataclass(frozen=True, eq=False)
class Picture:
    """`rgb`: (height, width, 3) uint8, which becomes read-only. Two pictures are equal if their pixels are."""

    rgb: np.ndarray
    identity: str = field(init=False)
    """SHA-256 of size and pixels, in hexadecimal."""

    def __post_init__(self) -> None:
        import numpy as np  # commands that list environments do without it

        rgb = self.rgb
        if (
            not isinstance(rgb, np.ndarray)
            or rgb.dtype != np.uint8
            or rgb.ndim != 3
            or rgb.shape[2] != 3
            or not rgb.size
        ):
            given = f"{rgb.dtype} {rgb.shape}" if isinstance(rgb, np.ndarray) else " ".join(brief(rgb).split())
            raise ValueError(
                f"a picture is an array of uint8 with the shape (height, width, 3), both above 0, not {given}"
            )
        pixels = np.array(rgb, order="C")  # its own, so that a renderer may draw into its array again
        pixels.flags.writeable = False
        digest = hashlib.sha256(f"rgb {pixels.shape[0]} {pixels.shape[1]} ".encode() + pixels.tobytes()).hexdigest()
        object.__setattr__(self, "rgb", pixels)
        object.__setattr__(self, "identity", digest)

    @property
    def size(self) -> tuple[int, int]:
        """(width, height) in pixels."""
        return self.rgb.shape[1], self.rgb.shape[0]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Picture) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)


@dataclass(frozen=True)
class Shown:
    """An observation, or the content of a message, of text and pictures in the order in which the policy sees them."""

    parts: tuple[str | Picture, ...]

    @classmethod
    def of(cls, *parts: str | Picture | Shown) -> str | Shown:
        """The parts one after the other, with adjacent texts joined; plain text if there is no picture."""
        flat: list[str | Picture] = []
        for part in parts:
            for one in part.parts if isinstance(part, Shown) else (part,):
                if isinstance(one, str) and flat and isinstance(flat[-1], str):
                    flat[-1] += one
                elif one != "":
                    flat.append(one)
        if all(isinstance(one, str) for one in flat):
            return "".join(one for one in flat if isinstance(one, str))
        return cls(tuple(flat))

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """The pictures, in order."""
        return tuple(part for part in self.parts if isinstance(part, Picture))

    @property
    def text(self) -> str:
        """The text alone, as if there were no pictures."""
        return "".join(part for part in self.parts if isinstance(part, str))


def text_of(content: str | Shown) -> str:
    """The text of a message's content, without its pictures."""
    return content if isinstance(content, str) else content.text


def shown_of(observation: Any, method: str) -> str | Shown:
    """An environment's observation. Raises ValueError with the method's name if it is neither text nor `Shown`."""
    if isinstance(observation, str):
        return observation
    if isinstance(observation, Shown) and all(isinstance(part, str | Picture) for part in observation.parts):
        return Shown.of(observation)
    given = " ".join(brief(observation).split())
    raise ValueError(
        f"the environment's {method}() returned the observation {given}, which must be text, or text and pictures "
        "(envs.pictures.Shown)"
    )
