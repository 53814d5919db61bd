"""The command line. Each command imports what it needs when it runs, so that `filter` and `mi` start at once."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from cluster.errors import UserError, natural
from cluster.terminal import say

EPILOG = """\
examples:
  squelch train frozenlake                     the demo, on this machine
  squelch train frozenlake filter.rule=none name=unfiltered
  squelch train sokoban --resume               go on from the last checkpoint
  squelch watch runs/frozenlake                live view of a run
  squelch eval runs/frozenlake                 512 fixed validation tasks, T = 0.5
  squelch filter rewards.npz --rule top_k --rho 0.25
  squelch score completions.parquet --model policy/    any trainer's reasonings
  squelch gradients runs/frozenlake            task and regulariser gradients by reward variance
  squelch sweep frozenlake --seeds 0,1,2 --grid filter.rule=none,top_p,top_k
  squelch submit frozenlake runs_dir=/shared/runs --address http://127.0.0.1:8265

Any setting of a recipe can be overridden as key.sub=value; `squelch config RECIPE` prints all of them, resolved.
Exit codes: 0 done, 1 failed, 2 bad input (one paragraph says what and where), 128 + signal when stopped."""


class Parser(argparse.ArgumentParser):
    """Flags are taken as they are spelt: a half-typed one is an error, not a guess."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})


