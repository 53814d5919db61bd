"""The format of the model in a folder.

The run decides it once, before any actor starts, and the folder of the initial policy says so to every process:
`squelch_format.json` names a family, and a folder without it has the format `own`.
"""

from __future__ import annotations

from pathlib import Path

from squelch.actors.formats.families import AUTO, NAMES, OWN, known_format
from squelch.actors.formats.packaged import PackagedFormat
from squelch.actors.formats.protocol import Format
from squelch.actors.play.codec import ChatCodec
from squelch.actors.text.chat_template import read_chat_template, read_chat_tokenizer
from squelch.actors.text.shipped_templates import FORMAT_FILE
from squelch.actors.text.tokenizer import read_object


def stamped(folder: Path) -> str:
    """The format that a folder names, `own` if it names none. Raises ValueError for a name that is none."""
    path = folder / FORMAT_FILE
    name = read_object(path).get("format", OWN)
    if name not in NAMES:
        raise ValueError(f"{path}: format={str(name)[:100]!r} is none of {', '.join(NAMES)}")
    return name


def chosen(folder: Path, setting: str, whole_turns: bool) -> str:
    """The format for the model in a folder. `setting`: `model.format`; `whole_turns`: whether the environment's turns
    are the model's own, so that they need no template that keeps them.

    Raises ValueError for a family where the environment's turns are those of Squelch.
    """
    if not whole_turns:
        if setting not in (AUTO, OWN):
            raise ValueError(
                f"model.format={setting} is for environments without a turn format of Squelch, such as Prompts; leave "
                "it out, and the turns are written with the model's chat template"
            )
        return OWN
    if setting != AUTO:
        return setting
    if (name := stamped(folder)) != OWN:
        return name
    template = read_chat_template(folder, read_chat_tokenizer(folder)).source
    return known_format(str(read_object(folder / "config.json").get("model_type")), template)


def open_format(folder: str | Path) -> Format:
    """The format of the model in a folder. Raises ValueError if the model does not fit it."""
    name = stamped(Path(folder))
    return ChatCodec(folder) if name == OWN else PackagedFormat(folder, name)


def squelch_turns(one: Format, environment: str) -> ChatCodec:
    """The format as one that can write Squelch's own turns. Raises ValueError if it cannot."""
    if not isinstance(one, ChatCodec):
        raise ValueError(
            f"environment {environment} has the turn format of Squelch, which the format {one.name} cannot write"
        )
    return one
