"""Which interface collectives use, and the naming of ranks that do not reach one another."""

import os
import socket
import threading
from types import SimpleNamespace

import pytest

from squelch.actors.process.interfaces import bind_collectives, bind_nccl, interface_of, listen
from squelch.kit.base.loopback import is_loopback
from squelch.learner import network
from squelch.learner.network import Endpoint, failures_in_words, unreachable


@pytest.fixture
def no_interface_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment names no interface; what the test sets is removed again."""
    for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
        monkeypatch.setenv(variable, "")
        monkeypatch.delenv(variable)


def holding(monkeypatch: pytest.MonkeyPatch, **interfaces: str) -> None:
    """This host has these interfaces with one address each."""
    family = {False: socket.AF_INET, True: socket.AF_INET6}
    monkeypatch.setattr(
        "psutil.net_if_addrs",
        lambda: {
            name: [
                SimpleNamespace(family=socket.AF_PACKET, address="02:fc:00:00:00:01"),
                SimpleNamespace(family=family[":" in address], address=address),
            ]
            for name, address in interfaces.items()
        },
    )


def test_loopback_is_found_under_its_own_name() -> None:
    assert interface_of("127.0.0.1") == "lo"


@pytest.mark.parametrize(
    ("address", "name"), [("10.0.0.2", "eth1"), ("10.0.0.20", "eth10"), ("fe80::2", "ib0"), ("fe80:0::2", "ib0")]
)
def test_the_interface_is_the_one_that_holds_the_nodes_address(monkeypatch, address, name) -> None:
    holding(monkeypatch, lo="127.0.0.1", eth1="10.0.0.2", eth10="10.0.0.20", ib0="fe80::2%ib0")
    assert interface_of(address) == name


def test_an_address_that_no_interface_holds_is_refused_with_those_that_exist(monkeypatch) -> None:
    holding(monkeypatch, lo="127.0.0.1", eth0="10.0.0.2")
    with pytest.raises(
        ValueError, match=r"holds 192\.168\.0\.9.*lo: 127\.0\.0\.1; eth0: 10\.0\.0\.2.*--node-ip-address"
    ):
        interface_of("192.168.0.9")


def test_gloo_and_nccl_get_the_interface_each_in_its_own_form(monkeypatch, no_interface_given) -> None:
    holding(monkeypatch, lo="127.0.0.1", eth1="10.0.0.2")
    bind_collectives("10.0.0.2")
    assert (os.environ["GLOO_SOCKET_IFNAME"], os.environ["NCCL_SOCKET_IFNAME"]) == ("eth1", "=eth1")


def test_ranks_that_share_a_node_talk_on_loopback_and_a_weight_group_reaches_other_nodes(
    monkeypatch, no_interface_given
) -> None:
    holding(monkeypatch, lo="127.0.0.1", eth1="10.0.0.2")
    bind_nccl("10.0.0.2")
    bind_collectives("127.0.0.1")
    assert (os.environ["GLOO_SOCKET_IFNAME"], os.environ["NCCL_SOCKET_IFNAME"]) == ("lo", "=eth1")


def test_an_interface_that_the_node_was_given_is_kept(monkeypatch) -> None:
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "ib0")
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "eth9")
    bind_collectives("127.0.0.1")
    assert (os.environ["GLOO_SOCKET_IFNAME"], os.environ["NCCL_SOCKET_IFNAME"]) == ("eth9", "ib0")


def test_ranks_are_tried_at_once(monkeypatch) -> None:
    together = threading.Barrier(9, timeout=180)
    monkeypatch.setattr(network, "_try", lambda endpoint: f"{together.wait()}")
    assert set(unreachable(0, 10 * [Endpoint("127.0.0.1", 0, 1)])) == set(range(1, 10))


def test_ranks_that_answer_are_not_reported_and_one_that_does_not_is(monkeypatch) -> None:
    monkeypatch.setattr(network, "CONNECT_TIMEOUT_S", 2.0)
    with listen("127.0.0.1") as open_door, socket.socket() as silent, socket.socket() as filler:
        silent.bind(("127.0.0.1", 0))
        silent.listen(0)  # once its queue is full, the kernel drops further attempts: a host that is cut off
        filler.connect(silent.getsockname())
        more = [socket.socket() for _ in range(2)]
        for one in more:
            one.setblocking(False)
            one.connect_ex(silent.getsockname())
        with socket.create_server(("127.0.0.1", 0)) as gone:
            closed = gone.getsockname()[1]
        ports = [open_door.getsockname()[1], open_door.getsockname()[1], silent.getsockname()[1], closed]
        found = unreachable(0, [Endpoint("127.0.0.1", 0, port) for port in ports])
        for one in more:
            one.close()
    assert set(found) == {2, 3} and found[2] == "no answer within 2 s" and "refused" in found[3]


def test_the_words_name_both_ranks_with_their_addresses() -> None:
    endpoints = [Endpoint("10.0.0.1", 1, 2), Endpoint("10.0.0.2", 1, 2), Endpoint("10.0.0.3", 1, 2)]
    assert failures_in_words(endpoints, {0: {}, 1: {}, 2: {}}) is None
    words = failures_in_words(endpoints, {0: {}, 1: {2: "no answer within 5 s"}, 2: {1: "refused"}})
    assert words.startswith(
        "learner rank 2 on 10.0.0.3 cannot be reached from rank 1 on 10.0.0.2 (no answer within 5 s); "
        "learner rank 1 on 10.0.0.2 cannot be reached from rank 2 on 10.0.0.3 (refused). "
    )
    many = {source: {to: "refused" for to in range(3) if to != source} for source in range(3)}
    assert failures_in_words(endpoints, many).count("cannot be reached") == 4 and "2 more pairs" in failures_in_words(
        endpoints, many
    )


def test_only_addresses_and_names_of_this_machine_alone_are_loopback() -> None:
    alone = ("127.0.0.1", "127.8.8.8", "::1", "localhost", "run.localhost")
    assert [is_loopback(host) for host in alone] == [True] * len(alone)
    assert [is_loopback(host) for host in ("0.0.0.0", "::", "192.168.1.1", "gpu7")] == [False] * 4
