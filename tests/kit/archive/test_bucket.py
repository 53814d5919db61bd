"""A bucket behaves as a folder does; what it cannot do is said in a line that holds no secret."""

import socket
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from squelch.kit.archive import bucket
from squelch.kit.archive.bucket import open_store
from squelch.kit.archive.store import LocalStore, Store, StoreUrlError
from tests.stores import S3, SECRET, s3_server, use


@pytest.fixture(scope="module")
def server() -> Iterator[S3]:
    with s3_server() as found:
        yield found


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Store:
    if request.param == "folder":
        return open_store(str(tmp_path), name="run")
    found = request.getfixturevalue("server")
    use(monkeypatch, found)
    return open_store(f"{found.url}/{tmp_path.name}", name="run")


def put(store: Store, key: str, data: bytes) -> None:
    with store.put(key) as file:
        file.write(data)


def test_what_was_put_is_what_is_there(store: Store) -> None:
    assert store.list() == [] and store.stat("a/b") is None
    put(store, "a/b", b"first")
    put(store, "a/b", b"second")
    put(store, "ab", b"")
    put(store, "c", b"other")
    assert store.list() == ["a/b", "ab", "c"] and store.list("a") == ["a/b", "ab"] and store.list("a/") == ["a/b"]
    with store.get("a/b") as file:
        assert file.read() == b"second" and file.seek(1) == 1 and file.read(2) == b"ec"
    found = store.stat("a/b")
    assert found is not None and found.size == 6 and found.modified_ns > 1e18
    store.delete("a/b")
    store.delete("a/b")
    assert store.list() == ["ab", "c"]
    with pytest.raises(FileNotFoundError):
        store.get("a/b")
    assert store.where("c").endswith("run/c")


def test_of_two_creations_the_first_counts(store: Store) -> None:
    assert store.create("lease/1", b"mine")
    assert not store.create("lease/1", b"theirs")
    with store.get("lease/1") as file:
        assert file.read() == b"mine"
    assert store.list("lease/") == ["lease/1"], "no temporary file is left"


def test_a_write_that_raises_leaves_the_file_as_it_was(store: Store) -> None:
    put(store, "a", b"first")
    with pytest.raises(RuntimeError), store.put("a") as file:
        file.write(b"half")
        raise RuntimeError
    with store.get("a") as file:
        assert file.read() == b"first"


def test_a_file_larger_than_a_chunk_arrives_whole_and_is_read_in_ranges(store: Store, monkeypatch) -> None:
    data = bytes(range(256)) * 24_000
    monkeypatch.setattr(bucket, "CHUNK_BYTES", 5 << 20)
    with store.put("big") as file:
        for start in range(0, len(data), 1 << 20):
            file.write(data[start : start + (1 << 20)])
    with store.get("big") as file:
        assert file.read() == data
        file.seek(-3, 2)
        assert file.read() == data[-3:]


def test_arrow_reads_a_part_from_a_store(store: Store) -> None:
    table = pa.table({"a": list(range(1000)), "b": ["x"] * 1000})
    with store.put("part.parquet") as file:
        pq.write_table(table, file)
    with store.get("part.parquet") as file:
        assert pq.read_table(file, columns=["a"]).equals(table.select(["a"]))


def test_a_bucket_that_is_missing_and_a_server_that_is_gone_are_said_without_the_request(server, monkeypatch) -> None:
    use(monkeypatch, server)
    missing = open_store("s3://nobucket/prefix")
    for call in (missing.list, lambda: missing.create("a", b""), lambda: put(missing, "a", b"")):
        with pytest.raises(OSError, match=r"^\[Errno \d+\] s3://nobucket/prefix.*NoSuchBucket") as refused:
            call()
        assert SECRET not in str(refused.value) and "\n" not in str(refused.value)
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        port = nobody.getsockname()[1]
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{port}")
    monkeypatch.setattr(bucket, "RETRIES", 0)
    with pytest.raises(OSError, match="s3://bucket/x") as silent:
        open_store("s3://bucket").stat("x")
    assert f"s3://bucket/x: Connection refused (http://127.0.0.1:{port})" in str(silent.value)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{listener.getsockname()[1]}")
        monkeypatch.setattr(bucket, "SILENCE_S", 1)
        monkeypatch.setattr(bucket, "REQUEST_S", 1)
        with pytest.raises(OSError, match="s3://bucket/x: no answer in time ") as silent:
            open_store("s3://bucket").stat("x")
    assert SECRET not in str(silent.value) and "\n" not in str(silent.value)
    assert SECRET not in repr(open_store("s3://bucket"))


def test_a_refused_request_says_what_to_check() -> None:
    text = "Server returned non-2xx status code: 403 Forbidden: <body>"
    assert bucket._answer(ValueError(text)) == "403 Forbidden" + bucket._MAY_NOT
    assert bucket._answer(ValueError(text.replace("403 Forbidden", "500 Oops"))) == "500 Oops"


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("ftp://host/x", "ftp:// is no store; give s3://BUCKET/PREFIX"),
        ("s3://id:hunter2@bucket/x", "credentials come from the environment"),
        ("s3://bucket/x?sig=hunter2", "credentials come from the environment"),
        ("s3://", "a bucket and a prefix"),
        ("runs/store", "no other host would find the folder runs/store"),
        ("/mnt/../etc", "no other host would find"),
        ("file://mnt", "no other host would find"),
    ],
)
def test_what_is_no_store_is_refused_and_no_credential_repeated(url: str, says: str) -> None:
    with pytest.raises(StoreUrlError) as refused:
        open_store(url)
    assert says in str(refused.value) and "hunter2" not in str(refused.value)


def test_a_folder_is_named_by_its_path_or_a_url(tmp_path: Path) -> None:
    assert (
        open_store(f"file://{tmp_path}", name="a") == open_store(str(tmp_path), name="a") == LocalStore(tmp_path / "a")
    )


def test_a_store_without_its_library_says_how_to_install_it(monkeypatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "obstore.exceptions", None)
    with pytest.raises(StoreUrlError, match=r"pip install 'squelch-rl\[store\]'"):
        open_store("s3://bucket")
