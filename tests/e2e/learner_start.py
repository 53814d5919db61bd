"""Starts a learner on the cluster of this host and prints how that went: `python -m tests.e2e.learner_start MODEL`."""

import asyncio
import sys
from pathlib import Path

from squelch.cluster.config import load
from squelch.cluster.fleet.bootstrap import connect, disconnect
from squelch.cluster.fleet.ray_actors import RayActors


def main(model: Path, *overrides: str) -> None:
    config = load("frozenlake", list(overrides))
    connect(config, lambda text: None)
    learner = RayActors(config, model, Path("log")).learner(config.learner.ranks)
    try:
        asyncio.run(learner.start())
        sys.stdout.write("started\n")
    except RuntimeError as error:
        sys.stdout.write(f"{error}\n")
    finally:
        learner.kill()
        disconnect()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
