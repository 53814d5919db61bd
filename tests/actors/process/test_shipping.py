"""Folders of the driver's disk on other nodes. Ray's object store is a dictionary here."""

import asyncio
from pathlib import Path

import pytest
from ray.exceptions import GetTimeoutError, ObjectLostError

from squelch.actors.play import actor
from squelch.actors.play.actor import EnvironmentActor
from squelch.actors.process import folders, shipping
from squelch.actors.process.shipping import MODEL_FILES, Folder, forget, local, offer
from squelch.cluster.config import RunConfig, load
from squelch.envs.retrieval import index

FILES = {"config.json": b"{}", "model.safetensors": bytes(range(11)), "pytorch_model.bin": b"a pickle"}


class Store:
    """The object store, and the node on which this process acts."""

    def __init__(self) -> None:
        self.objects: list[bytes] = []
        self.node, self.fetched = "home", 0
        self.fault: Exception | None = None

    def put(self, value: bytes) -> int:
        self.objects.append(value)
        return len(self.objects) - 1

    def get(self, ref: int, timeout: float) -> bytes:
        if self.fault is not None:
            raise self.fault
        self.fetched += 1
        return self.objects[ref]


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Store:
    found = Store()
    monkeypatch.setattr(folders, "CHUNK_BYTES", 4)
    monkeypatch.setattr("ray.put", found.put)
    monkeypatch.setattr("ray.get", found.get)
    monkeypatch.setattr(shipping, "own_node", lambda: (found.node, f"host-{found.node}"))
    monkeypatch.setenv("SQUELCH_CACHE", str(tmp_path / "home-cache"))
    return found


@pytest.fixture
def model(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    folder.mkdir()
    for name, content in FILES.items():
        (folder / name).write_bytes(content)
    return folder


def go_far(store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """From here on this process runs on another node, with a cache of its own, which is returned."""
    store.node = "far"
    monkeypatch.setenv("SQUELCH_CACHE", str(tmp_path / "far-cache"))
    return tmp_path / "far-cache"


def test_the_drivers_node_uses_the_folder_itself(store, model):
    assert local(offer(model, MODEL_FILES)) == model and store.fetched == 0
    assert local(offer(model, ship=False)) == local(str(model)) == model


def test_another_node_gets_one_copy_of_what_is_read(store, model, monkeypatch, tmp_path):
    folder = offer(model, MODEL_FILES)
    cache = go_far(store, monkeypatch, tmp_path)
    model.rename(tmp_path / "not here")
    copy = local(folder)
    assert copy.parent == cache / "folders" and copy.name.startswith("model-")
    assert {file.name: file.read_bytes() for file in copy.iterdir()} == {
        name: content for name, content in FILES.items() if not name.endswith(".bin")
    }
    fetched = store.fetched
    assert local(folder) == copy and store.fetched == fetched == 4
    forget(folder)
    assert not copy.exists() and (tmp_path / "not here").is_dir()


@pytest.mark.parametrize("same", [True, False])
def test_the_same_path_on_another_node_is_used_only_with_the_same_content(store, model, monkeypatch, tmp_path, same):
    folder = offer(model, MODEL_FILES)
    go_far(store, monkeypatch, tmp_path)
    if not same:
        (model / "model.safetensors").write_bytes(bytes(11))
    assert (local(folder) == model) is same
    assert (store.fetched == 0) is same


def test_a_folder_that_was_not_offered_is_refused_by_name_and_host(store, model, monkeypatch, tmp_path):
    folder = offer(model, ship=False)
    assert folder.entries == () and not store.objects, "on a single node nothing is read"
    go_far(store, monkeypatch, tmp_path)
    with pytest.raises(ValueError, match=f"^{model} is on host-home only, and this actor runs on host-far"):
        local(folder)


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        (GetTimeoutError("late"), "did not arrive from host-home within 60 s"),
        (ObjectLostError("00", "", ""), "was lost with host-home"),
    ],
)
def test_a_chunk_that_does_not_come_names_file_and_host(store, model, monkeypatch, tmp_path, fault, says):
    folder = offer(model, MODEL_FILES)
    cache = go_far(store, monkeypatch, tmp_path)
    model.rename(tmp_path / "not here")
    store.fault = fault
    with pytest.raises(ValueError, match=rf"config\.json of {model} {says}"):
        local(folder)
    assert [path.suffix for path in (cache / "folders").iterdir()] == [".lock"]


class Anything:
    """Takes the place of codec and player, which no test here needs."""

    generate = steps = None

    def __init__(self, *_: object) -> None:
        pass


def player(monkeypatch: pytest.MonkeyPatch, config: RunConfig, indices: list[Folder]) -> EnvironmentActor:
    for name in ("open_format", "EnvironmentPlayer"):
        monkeypatch.setattr(actor, name, Anything)
    settings = (config.environment, config.sampling, config.environment_actor, 1024)
    return EnvironmentActor("env-0", "model", *settings, indices)


def test_an_index_of_the_driver_is_searched_on_another_node_without_being_built(store, monkeypatch, tmp_path):
    options = {"num_passages": 300}
    config = load("searchqa", ["environment.options={num_passages: 300}"])
    assert config.environment.options == options
    (built,) = [folder for folder in index.opened() if folder.parent == tmp_path / "home-cache"]
    offered = offer(built)
    cache = go_far(store, monkeypatch, tmp_path)
    built.rename(tmp_path / "not here")
    monkeypatch.setattr(index, "_build", lambda *_: pytest.fail("the index is built again"))
    index._open.clear()
    made = player(monkeypatch, config, [offered])
    assert asyncio.run(made.ready()) and index.opened() == [cache / built.name]
    index._open.clear()


def test_data_that_the_actors_host_lacks_are_named_with_the_host(store, monkeypatch, tmp_path):
    config = load("frozenlake")
    missing = config.environment.model_copy(
        update={"name": "MetaMathQA", "options": {"data": str(tmp_path / "none.json")}}
    )
    made = player(monkeypatch, config.model_copy(update={"environment": missing}), [])
    monkeypatch.setattr(actor, "own_node", lambda: ("far", "host-far"))
    with pytest.raises(ValueError, match=r"^environment MetaMathQA on host host-far: "):
        asyncio.run(made.ready())
