"""A page's blocks and marks. Pure."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

REASONS = ("GPU", "Docker", "Kubernetes", "download", "hours")
"""Why a command may be left out of a walk."""
MODES = ("wheel", "checkout")
Kind = Literal["commands", "python", "file", "output", "shown"]
_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)$")
_MARK = re.compile(r"^ *<!-- (?P<what>walk|file): (?P<text>.*?) -->$")
_COMMAND = re.compile(
    r"\s*(#!|(\S*/)?(squelch|make|python|pip|prometheus|nohup|export|ray|docker|helm|kubectl|[A-Z_]+=\S+) )"
)
"""How a block of commands begins that names no language."""
_MARKED = re.compile(r"(?P<word>not run|file|presumes|exit|warns|output|shown|as)(?::? (?P<rest>.+))?")


class PageFault(ValueError):
    """A page that cannot be walked; the message begins with the page's line."""


@dataclass(frozen=True)
class Block:
    """One fenced block. `line`: that of its first line of content, from 1."""

    line: int
    kind: Kind
    text: str
    file: str = ""
    presumes: tuple[str, ...] = ()
    exit_code: int = 0
    not_run: dict[str, str] = field(default_factory=dict)
    """The beginning of each command that is not run (empty: all of them), and the reason."""
    warns: tuple[str, ...] = ()
    same_as: str = ""
    """The page that has the same commands, and walks them."""


@dataclass(frozen=True)
class Page:
    """What a walk needs of a page."""

    name: str
    mode: str
    blocks: tuple[Block, ...]
    text: str


def read_page(name: str, text: str) -> Page:
    """The page; PageFault for a block or mark that says nothing to the walk."""
    modes, blocks, marks = list[str](), list[Block](), list[tuple[int, str, str]]()
    for line, what, content in _parts(text):
        if what == "block":
            language, _, body = content.partition("\n")
            blocks.append(_block(line, language, body, marks))
            marks = []
        elif what == "walk" and content in MODES:
            modes.append(content)
        else:
            marks.append((line, what, content))
    if marks:
        raise PageFault(f"{marks[0][0]}: no block follows the mark {marks[0][2]!r}")
    if len(modes) != 1:
        raise PageFault(f"1: a walk needs one mark of the page's mode, {' or '.join(MODES)}; it has {modes}")
    return Page(name, modes[0], tuple(blocks), text)


def _parts(text: str) -> Iterator[tuple[int, str, str]]:
    """(line, "block", language and content) and (line, kind of mark, its text), in order."""
    lines = text.splitlines()
    index = 0
    while index < len(lines):
        if mark := _MARK.match(lines[index]):
            yield index + 1, mark["what"], mark["text"]
        elif fence := _FENCE.match(lines[index]):
            end = next((i for i in range(index + 1, len(lines)) if lines[i].strip() == "```"), None)
            if end is None:
                raise PageFault(f"{index + 1}: the block does not end")
            body = textwrap.dedent("\n".join(lines[index + 1 : end])) + "\n"
            yield index + 2, "block", f"{fence['language']}\n{body}"
            index = end
        index += 1


def _block(line: int, language: str, text: str, marks: list[tuple[int, str, str]]) -> Block:
    found: dict[str, list[str]] = {}
    for at, what, content in marks:
        mark = _MARKED.fullmatch(content if what == "walk" else f"{what} {content}")
        if not mark:
            raise PageFault(f"{at}: the walk knows no mark {content!r}")
        found.setdefault(mark["word"], []).append(mark["rest"] or "")
    not_run = {words: reason for reason, _, words in (each.partition(": ") for each in found.get("not run", []))}
    if unknown := set(not_run.values()) - set(REASONS):
        raise PageFault(f"{line}: {unknown.pop()!r} is no reason to leave a block out; use {', '.join(REASONS)}")
    return Block(
        line,
        _kind(line, language, text, found),
        text,
        file=found.get("file", [""])[0],
        presumes=tuple(name for names in found.get("presumes", []) for name in names.split()),
        exit_code=int(found.get("exit", ["0"])[0]),
        not_run=not_run,
        warns=tuple(found.get("warns", [])),
        same_as=found.get("as", [""])[0],
    )


def _kind(line: int, language: str, text: str, marks: dict[str, list[str]]) -> Kind:
    for kind in ("file", "output", "shown"):
        if kind in marks:
            return kind
    if language == "bash" or (not language and _COMMAND.match(text)):
        return "commands"
    if language == "python":
        return "python"
    if language:
        raise PageFault(f"{line}: a block of {language} needs the mark of its file, or `walk: shown`")
    raise PageFault(f"{line}: neither a command nor marked as output or shown")
