"""The command line: parses the arguments and imports only the module of the command that runs."""

from __future__ import annotations

import argparse
import errno
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import IO, Any

from squelch.actors.process.preparation import protect, settle
from squelch.kit.base.errors import UserError, bad_files_are_the_users, did_you_mean
from squelch.kit.process.process_exit import has_to_leave, leave
from squelch.kit.process.signals import Interrupted, current, listening
from squelch.kit.process.terminal import complain, open_standard_streams, remark, say
from squelch.kit.untrusted.files import reason, shortened

COMMANDS = {
    "train": ("cluster.commands.train", "train a policy"),
    "submit": ("cluster.commands.submit", "run `train` as a job on a Ray cluster that is up"),
    "job": ("cluster.commands.job", "list submitted jobs; show status or logs of one, or stop it"),
    "status": ("cluster.commands.existing_runs.status", "show the progress of a run once; alone: list the runs"),
    "watch": ("cluster.commands.existing_runs.watch", "show the progress of a run live"),
    "inspect": ("cluster.commands.existing_runs.inspect", "show a run's groups, trajectories and spans in the browser"),
    "trace": ("cluster.commands.existing_runs.trace", "write who worked when, for Perfetto"),
    "scale": (
        "cluster.commands.existing_runs.scale",
        "change the number of rollout workers or environment actors of a live run",
    ),
    "eval": ("cluster.commands.existing_runs.eval", "measure success of checkpoints or models on the validation tasks"),
    "export": ("cluster.commands.existing_runs.export", "write a checkpoint as a folder for other programs"),
    "tiny": ("cluster.commands.tiny", "build the embedded tiny policy"),
    "warmup": ("cluster.commands.warmup", "fine-tune a model on demonstrations or conversations before training"),
    "check": ("cluster.commands.check", "say what is wrong with a run, or with other trainers' files"),
    "filter": ("kit.commands.filter", "show which groups the filter keeps, from a file of rewards"),
    "mi": ("kit.commands.mi", "measure whether reasoning depends on its input, from a score matrix"),
    "score": ("kit.commands.score", "the same from prompts and completions of any trainer"),
    "monitor": ("kit.commands.monitor", "the same live, from the folder into which another trainer writes"),
    "gradients": (
        "cluster.commands.existing_runs.gradients",
        "measure task and regulariser gradients by reward variance (Figure 3)",
    ),
    "report": (
        "cluster.commands.existing_runs.report",
        "write the paper's figures of one or several runs as an HTML file",
    ),
    "sweep": ("cluster.commands.sweep", "run a recipe over settings and seeds, with one table at the end"),
    "dashboards": ("cluster.commands.dashboards", "push the dashboards to Grafana, or export them"),
    "plan": (
        "cluster.commands.plan",
        "estimate memory and step time of a recipe, and how many rollout workers it needs",
    ),
    "config": ("cluster.commands.config", "print all settings of a recipe, or the list of recipes"),
    "import": ("cluster.commands.importing", "make a recipe of verl's, TRL's, prime-rl's or OpenRLHF's configuration"),
    "doctor": ("cluster.commands.doctor", "list what this machine lacks, and how to install it"),
}
"""Name, module below `squelch`, and one line of help. The module defines `add_arguments(parser)` and
`run(options)`."""

EPILOG = """\
examples:
  squelch train frozenlake                     the demo, on this machine
  squelch train frozenlake filter.rule=none name=unfiltered
  squelch train sokoban --resume               continue from the last checkpoint
  squelch watch runs/frozenlake                live view of a run
  squelch inspect runs/frozenlake              read its trajectories in the browser
  squelch check runs/frozenlake                what is wrong with it; exit code 1 if that is critical
  squelch scale runs/frozenlake --rollout-workers 3
  squelch eval runs/frozenlake                 512 fixed validation tasks, T = 0.5
  squelch eval runs/frozenlake --checkpoint initial --checkpoint best     both on the same tasks
  squelch export runs/frozenlake policy        its best checkpoint, with a model card
  squelch warmup Qwen/Qwen2.5-3B warm/qwen --env Sokoban
  squelch filter rewards.npz --rule top_k --rho 0.25
  squelch score completions.parquet --model policy/    reasonings of any trainer
  squelch monitor out/completions --model out          the same for each new step, at /metrics
  squelch gradients runs/frozenlake --groups 8 task and regulariser gradients by reward variance
  squelch report runs/frozenlake               the paper's figures of a run; of a sweep: runs/SWEEP
  squelch sweep frozenlake --seeds 0,1,2 --grid filter.rule=none,top_p,top_k
  squelch dashboards push --prometheus http://127.0.0.1:9090
  squelch plan qwen2.5-3b --device-gib 80      memory of each actor, rollout workers that the learner needs
  squelch plan prompts-7b --gpus 8             how to split eight GPUs, and what bounds the step
  squelch import outputs/run/.hydra            a recipe from another trainer's configuration
  squelch submit frozenlake runs_dir=/shared/runs --address http://127.0.0.1:8265

Any setting of a recipe can be overridden as key.sub=value; `squelch config RECIPE` prints all of them.
Exit codes: 0 done, 1 failed, 2 bad input (one paragraph says what and where), 3 paused at an alarm,
128 + signal when stopped."""

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
        if (line := needs_installation(error, of_kit=COMMANDS[command][0].startswith("kit."))) is None:
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
    parser = Parser(
        prog="squelch",
        description="Trains LLM agents with RL, drops the prompts without signal, and shows during training whether "
        "the reasoning depends on its input (RAGEN-2).",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action=Version, help="print the version, and in a checkout the commit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name, (module, text) in COMMANDS.items():
        of_command = commands.add_parser(name, help=text)
        if name == command:
            loaded = importlib.import_module(f"squelch.{module}")
            loaded.add_arguments(of_command)
            of_command.set_defaults(run=loaded.run, flags=_flags(of_command))
    return parser


if __name__ == "__main__":
    sys.exit(main())
