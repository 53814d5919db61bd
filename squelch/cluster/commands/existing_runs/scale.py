"""`squelch scale`: changes the numbers of rollout workers and environment actors of a live run."""

from __future__ import annotations

import argparse

from squelch.kit.base.errors import UserError
from squelch.kit.commands.arguments import natural
from squelch.kit.process.terminal import say

CUT_OFF = (
    "Ray ended this command, as it does where the cluster's node does not answer in time; the run may have taken the "
    "request (`squelch status` shows its members), so look, then ask again"
)
EPILOG = """\
A member that leaves finishes the groups that it plays, or with --now is cut off, and the others retry its groups.
A member that comes gets groups once it is up and, for a rollout worker, has the current weights. Nothing else of the
run waits. The numbers hold until the run ends; --resume starts with those of the recipe again. docs/guide/hosts.md
says more.

examples:
  squelch scale runs/frozenlake --rollout-workers 3
  squelch scale runs/frozenlake --rollout-workers 1 --now
  squelch scale frozenlake --environment-actors 4 --address auto      on a node of the cluster that the run joined"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    parser.description = "Changes the numbers of rollout workers and environment actors of a live run."
    parser.epilog, parser.formatter_class = EPILOG, argparse.RawDescriptionHelpFormatter
    parser.add_argument("target", metavar="RUN", help="the run's folder, e.g. runs/frozenlake, or its name")
    parser.add_argument("--rollout-workers", type=natural, metavar="N", help="how many rollout workers there shall be")
    parser.add_argument("--environment-actors", type=natural, metavar="N", help="how many environment actors")
    parser.add_argument("--now", action="store_true", help="cut off those that leave instead of draining them")
    parser.add_argument("--address", default="", help="Ray cluster that the run joined (host:port or auto)")


def run(options: argparse.Namespace) -> int:
    """Asks the run; prints its answers."""
    if options.rollout_workers is None and options.environment_actors is None:
        raise UserError("nothing to scale: give --rollout-workers N, --environment-actors N, or both")
    from squelch.cluster.control.scaling import Kind, Request  # the command line imports Ray only now
    from squelch.cluster.fleet.control_endpoint import ask
    from squelch.cluster.runs.logs import quiet

    asked = {Kind.ROLLOUT: options.rollout_workers, Kind.ENVIRONMENT: options.environment_actors}
    requests = [Request(kind, count, options.now) for kind, count in asked.items() if count is not None]
    with quiet(CUT_OFF) as output:
        ask(options.target, requests, options.address, output.aloud(say))
    return 0
