"""The parts of Ray without a public name that Squelch needs: the one module that imports `ray._private` or
`ray._raylet`. A newer Ray that moves one of these breaks here, and `tests/cluster/fleet/test_ray_internals.py` says
which."""

from pathlib import Path

from ray._private import ray_constants, services, worker
from ray._private.authentication.authentication_token_setup import enable_token_auth_by_default
from ray._private.ray_constants import DASHBOARD_CLIENT_MAX_SIZE
from ray._private.runtime_env.packaging import _dir_travel as walk_uploaded
from ray._private.runtime_env.packaging import _get_excludes as excluded_from_upload
from ray._private.state import actors, state
from ray._raylet import Config


def logs_folder() -> Path | None:
    """The folder of the logs of Ray's processes on this node, to whose cluster this process is connected; None if it is
    connected by an address `ray://`, from a machine that need not be a node."""
    node = worker._global_node
    return None if node is None else Path(node.get_logs_dir_path())


__all__ = [
    "DASHBOARD_CLIENT_MAX_SIZE",
    "Config",
    "actors",
    "enable_token_auth_by_default",
    "excluded_from_upload",
    "logs_folder",
    "ray_constants",
    "services",
    "state",
    "walk_uploaded",
]
