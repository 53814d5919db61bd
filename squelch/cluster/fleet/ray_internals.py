"""The parts of Ray without a public name that Squelch needs: the one module that imports `ray._private` or
`ray._raylet`. A newer Ray that moves one of these breaks here, and `tests/cluster/fleet/test_ray_internals.py` says
which."""

import os
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from ray._private import ray_constants, services, utils, worker
from ray._private.authentication.authentication_token_setup import _enable_token_auth as enable_token_auth
from ray._private.authentication.authentication_token_setup import enable_token_auth_by_default
from ray._private.node import Node
from ray._private.ray_constants import DASHBOARD_CLIENT_MAX_SIZE
from ray._private.resource_and_label_spec import ResourceAndLabelSpec
from ray._private.runtime_env.packaging import _dir_travel as walk_uploaded
from ray._private.runtime_env.packaging import _get_excludes as excluded_from_upload
from ray._private.state import actors, state
from ray._raylet import AuthenticationTokenLoader, Config, GcsClient

from squelch.kit.base.replaced import replaced


def logs_folder() -> Path | None:
    """The folder of the logs of Ray's processes on this node, to whose cluster this process is connected; None if it is
    connected by an address `ray://`, from a machine that need not be a node."""
    node = worker._global_node
    return None if node is None else Path(node.get_logs_dir_path())


def resources_here(num_cpus: int) -> dict[str, float]:
    """The resources of a node that Ray would start on this machine with so many CPUs, by name."""
    spec = ResourceAndLabelSpec(num_cpus=num_cpus).resolve(is_head=True, node_ip_address="127.0.0.1")
    return spec.to_resource_dict()


@contextmanager
def only_here(variables: Iterable[str]) -> Iterator[None]:
    """For a call of `ray.init`: the processes that it starts get none of these environment variables."""
    start = services.start_ray_process

    def start_without(*arguments: Any, **options: Any) -> Any:
        held = {name: os.environ.pop(name) for name in variables if name in os.environ}
        try:
            return start(*arguments, **options)
        finally:
            os.environ.update(held)

    with replaced(services, start_ray_process=start_without):
        yield


class OwnSession(services.ConsolePopen):
    """A process in a session of its own, so that what is sent to this process's group does not reach it: the signals of
    `kill %1`, `timeout` and a terminal that closes."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options, start_new_session=True)


def sessions_of_their_own() -> AbstractContextManager[None]:
    """For a call of `ray.init`: each process that it starts has a session of its own. Those end with this process all
    the same, because the kernel tells them (Ray's fate sharing)."""
    return replaced(services, ConsolePopen=OwnSession)


_WITHOUT_DASHBOARD = (
    "import runpy, sys; sys.modules['ray.dashboard.optional_deps'] = None; del sys.argv[0]; "
    "runpy.run_path(sys.argv[0], run_name='__main__')"
)
"""A program that runs the program of its first argument as if the dashboard's packages were not installed."""


@contextmanager
def agent_without_dashboard() -> Iterator[None]:
    """For a call of `ray.init` that starts a cluster: the agent of its node is the one of an installation without
    `ray[default]`, which reports nothing to a dashboard and exports no metrics of Ray's."""
    usual = services._build_python_executable_command_memory_profileable

    def command(component: str, *rest: Any) -> list[str]:
        words = usual(component, *rest)
        return [*words, "-c", _WITHOUT_DASHBOARD] if component == ray_constants.PROCESS_TYPE_DASHBOARD_AGENT else words

    with (
        replaced(services, _build_python_executable_command_memory_profileable=command),
        replaced(utils, get_dashboard_dependency_error=lambda: ImportError("left out")),
    ):
        yield


def handlers_kept() -> AbstractContextManager[None]:
    """For a call of `ray.init`: this process keeps its handler of SIGTERM."""
    return replaced(utils, set_sigterm_handler=lambda _: None)


__all__ = [
    "DASHBOARD_CLIENT_MAX_SIZE",
    "AuthenticationTokenLoader",
    "Config",
    "GcsClient",
    "Node",
    "actors",
    "agent_without_dashboard",
    "enable_token_auth",
    "enable_token_auth_by_default",
    "excluded_from_upload",
    "handlers_kept",
    "logs_folder",
    "only_here",
    "ray_constants",
    "resources_here",
    "services",
    "sessions_of_their_own",
    "state",
    "walk_uploaded",
]
