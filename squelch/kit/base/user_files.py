"""Settings and options that name files of the user. A run keeps their paths absolute, so that they hold in any folder.

    data: Annotated[str | None, NAMES_FILES] = None

A text that names no file or folder here (an id of the hub, a module, an absolute path) stays as it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from squelch.kit.base.settings import Settings

Part = TypeVar("Part", bound=Settings)


class NamesFiles:
    """Marks such a setting: a text `FILE` or `FILE.py:NAME`, several, or a mapping whose keys they are. `besides`: what
    is no file."""

    def __init__(self, *besides: str) -> None:
        self._besides = besides

    def absolute(self, value: Any) -> Any:
        """The value with absolute paths."""
        return _each(value, lambda text: text if text in self._besides else _absolute(text, os.path.exists))


class NamesProgram(NamesFiles):
    """Marks a command: the program and its arguments, of which files, but no folders, are meant."""

    def absolute(self, value: Any) -> Any:
        """As `NamesFiles`; a program without a `/` is looked up in PATH."""
        if not value or isinstance(value, str):
            return _absolute(value, os.path.isfile) if value and os.sep in value else value
        program, *arguments = value
        return [self.absolute(program), *_each(arguments, lambda text: _absolute(text, os.path.isfile))]


NAMES_FILES, NAMES_PROGRAM = NamesFiles(), NamesProgram()


def with_absolute_paths(model: type[Settings], options: Mapping[str, Any]) -> dict[str, Any]:
    """The options, which the model has checked, with absolute paths where it marks them."""
    found = dict(options)
    for name, field in model.model_fields.items():
        for mark in field.metadata:
            if isinstance(mark, NamesFiles) and name in found:
                found[name] = mark.absolute(found[name])
    return found


def settings_with_absolute_paths(settings: Part) -> Part:
    """The settings, and those within them, with absolute paths where their models mark them."""
    marked = with_absolute_paths(type(settings), vars(settings))
    found = {
        name: settings_with_absolute_paths(value) if isinstance(value, Settings) else value
        for name, value in marked.items()
    }
    return settings.model_copy(update={name: value for name, value in found.items() if value != vars(settings)[name]})


def option_of_missing(model: type[Settings], options: Mapping[str, Any], error: str) -> str | None:
    """Which of the options that the model marks names a file, by an absolute path, that is not there and of which the
    error speaks; None if none does."""
    for name, field in model.model_fields.items():
        if name in options and any(isinstance(mark, NamesFiles) for mark in field.metadata):
            files = [_file_of(text) for text in _texts(options[name])]
            if any(os.path.isabs(file) and not os.path.lexists(file) and file in error for file in files):
                return name
    return None


def _texts(value: Any) -> list[str]:
    """The texts of such an option."""
    several = list(value) if isinstance(value, Mapping | list | tuple) else [value]
    return [text for text in several if isinstance(text, str)]


def _file_of(text: str) -> str:
    file, _, _ = text.rpartition(":")
    return file if file.endswith(".py") else text


def _each(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): inner for key, inner in value.items()}
    return [change(one) for one in value] if isinstance(value, list | tuple) else value


def _absolute(text: str, there: Callable[[str], bool]) -> str:
    file = _file_of(text)
    return os.path.abspath(file) + text[len(file) :] if not os.path.isabs(file) and there(file) else text