def main(argv: list[str] | None = None) -> int:
    """Runs a command; bad input ends in one paragraph on stderr and code 2."""
    os.environ.setdefault("TQDM_DISABLE", "1")  # libraries' progress bars; the actors started here inherit it
    options = parse(argv)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except UserError as error:
        print(f"squelch: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("squelch: interrupted", file=sys.stderr)
        return 130


def parse(argv: list[str] | None) -> argparse.Namespace:
    """Arguments of a command; overrides may stand before or behind its flags."""
    parser = build_parser()
    options, rest = parser.parse_known_args(argv)
    late = [word for word in rest if "=" in word and not word.startswith("-") and "overrides" in options]
    if late != rest:
        parser.error(f"unrecognized arguments: {' '.join(word for word in rest if word not in late)}")
    if late:
        options.overrides = [*options.overrides, *late]
    return options


def build_parser() -> argparse.ArgumentParser:
    """All commands with their flags."""
    from cluster.commands.filter import add_filter_parser
    from cluster.commands.gradients import add_gradients_parser
    from cluster.commands.mi import add_mi_parser
    from cluster.commands.score import add_score_parser
    from cluster.sweep.command import add_sweep_parser

    parser = Parser(
        prog="squelch",
        description="Agent RL that drops the prompts without signal and shows, live, whether reasoning depends on its "
        "input (RAGEN-2).",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_train(commands)
    _add_submit(commands)
    _add_status(commands)
    _add_eval(commands)
    _add_tiny(commands)
    add_filter_parser(commands)
    add_mi_parser(commands)
    add_score_parser(commands)
    add_gradients_parser(commands)
    add_sweep_parser(commands)
    _add_config(commands)
    _add_doctor(commands)
    return parser


def _recipe_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("recipe", help="a shipped recipe (see `squelch config --list`) or a YAML file")
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="dotted overrides, e.g. filter.rho=0.5")


def _add_train(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser("train", help="train a policy", description="Runs a recipe to its end.")
    _recipe_arguments(parser)
    parser.add_argument("--resume", action="store_true", help="continue the run of that name from its last checkpoint")
    parser.add_argument("--address", default="", help="Ray cluster to run on (host:port or auto); default: start one")
    parser.set_defaults(run=_train)


def _train(options: argparse.Namespace) -> int:
    from cluster.config import load

    overrides = options.overrides + ([f"cluster.address={options.address!r}"] if options.address else [])
    config = load(options.recipe, overrides)
    from cluster.loop.run import train

    return train(config, options.resume, say)


def _add_submit(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "submit",
        help="run `train` as a job on a Ray cluster that is up",
        description="Submits the recipe as a Ray job, follows its logs until it ends, and returns its success. "
        "RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH authenticate, as for `ray job`.",
    )
    _recipe_arguments(parser)
    parser.add_argument("--address", default="http://127.0.0.1:8265", help="the cluster's dashboard address")
    parser.add_argument("--no-wait", action="store_true", help="return once it is submitted")
    parser.add_argument("--resume", action="store_true", help="continue the run of that name")
    parser.set_defaults(run=_submit)
    job = commands.add_parser("job", help="status, logs or stop of a submitted job")
    job.add_argument("action", choices=("status", "logs", "stop"))
    job.add_argument("job_id")
    job.add_argument("--address", default="http://127.0.0.1:8265", help="the cluster's dashboard address")
    job.set_defaults(run=_job)


def _submit(options: argparse.Namespace) -> int:
    from cluster.commands.job import settled, submit
    from cluster.config import load

    overrides = settled(options.recipe, load(options.recipe, options.overrides), options.overrides)
    return submit(options.address, options.recipe, overrides, options.resume, not options.no_wait, say)


def _job(options: argparse.Namespace) -> int:
    from cluster.commands.job import job

    return job(options.address, options.action, options.job_id, say)


def _add_status(commands: argparse._SubParsersAction) -> None:
    for name, text in (("status", "where a run is, once"), ("watch", "live terminal view of a run")):
        parser = commands.add_parser(name, help=text)
        parser.add_argument("run_dir", type=Path, help="the run's folder, e.g. runs/frozenlake")
        if name == "status":
            parser.add_argument("--json", action="store_true", help="one JSON object")
        parser.set_defaults(run=_status if name == "status" else _watch)


def _status(options: argparse.Namespace) -> int:
    from cluster.commands.watch import status

    say(status(_run_folder(options.run_dir), as_json=options.json))
    return 0


def _watch(options: argparse.Namespace) -> int:
    from cluster.commands.watch import watch

    watch(_run_folder(options.run_dir))
    return 0


def _run_folder(path: Path) -> Path:
    if not (path / "config.yaml").is_file():
        raise UserError(f"{path} holds no run: it has no config.yaml; give a folder such as runs/frozenlake")
    return path


def _add_eval(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "eval",
        help="success on the fixed validation tasks",
        description="Plays the validation tasks with a run's checkpoint (the best one by default) and prints success "
        "with its 95% interval (Wilson).",
    )
    parser.add_argument("run_dir", type=Path, help="the run's folder")
    parser.add_argument("--checkpoint", default="best", help="best, last, initial, or a step number")
    parser.add_argument("--tasks", type=int, default=512, help="how many of them (default: %(default)s)")
    parser.add_argument("--temperature", type=float, default=0.5, help="of the samples (default: %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=_eval)


def _eval(options: argparse.Namespace) -> int:
    from cluster.commands.evaluate import evaluate

    run_dir = _run_folder(options.run_dir)
    return evaluate(run_dir, options.checkpoint, options.tasks, options.temperature, options.json, say)


def _add_tiny(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "tiny",
        help="build the embedded tiny policy",
        description="Builds a tokenizer and a small Qwen2 model, warms it up on the environment's demonstrations, and "
        "writes a Hugging Face folder. A folder built with the same settings is kept as it is.",
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("--env", default="FrozenLake", help="environment to warm up for")
    parser.add_argument("--seed", type=natural, default=0, help="of weights and demonstrations (default: %(default)s)")
    parser.set_defaults(run=_tiny)


def _tiny(options: argparse.Namespace) -> int:
    from envs.config import EnvironmentConfig
    from learner.warmup.tiny import build_tiny

    try:
        report = build_tiny(options.directory, EnvironmentConfig(name=options.env), options.seed)
    except ValueError as error:
        raise UserError(str(error)) from error
    done = "already built" if report.reused else f"built in {report.seconds:.0f} s"
    say(f"{options.directory}: {done}, {report.num_parameters} parameters, loss {report.loss:.3f} nats a token")
    return 0


def _add_config(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "config",
        help="print a recipe, resolved, or the list of recipes",
        description="Prints every setting of a recipe under overrides, as YAML that `train` reads back.",
    )
    parser.add_argument("recipe", nargs="?", default="frozenlake")
    parser.add_argument("overrides", nargs="*", metavar="key=value")
    parser.add_argument("--list", action="store_true", help="names of the shipped recipes")
    parser.set_defaults(run=_config)


def _config(options: argparse.Namespace) -> int:
    from cluster.config import dump, load, recipe_names

    say("\n".join(recipe_names()) if options.list else dump(load(options.recipe, options.overrides)).rstrip())
    return 0


def _add_doctor(commands: argparse._SubParsersAction) -> None:
    parser = commands.add_parser(
        "doctor",
        help="what is missing or mismatched here, and how to mend it",
        description="Looks at Python, vLLM, torch, the tested versions and what the machine offers; a line that begins "
        "with `mend` says what to do. Exit code 1 when there is one.",
    )
    parser.set_defaults(run=_doctor)


def _doctor(options: argparse.Namespace) -> int:
    from cluster.commands.doctor import diagnose

    findings = diagnose()
    for finding in findings:
        say(finding.line())
    return 1 if any(f.mend for f in findings) else 0


if __name__ == "__main__":
    sys.exit(main())
