"""The format of the model in a folder.

The run decides it once, before any actor starts, and the folder of the initial policy says so to every process: its
stamp (`kit.text.stamp`) names a family, whether the reasoning of earlier turns is kept, and where reasoning lies. A
folder without it has the format `own`, which keeps it, and reasoning between markers. A family counts for the chat
template for which it was chosen: with another template, as by `model.chat_template`, the format is chosen anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import get_args

from squelch.actors.formats.families import ALL, AUTO, KEPT, NAMES, OWN, known_format, template_digest
from squelch.actors.formats.packaged import PackagedFormat
from squelch.actors.formats.protocol import Format
from squelch.actors.play.codec import ChatCodec
from squelch.kit.text.answer_start import MARKED, AnswerStart, Reasoning
from squelch.kit.text.chat_template import read_chat_template, read_chat_tokenizer
from squelch.kit.text.stamp import STAMP_FILE, Stamp, read_stamp
from squelch.kit.text.tokenizer import read_object

AnyFormat = ChatCodec | PackagedFormat


def stamped(folder: Path) -> Stamp:
    """The stamp of a folder, that of the format `own` if it has none. Raises ValueError for a name that is none."""
    found = read_stamp(folder)
    kinds = ("reasoning", found.reasoning, get_args(Reasoning))
    for key, value, names in (("format", found.format, NAMES), ("keep_reasoning", found.keep_reasoning, KEPT), kinds):
        if value not in names:
            raise ValueError(f"{folder / STAMP_FILE}: {key}={value[:100]!r} is none of {', '.join(names)}")
    return found


def chosen(
    folder: Path,
    setting: str,
    squelchs: Sequence[str] = (),
    keep_reasoning: str = ALL,
    reasoning: str = MARKED,
    answer: str = "",
) -> Stamp:
    """The stamp for the model in a folder. `setting`: `model.format`; `squelchs`: the environments whose turns are
    those of Squelch, which need a template that keeps them; the others: the settings of these names.

    Raises ValueError for a family, a template that removes reasoning, or reasoning elsewhere than between markers,
    where some are.
    """
    kept, lies = ("keep_reasoning", keep_reasoning, (ALL,)), ("reasoning", reasoning, (MARKED,))
    for key, value, plain in (("format", setting, (AUTO, OWN)), kept, lies):
        if squelchs and value not in plain:
            raise ValueError(
                f"model.{key}={value} is for environments without a turn format of Squelch, such as Prompts, and not "
                f"for {', '.join(squelchs)}; leave it out, and all turns are written with the model's chat template"
            )
    own = stamped(folder)._replace(
        format=OWN, keep_reasoning=keep_reasoning, template="", reasoning=reasoning, answer=answer
    )
    if squelchs or setting == OWN:
        return own
    source = read_chat_template(folder, read_chat_tokenizer(folder)).source
    name = _known(folder, source) if setting == AUTO else setting
    return own if name == OWN else own._replace(format=name, template=template_digest(source))


def _known(folder: Path, template: str) -> str:
    """The format on the stamp, if that was made for this template, else that of a known model."""
    stamp = stamped(folder)
    if stamp.format != OWN and stamp.template in ("", template_digest(template)):
        return stamp.format
    return known_format(str(read_object(folder / "config.json").get("model_type")), template)


def open_format(folder: str | Path) -> AnyFormat:
    """The format of the model in a folder. Raises ValueError if the model does not fit it."""
    stamp = stamped(Path(folder))
    keeps = stamp.keep_reasoning == ALL
    found = ChatCodec(folder, keeps) if stamp.format == OWN else PackagedFormat(folder, stamp.format, keeps)
    found.reasoning, found.answer_start = stamp.reasoning, AnswerStart(stamp.answer) if stamp.answer else None
    return found


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
