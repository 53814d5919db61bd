"""Ray's object store is sized from the model, or the run is refused with the size that it needs."""

from collections import namedtuple

import pytest

from squelch.cluster.fleet import object_store
from squelch.cluster.fleet.object_store import GROUPS_MIB, LOCAL_MIB, MIB, VERSIONS, check_joined, local_mib, needed_mib
from squelch.kit.base.errors import UserError

SMOLLM2 = 538_000_000
Usage = namedtuple("Usage", "total used free")


def with_shared_memory(monkeypatch: pytest.MonkeyPatch, free_mib: int) -> None:
    monkeypatch.setattr(object_store.shutil, "disk_usage", lambda _: Usage(0, 0, free_mib * MIB))


def test_the_store_on_this_machine_holds_three_versions_and_the_groups(monkeypatch) -> None:
    with_shared_memory(monkeypatch, 20_000)
    assert local_mib(0, None) == local_mib(3_300_000, None) == LOCAL_MIB
    assert local_mib(SMOLLM2, None) == needed_mib(SMOLLM2) >= VERSIONS * SMOLLM2 / MIB + GROUPS_MIB
    assert local_mib(SMOLLM2, 4000) == 4000


def test_a_store_that_would_spill_weights_is_refused_with_the_size(monkeypatch) -> None:
    with_shared_memory(monkeypatch, 20_000)
    need = needed_mib(SMOLLM2)
    with pytest.raises(UserError, match=rf"cluster.object_store_mib=256 does not hold .* set at least {need}"):
        local_mib(SMOLLM2, 256)
    with_shared_memory(monkeypatch, 64)
    with pytest.raises(UserError, match=rf"has 64 MiB free .* needs {need} MiB .* --shm-size"):
        local_mib(SMOLLM2, None)


def test_a_joined_cluster_needs_one_living_node_whose_store_holds_the_weights() -> None:
    def node(mib: float, alive: bool = True) -> dict:
        return {"Alive": alive, "Resources": {"object_store_memory": mib * MIB}}

    check_joined(SMOLLM2, [node(100), node(2000)])
    with pytest.raises(UserError, match=r"has 100 MiB and the run needs \d+ MiB .* --object-store-memory=\d+"):
        check_joined(SMOLLM2, [node(100), node(2000, alive=False)])
