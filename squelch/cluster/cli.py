"""The command line: parses the arguments and imports only the module of the command that runs."""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from types import TracebackType
from typing import IO, Any, get_args

from squelch.actors.process.preparation import protect, settle
from squelch.cluster.commands.arguments import named, run_path
from squelch.kit.base.errors import UserError, bad_files_are_the_users, did_you_mean
from squelch.kit.commands.arguments import natural, positive
from squelch.kit.process.process_exit import has_to_leave, leave
from squelch.kit.process.signals import Interrupted, current, listening
from squelch.kit.process.terminal import complain, open_standard_streams, remark, say
from squelch.kit.untrusted.files import reason, shortened
from squelch.kit.untrusted.text import own_yaml

_LINE: Mapping[str, Any] = own_yaml(Path(__file__).with_name("commands.yaml"))
COMMANDS: Mapping[str, Mapping[str, Any]] = _LINE["commands"]
"""The commands by name, as commands.yaml describes them. Each command's module defines `run(options)`."""
OBJECTS: Mapping[str, Any] = {
    "int": int,
    "float": float,
    "path": Path,
    "natural": natural,
    "count": positive(int),
    "positive": positive(float),
    "run": named,
    "run_folder": run_path,
    "yes_or_no": argparse.BooleanOptionalAction,
}
"""What a `type` or an `action` in commands.yaml may name, besides the actions that argparse knows by name."""
DISK_FAILED = (errno.ENOSPC, errno.EDQUOT, errno.EIO)
"""Errors that are no bad input: the same command may succeed."""


class Parser(argparse.ArgumentParser):
    """An argument parser that does not complete abbreviated flags: they are errors."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def _print_message(self, message: str, file: IO[str] | None = None) -> None:
        """Prints help and errors, which quote the command line, as `kit.process.terminal` prints every text."""
        (say if file is sys.stdout else remark)(message.removesuffix("\n"))


class Version(argparse.Action):
    """Prints the version and ends; asks git only then."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str | None = None) -> None:
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from squelch.kit.base.package import version_text

        say(f"squelch {version_text()}")
        parser.exit()


def main(argv: Sequence[str] | None = None) -> int:
    """Runs a command and returns the exit code; ends the process with it where Python's own end may not return."""
    if argv is None:
        _speak_utf8()
        open_standard_streams()
    with listening():
        try:
            code = _main(argv)
        except BaseException as error:
            if has_to_leave() is None:
                raise
            code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
            if not isinstance(error, SystemExit):
                sys.excepthook(type(error), error, error.__traceback__)
        if has_to_leave() is not None:
            leave(code)
        return code


def _main(argv: Sequence[str] | None) -> int:
    """As `main`. For bad input it prints one paragraph on stderr and returns 2."""
    os.environ.setdefault("TQDM_DISABLE", "1")  # no progress bars of libraries; actors inherit it
    try:
        with current().meant():
            if argv is None:
                sys.excepthook = _show_bug
            protect()
            settle()
            options = parse(sys.argv[1:] if argv is None else argv)
            run: Callable[[argparse.Namespace], int] = options.run
            with bad_files_are_the_users():
                return run(options)
    except UserError as error:
        complain(f"squelch: {error}")
        return error.exit_code
    except ModuleNotFoundError as error:
        from squelch.kit.base.package import needs_installation

        words = sys.argv[1:] if argv is None else argv
        command = next((word for word in words if word in COMMANDS), "train")
        if (line := needs_installation(error, of_kit=COMMANDS[command]["module"].startswith("kit."))) is None:
            raise
        complain(f"squelch: {command}: {line}")
        return 2
    except OSError as error:  # e.g. a name that is too long, or a folder that may not be entered
        complain(f"squelch: {error.filename or 'a file'}: {reason(error)}")
        return 1 if error.errno in DISK_FAILED else 2
    except Interrupted as error:
        complain(f"squelch: stopped by {error}")
        return 128 + error.signal


