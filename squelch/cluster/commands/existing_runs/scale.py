"""`squelch scale`: changes the numbers of rollout workers and environment actors of a live run."""

from __future__ import annotations

import argparse

from squelch.kit.base.errors import UserError
from squelch.kit.process.terminal import say

CUT_OFF = (
    "Ray ended this command, as it does where the cluster's node does not answer in time; the run may have taken the "
    "request (`squelch status` shows its members), so look, then ask again"
)


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
