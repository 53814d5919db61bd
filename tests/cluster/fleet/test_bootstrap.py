"""Where a run looks for its cluster."""

import socket
from types import SimpleNamespace

import pytest

from cluster.config import load
from cluster.errors import UserError
from cluster.fleet.bootstrap import check_address


@pytest.mark.parametrize(
    ("address", "probed"),
    [
        ("head.example:6379", [("head.example", 6379)]),
        ("[::1]:6379", [("::1", 6379)]),
        ("ray://127.0.0.1:10001", []),
        ("auto", []),
        ("", []),
    ],
)
def test_what_is_probed_is_a_host_and_a_port(monkeypatch, address, probed) -> None:
    asked: list[tuple[str, int]] = []

    def listening(place: tuple[str, int], timeout: float) -> SimpleNamespace:
        asked.append(place)
        return SimpleNamespace(close=lambda: None)

    monkeypatch.setenv("RAY_ADDRESS", address)
    monkeypatch.setattr("socket.create_connection", listening)
    check_address(load("frozenlake"))
    assert asked == probed


def test_an_address_where_nothing_listens_is_said_with_where_it_came_from(monkeypatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    monkeypatch.setenv("RAY_ADDRESS", address)
    with pytest.raises(UserError, match=f"^RAY_ADDRESS='{address}': .* unset the variable to start one"):
        check_address(load("frozenlake"))
    monkeypatch.setenv("RAY_ADDRESS", "elsewhere:1")
    with pytest.raises(UserError, match=f"^cluster.address='{address}': .* leave the key empty to start one"):
        check_address(load("frozenlake", [f"cluster.address={address}"]))
