"""The format of the model in a folder.

The run decides it once, before any actor starts, and the folder of the initial policy says so to every process:
`squelch_format.json` names a family, and whether the reasoning of earlier turns is kept. A folder without it has the
format `own`, which keeps it.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from squelch.actors.formats.families import ALL, AUTO, KEPT, NAMES, OWN, known_format
from squelch.actors.formats.packaged import PackagedFormat
from squelch.actors.formats.protocol import Format
from squelch.actors.play.codec import ChatCodec
from squelch.actors.text.chat_template import read_chat_template, read_chat_tokenizer
from squelch.actors.text.shipped_templates import FORMAT_FILE
from squelch.actors.text.tokenizer import read_object

AnyFormat = ChatCodec | PackagedFormat


class Stamp(NamedTuple):
    """What a folder says of its model's format: the settings `model.format`, once it is known, and
    `model.keep_reasoning`."""

    format: str = OWN
    keep_reasoning: str = ALL


def stamped(folder: Path) -> Stamp:
    """The format that a folder names, `own` if it names none. Raises ValueError for a name that is none."""
    path = folder / FORMAT_FILE
    found = Stamp(**{key: value for key, value in read_object(path).items() if key in Stamp._fields})
    for key, value, names in zip(Stamp._fields, found, (NAMES, KEPT), strict=True):
        if value not in names:
            raise ValueError(f"{path}: {key}={str(value)[:100]!r} is none of {', '.join(names)}")
    return found


def chosen(folder: Path, setting: str, whole_turns: bool, keep_reasoning: str = ALL) -> Stamp:
    """The format for the model in a folder. `setting`: `model.format`; `whole_turns`: whether the environment's turns
    are the model's own, so that they need no template that keeps them; `keep_reasoning`: `model.keep_reasoning`.

    Raises ValueError for a family, or a template that removes reasoning, where the environment's turns are those of
    Squelch.
    """
    if not whole_turns:
        for key, value, plain in (("format", setting, (AUTO, OWN)), ("keep_reasoning", keep_reasoning, (ALL,))):
            if value not in plain:
                raise ValueError(
                    f"model.{key}={value} is for environments without a turn format of Squelch, such as Prompts; leave "
                    "it out, and the turns are written with the model's chat template"
                )
        return Stamp()
    return Stamp(_known(folder) if setting == AUTO else setting, keep_reasoning)


def _known(folder: Path) -> str:
    if (name := stamped(folder).format) != OWN:
        return name
    template = read_chat_template(folder, read_chat_tokenizer(folder)).source
    return known_format(str(read_object(folder / "config.json").get("model_type")), template)


def open_format(folder: str | Path) -> AnyFormat:
    """The format of the model in a folder. Raises ValueError if the model does not fit it."""
    name, keep_reasoning = stamped(Path(folder))
    keeps = keep_reasoning == ALL
    return ChatCodec(folder, keeps) if name == OWN else PackagedFormat(folder, name, keeps)


def squelch_turns(one: Format, environment: str) -> ChatCodec:
    """The format as one that can write Squelch's own turns. Raises ValueError if it cannot."""
    if not one.keeps_reasoning:
        raise ValueError(
            f"environment {environment} has the turn format of Squelch, whose turns keep their reasoning; drop "
            "model.keep_reasoning=template"
        )
    if not isinstance(one, ChatCodec):
        raise ValueError(
            f"environment {environment} has the turn format of Squelch, which the format {one.name} cannot write"
        )
    return one