def _speak_utf8() -> None:
    """Starts the command again with Python's UTF-8 mode if the locale's encoding is another: words of the command line,
    names of files and the texts of child processes are UTF-8 everywhere."""
    if sys.getfilesystemencoding() != "utf-8" and os.environ.get("PYTHONUTF8") != "1":
        os.environ["PYTHONUTF8"] = "1"
        os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _show_bug(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Prints an error that no command expects, as `kit.process.terminal` prints every text."""
    import traceback

    remark("".join(traceback.format_exception(kind, error, trace)))


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The parsed arguments of a command; overrides may stand before or after its flags."""
    command = next((word for word in argv if not word.startswith("-")), None)
    parser = build_parser(command)
    if not argv:
        parser.error("give a command: `squelch --help` lists them, and `squelch train frozenlake` is the demo")
    if command is not None and command == argv[0] and command not in COMMANDS:
        meant = did_you_mean(command, list(COMMANDS))
        parser.error(f"there is no command {shortened(command, 80)!r}. {meant}`squelch --help` lists them")
    options, rest = parser.parse_known_args(argv)
    late = [word for word in rest if "=" in word and not word.startswith("-") and "overrides" in options]
    if late != rest:
        unknown = [word for word in rest if word not in late]
        parser.error(f"unrecognized arguments: {' '.join(unknown)}{_meant(unknown, options)}")
    if late:
        options.overrides = [*options.overrides, *late]
    return options


def _meant(unknown: Sequence[str], options: argparse.Namespace) -> str:
    """How to give the first unknown flag, as a clause: by the flags whose help has its word, as a setting, if the
    command takes settings and it is one, else by all flags that the command has; empty if that is not known."""
    if not unknown or not unknown[0].startswith("--"):
        return ""
    word = unknown[0].lstrip("-").partition("=")[0]
    if meant := [f"{flag} ({text})" for flag, text in options.flags.items() if word in text.split()]:
        return f"; did you mean {' or '.join(meant)}?"
    if "overrides" in options:
        from squelch.cluster.settings_reference import flag_meant

        given = unknown[1] if len(unknown) > 1 else next(iter(options.overrides), None)
        if said := flag_meant(unknown[0], given):
            return f"; {said}"
    return f"; its flags are {', '.join(options.flags)}" if options.flags else ""


def _flags(parser: argparse.ArgumentParser) -> dict[str, str]:
    """What each flag of a command is for, without its default."""
    actions = (one for one in parser._actions if one.option_strings and one.help not in (None, argparse.SUPPRESS))
    found = {one.option_strings[-1]: str(one.help).partition(" (default")[0] for one in actions}
    return {flag: text for flag, text in found.items() if flag != "--help"}


def build_parser(command: str | None = None) -> Parser:
    """The parser of all commands, with the arguments of `command` only, so that no other module is imported."""
    parser = Parser(prog="squelch")
    parser.add_argument("--version", action=Version, help="print the version, and in a checkout the commit")
    _describe(parser, _LINE)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, words in COMMANDS.items():
        of_command = commands.add_parser(name, help=words["help"])
        if name == command:
            loaded = importlib.import_module(f"squelch.{words['module']}")
            _describe(of_command, words)
            of_command.set_defaults(run=loaded.run, flags=_flags(of_command), default=of_command.get_default)
    return parser


def _describe(parser: argparse.ArgumentParser, words: Mapping[str, Any]) -> None:
    """Gives a parser its words and arguments."""
    notes = f"{resolve_name(words['notes'])()}\n\n" if "notes" in words else ""
    parser.description, parser.epilog = words.get("about"), notes + words.get("end", "")
    if "\n" in f"{parser.description}{parser.epilog}":
        parser.formatter_class = argparse.RawDescriptionHelpFormatter
    _add(parser, words.get("arguments", ()))
    if actions := words.get("actions"):
        below = parser.add_subparsers(title="actions", dest="action", metavar="ACTION", required=True)
        for name, own in actions.items():
            _describe(below.add_parser(name, help=own["help"]), own)


def _add(parser: argparse._ActionsContainer, arguments: Iterable[Any]) -> None:
    for one in arguments:
        if isinstance(one, list):
            _add(parser, one)
        elif "either" in one:
            _add(parser.add_mutually_exclusive_group(required=one.get("required", False)), one["either"])
        else:
            ((flags, how),) = one.items()
            how = {"action": "store_true", "help": how} if isinstance(how, str) else how
            parser.add_argument(*flags.split(), **{key: _meant_by(key, value) for key, value in how.items()})


def _meant_by(key: str, value: Any) -> Any:
    """What argparse gets for a word of an argument."""
    if key == "help":
        return argparse.SUPPRESS if value is None else value
    if key in ("type", "action"):
        value = OBJECTS.get(value, value)
    if key in ("type", "choices", "default") and isinstance(value, str) and value.startswith("squelch."):
        value = resolve_name(value)
        value = (get_args(value) or value) if key == "choices" else value
    if key == "default" and isinstance(value, list):
        return list(value)  # each parser has its own: a command may change it
    return tuple(value) if key in ("choices", "metavar") and not isinstance(value, str) else value


if __name__ == "__main__":
    sys.exit(main())
