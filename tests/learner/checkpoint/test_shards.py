"""Files of any number of ranks are read by any number of ranks, bit by bit."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from squelch.actors.process import folders, shipping
from squelch.actors.process.shipping import forget, offer, outline
from squelch.learner.checkpoint.shards import STEP, Piece, numbered, read, write

SHAPES = st.lists(st.integers(0, 9), min_size=1, max_size=3).map(tuple)


def chunk(rows: int, ranks: int, rank: int) -> tuple[int, int]:
    """(first row, number of rows) of FSDP2's shard: `torch.chunk`, with empty shards at the end."""
    size = -(-rows // ranks)
    start = min(rows, size * rank)
    return start, min(rows, start + size) - start


@given(
    shapes=st.dictionaries(st.text("abc/.", min_size=1, max_size=8), SHAPES, min_size=1, max_size=5),
    writers=st.integers(1, 5),
    readers=st.integers(1, 5),
    part_bytes=st.integers(1, 400),
)
def test_what_some_ranks_wrote_others_read_bit_by_bit(
    tmp_path_factory: pytest.TempPathFactory,
    shapes: dict[str, tuple[int, ...]],
    writers: int,
    readers: int,
    part_bytes: int,
) -> None:
    folder = tmp_path_factory.mktemp("shards")
    tensors = {f"m/parameter/{name}": torch.randn(shape) for name, shape in shapes.items()}
    for rank in range(writers):
        own = {n: t[slice(s, s + c)].clone() for n, t in tensors.items() for s, c in [chunk(len(t), writers, rank)]}
        numbers = numbered({name: tensor.nbytes for name, tensor in own.items()}, part_bytes)
        for part in set(numbers.values()):
            save_file({n: own[n] for n in own if numbers[n] == part}, folder / f"{rank:05d}-{part:05d}.safetensors")
    found = [
        read(folder, {n: Piece(t.dtype, tuple(t.shape), *chunk(len(t), readers, rank)) for n, t in tensors.items()})
        for rank in range(readers)
    ]
    for name, tensor in tensors.items():
        assert torch.equal(torch.cat([one[name] for one in found]), tensor)


@pytest.mark.usefixtures("alone")
def test_a_plain_tensor_is_held_whole_and_a_sharded_one_by_its_rows() -> None:
    assert Piece.of(torch.zeros(3, 2)) == Piece(torch.float32, (3, 2), 0, 3)
    assert Piece.of(torch.tensor(1.0)) == Piece(torch.float32, ())
    mesh = init_device_mesh("cpu", (1,))
    sharded = distribute_tensor(torch.zeros(3, 2, dtype=torch.bfloat16), mesh, [Shard(0)])
    assert Piece.of(sharded) == Piece(torch.bfloat16, (3, 2), 0, 3)
    with pytest.raises(RuntimeError, match=r"placements \(Replicate\(\),\); only tensors sharded on dimension 0"):
        Piece.of(distribute_tensor(torch.zeros(3, 2), mesh, [Replicate()]))


@given(sizes=st.lists(st.integers(0, 50), max_size=12), most=st.integers(1, 60))
def test_files_are_filled_in_order_and_hold_no_more_than_they_may(sizes: list[int], most: int) -> None:
    numbers = numbered({str(i): size for i, size in enumerate(sizes)}, most)
    assert list(numbers.values()) == sorted(numbers.values()) and len(numbers) == len(sizes)
    for number in set(numbers.values()):
        inside = [size for i, size in enumerate(sizes) if numbers[str(i)] == number and size]
        assert sum(inside) <= most or len(inside) == 1


def test_shards_have_the_rights_of_the_files_beside_them(tmp_path: Path) -> None:
    write(tmp_path, {"m/parameter/w": torch.ones(2)}, 0)
    (tmp_path / "other").touch()
    assert len({path.stat().st_mode for path in tmp_path.iterdir()}) == 1, "as the user's umask says"


def test_tensors_that_every_rank_holds_are_written_once(tmp_path: Path) -> None:
    step = torch.tensor(3.0)
    write(tmp_path, {"m/step/x": step}, 0)
    write(tmp_path, {"m/step/x": step}, 1)
    assert [path.name for path in tmp_path.iterdir()] == ["00000-00000.safetensors"]
    assert read(tmp_path, {"m/step/x": STEP})["m/step/x"] == step


@pytest.fixture
def nodes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[Callable[[str], None], Counter[str]]:
    """Goes to a node, which has a cache of its own; the bytes that each node got from the driver's object store."""
    objects: list = []
    here, got = ["driver"], Counter[str]()

    def get(reference: int, timeout: float) -> bytes | dict[str, bytes]:
        found = objects[reference]
        got[here[0]] += len(found) if isinstance(found, bytes) else sum(map(len, found.values()))
        return found

    def go(node: str) -> None:
        here[0] = node
        monkeypatch.setenv("SQUELCH_CACHE", str(tmp_path / f"cache-{node}"))

    monkeypatch.setattr("ray.put", lambda value: objects.append(value) or len(objects) - 1)
    monkeypatch.setattr("ray.get", get)
    monkeypatch.setattr(shipping, "own_node", lambda: (here[0], here[0]))
    monkeypatch.setattr(folders, "CHUNK_BYTES", 50_000)
    go("driver")
    return go, got


def test_a_node_fetches_the_files_that_its_ranks_read_and_of_all_others_the_headers(
    nodes: tuple[Callable[[str], None], Counter[str]], tmp_path: Path
) -> None:
    go, got = nodes
    rows, step = 30_000, torch.tensor(3.0)
    weight, sharded = torch.randn(rows, 2), tmp_path / "step-1" / "sharded"
    sharded.mkdir(parents=True)
    (sharded.parent / "model.json").write_text("{}")
    save_file({"m/step/w": step}, sharded / "00000-00001.safetensors")
    for rank in range(2):
        start, count = chunk(rows, 2, rank)
        file = sharded / f"{rank:05d}-00000.safetensors"
        save_file({"m/parameter/w": weight[start : start + count].clone()}, file)
    offered, half = offer(sharded.parent, outlined=True), weight.nbytes // 2

    def load(node: str, ranks: int, rank: int) -> None:
        go(node)
        start, count = chunk(rows, ranks, rank)
        wanted = {"m/parameter/w": Piece(weight.dtype, (rows, 2), start, count), "m/step/w": STEP}
        path, whole = outline(offered)
        assert (path == sharded.parent) == (node == "driver") and (path / "model.json").read_text() == "{}"
        found = read(path / "sharded", wanted, whole=whole)
        assert torch.equal(found["m/parameter/w"], weight[start : start + count]) and found["m/step/w"] == step

    load("driver", 2, 0)
    load("a", 2, 0)
    load("b", 2, 1)
    assert got["driver"] == 0
    assert half < got["a"] < half + 1000 and half < got["b"] < half + 1000, "as many ranks: each its own shards"
    for rank in range(2):
        load("c", 4, rank)
    assert half < got["c"] < half + 1000, "two ranks of a node read the same file, which is fetched once"
    load("d", 1, 0)
    assert 2 * half < got["d"] < 2 * half + 2000, "fewer ranks read what several wrote"
    forget(offered)
    assert not [path for path in (tmp_path / "cache-d" / "folders").iterdir() if path.is_dir()]


def test_a_missing_shard_in_the_middle_is_found(tmp_path: Path) -> None:
    whole = torch.arange(12.0).reshape(6, 2)
    for rank in (0, 2):
        save_file({"m/parameter/w": whole[2 * rank : 2 * rank + 2].clone()}, tmp_path / f"0000{rank}-00000.safetensors")
    with pytest.raises(ValueError, match=r"the shards \[\[2, 2\], \[2, 2\]\] of m/parameter/w are no tensor of shape"):
        read(tmp_path, {"m/parameter/w": Piece(torch.float32, (6, 2), 0, 6)})
