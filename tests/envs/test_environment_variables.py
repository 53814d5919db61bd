"""Variables that shells, clusters and launchers set for other programs."""

import os

import pytest

from squelch.envs import environment_variables
from squelch.envs.environment_variables import AGENT, CELL, clear, found, without

LINKS = {  # as Kubernetes sets them for a service `vllm` with the port 8000
    "VLLM_SERVICE_HOST": "10.0.0.1",
    "VLLM_SERVICE_PORT": "8000",
    "VLLM_SERVICE_PORT_HTTP": "8000",
    "VLLM_PORT": "tcp://10.0.0.1:8000",
    "VLLM_PORT_8000_TCP": "tcp://10.0.0.1:8000",
    "VLLM_PORT_8000_TCP_PROTO": "tcp",
    "VLLM_PORT_8000_TCP_PORT": "8000",
    "VLLM_PORT_8000_TCP_ADDR": "10.0.0.1",
    "RAY_GCS_SERVER_PORT": "tcp://10.0.0.2:6379",
    "DASHBOARD_METRIC_PORT": "udp://10.0.0.3:1",
}
RANKS = {"LOCAL_RANK": "3", "WORLD_SIZE": "8", "MASTER_ADDR": "node-0", "MASTER_PORT": "29500", "VLLM_DP_SIZE": "2"}
KEPT = {
    "KUBERNETES_PORT": "tcp://10.0.0.4:443",  # Ray's autoscaler asks for Kubernetes
    "DATABASE_PORT": "tcp://10.0.0.5:5432",  # perhaps for a user's environment
    "RAY_ADDRESS": "10.0.0.2:6379",
    "RAY_GCS_SERVER_PORT": "6379",
    "VLLM_LOGGING_LEVEL": "DEBUG",
    "CUDA_VISIBLE_DEVICES": "0,1",
    "OPENAI_API_KEY": "sk-for-a-judge",
}


@pytest.fixture
def around(monkeypatch):
    """Replaces the variables of this process."""
    monkeypatch.setattr(environment_variables, "left_out", {})

    def put(variables):
        for name in {*LINKS, *RANKS, *KEPT, "NO_PROXY", "no_proxy"}:
            monkeypatch.delenv(name, raising=False)
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        before = dict(os.environ)
        clear()
        gone = before.keys() - os.environ.keys()
        return gone

    return put


@pytest.mark.parametrize("variables", [LINKS, RANKS], ids=["links", "ranks"])
def test_a_process_of_a_run_has_none_of_the_variables_that_it_would_mistake(around, variables):
    assert around(variables) == variables.keys()
    assert variables.items() <= environment_variables.left_out.items() and variables.keys() <= dict(found()).keys()


def test_settings_that_are_meant_for_the_run_stay(around):
    assert around(KEPT) == set()
    assert KEPT.items() <= os.environ.items()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, "127.0.0.1,localhost"),
        ({"NO_PROXY": "example.org"}, "example.org,127.0.0.1,localhost"),
        ({"no_proxy": "example.org", "NO_PROXY": "other.org"}, "example.org,127.0.0.1,localhost"),
        ({"NO_PROXY": "*"}, "*"),
    ],
)
def test_no_proxy_stands_before_this_machine(around, given, expected):
    around(given)
    clear()  # an actor does it again
    assert os.environ["no_proxy"] == os.environ["NO_PROXY"] == expected


def test_a_cell_of_a_sweep_takes_no_id_from_the_shell():
    assert without({"WANDB_RUN_ID": "abc", "WANDB_PROJECT": "p"}, CELL) == {"WANDB_PROJECT": "p"}


def test_a_gateways_credentials_do_not_reach_the_endpoint():
    given = {"ANTHROPIC_AUTH_TOKEN": "t", "OPENAI_PROXY": "http://p", "OPENAI_API_BASE": "https://api.openai.com/v1"}
    assert without({**given, "OPENAI_LOG": "debug"}, AGENT) == {"OPENAI_LOG": "debug"}
