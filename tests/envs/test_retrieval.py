"""What holds of the index on disk, of corpora and of retrievers over HTTP."""

import gzip
import json
import multiprocessing
import os
import random
import resource
import socket
import threading
from contextlib import contextmanager, suppress

import bm25s
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.envs.retrieval import HttpRetriever, Passage, RetrieverError, index, open_index
from squelch.envs.retrieval.corpus import open_corpus
from squelch.kit.base.cache import cache_folder
from tests.envs.retriever_server import hits, serving, sleeping

WORDS = [f"{a}{b}" for a in ("ba", "do", "ki", "mu", "re") for b in ("la", "no", "pi", "su", "ta", "ve")]


def some_passages(count: int = 200) -> list[Passage]:
    rng = random.Random(0)
    texts = [" ".join(rng.choices(WORDS, k=rng.randrange(3, 12))) for _ in range(count)]
    return [Passage(f"p{i}", f"Title {i}", text, f"payload {i}") for i, text in enumerate(texts)]


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return open_index("small", "small", some_passages, tmp_path_factory.mktemp("small"))


def test_a_search_ranks_as_the_library_does(small):
    passages = some_passages()
    tokens = [[word.decode() for word in index.words_of(f"{p.title} {p.text}")] for p in passages]
    reference = bm25s.BM25(method="lucene")
    reference.index(tokens, show_progress=False)
    rng = random.Random(1)
    for _ in range(50):
        query = sorted(set(rng.choices(WORDS, k=3)))
        scores = reference.get_scores(query)
        found = small.search(" ".join(query), 5)
        np.testing.assert_allclose([score for _, score in found], np.sort(scores)[::-1][:5], rtol=1e-5)
        np.testing.assert_allclose([scores[row] for row, _ in found], [score for _, score in found], rtol=1e-5)


def test_a_passage_is_found_by_its_title_and_comes_back_whole(small):
    (row, _), *_ = small.search("title 117", 3)
    assert small.passage(row) == some_passages()[117]
    assert small.retrieve("TITLE, 117!", 1)[0].text == some_passages()[117].text


def test_equal_scores_come_in_the_order_of_rows(tmp_path):
    same = open_index("same", "", lambda: [Passage(str(i), "", "one word") for i in range(300)], tmp_path)
    assert [row for row, _ in same.search("word", 7)] == list(range(7))


def test_word_order_and_repetition_in_a_query_change_nothing(small):
    assert small.search("bala dono kipi", 9) == small.search("kipi kipi bala  DONO", 9)


@given(st.text(max_size=200), st.integers(-1, 300))
@settings(max_examples=300, deadline=None)
def test_no_query_raises_or_finds_more_than_asked(small, query, count):
    assert len(small.search(query, count)) <= max(count, 0)


@pytest.mark.parametrize("query", ["", " ", "the and of", "\ud800", "\x00", "[" * 10_000, "ba la " * 10_000, "é" * 99])
def test_odd_queries_find_nothing_they_should_not(small, query):
    assert small.search(query, 3) == []


def test_an_index_is_memory_mapped(small):
    arrays = [*(small._scores.scores[name] for name in ("data", "indices")), small._words, small._word_ids]
    assert all(isinstance(array, np.memmap) and not array.flags.writeable for array in arrays)
    before = pa.total_allocated_bytes()
    small.passage(3)
    assert pa.total_allocated_bytes() == before  # passages are read where they lie


def test_an_index_is_built_once_for_each_identity(tmp_path):
    calls = []

    def passages():
        calls.append(1)
        return some_passages(20)

    first = open_index("once", "a", passages, tmp_path)
    assert open_index("once", "a", passages, tmp_path) is first and len(calls) == 1
    open_index("once", "b", passages, tmp_path)
    assert len(calls) == 2


def _build_in_process(folder: str, results) -> None:
    found = open_index("raced", "", lambda: some_passages(3000), folder)
    results.put((os.getpid(), found.search("title 2999", 1)))


@pytest.mark.slow
def test_processes_that_build_at_once_all_get_the_one_whole_index(tmp_path):
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    workers = [context.Process(target=_build_in_process, args=(str(tmp_path), results)) for _ in range(3)]
    for worker in workers:
        worker.start()
    found = [results.get(timeout=180) for _ in workers]
    for worker in workers:
        worker.join(180)
    assert len({pid for pid, _ in found}) == 3
    assert all(result == found[0][1] and result[0][0] == 2999 for _, result in found)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == ["", ".lock"]


def test_a_building_that_breaks_off_leaves_no_index(tmp_path):
    def broken():
        yield from some_passages(10)
        raise ValueError("row 11 is bad")

    with pytest.raises(ValueError, match="row 11 is bad"):
        open_index("broken", "", broken, tmp_path)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]
    assert len(open_index("broken", "", lambda: some_passages(10), tmp_path)) == 10


def test_what_a_killed_builder_left_goes_after_a_day(tmp_path):
    with pytest.raises(ValueError, match="no passage"):
        open_index("left", "", list, tmp_path)
    (lock,) = tmp_path.iterdir()
    old, new = (tmp_path / f"{lock.stem}.{age}.building" for age in ("old", "new"))
    old.mkdir()
    new.mkdir()
    os.utime(old, (0, 0))
    open_index("left", "", lambda: some_passages(3), tmp_path)
    assert new.exists() and not old.exists()


def test_an_index_that_came_into_being_meanwhile_is_used(tmp_path):
    def passages():
        yield from some_passages(5)
        (lock,) = tmp_path.glob("*.lock")
        if not lock.with_suffix("").exists():  # another host, which does not see our lock
            index._build(lock.with_suffix(""), some_passages(5))

    assert len(open_index("meanwhile", "", passages, tmp_path)) == 5
    assert sorted(path.suffix for path in tmp_path.iterdir()) == ["", ".lock"]


@pytest.mark.parametrize("texts", [[], [""], ["the of"]])
def test_nothing_to_search_is_refused(tmp_path, texts):
    with pytest.raises(ValueError, match="no passage with a word in it"):
        open_index("empty", str(texts), lambda: [Passage("0", "", text) for text in texts], tmp_path)


def test_a_damaged_index_names_its_folder(tmp_path):
    open_index("damaged", "", lambda: some_passages(10), tmp_path)
    (folder,) = [path for path in tmp_path.iterdir() if path.is_dir()]
    index._open.pop(folder)
    (folder / "words.npy").write_bytes(b"nonsense")
    with pytest.raises(ValueError, match=rf"{folder}: a damaged index .*delete the folder"):
        open_index("damaged", "", some_passages, tmp_path)


def test_a_cache_that_cannot_be_written_is_named_with_the_way_out(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"file.*cannot be written.*option `cache` or the variable SQUELCH_CACHE"):
        open_index("x", "", some_passages, tmp_path / "file" / "folder")


def test_the_cache_is_the_option_else_the_variable_else_the_users(monkeypatch, tmp_path):
    monkeypatch.setenv("SQUELCH_CACHE", str(tmp_path / "variable"))
    assert cache_folder(tmp_path / "option") == tmp_path / "option"
    assert cache_folder() == tmp_path / "variable"
    monkeypatch.delenv("SQUELCH_CACHE")
    assert cache_folder().name == "squelch"


# --- corpora ---


def test_a_corpus_may_be_json_lines_or_parquet_or_search_r1s(tmp_path):
    rows = [{"id": i, "title": f"Name{i}", "text": f"text {i}"} for i in range(5)]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "b.parquet")
    contents = [{"id": str(i), "contents": f'"Name{i}"\ntext {i}'} for i in range(5)]
    (tmp_path / "c.jsonl").write_text("\n".join(map(json.dumps, contents)))
    for name in ("a.jsonl", "b.parquet", "c.jsonl"):
        corpus = open_corpus(str(tmp_path / name), str(tmp_path / "cache"))
        found = corpus.retrieve("name3", 2)
        assert [(one.title, one.text) for one in found] == [("Name3", "text 3")]


def test_a_corpus_that_changed_is_indexed_anew(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"title": "Old", "text": "x"}')
    assert open_corpus(str(file), str(tmp_path / "cache")).retrieve("old", 1)
    file.write_text('{"title": "Newer", "text": "x"}')
    assert open_corpus(str(file), str(tmp_path / "cache")).retrieve("newer", 1)


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (['{"title": "T", "text": "x"}', '{"title": "T"}'], r"a\.jsonl, line 2, column text: a passage needs text"),
        (['{"text": "x"}', '{"text": 7}'], r"a\.jsonl, line 2, column text: .*valid string"),
        (['{"text": "x"}', "{"], r"a\.jsonl, line 2: not JSON"),
    ],
)
def test_a_bad_row_of_a_corpus_is_named(tmp_path, lines, message):
    (tmp_path / "a.jsonl").write_text("\n".join(lines))
    with pytest.raises(ValueError, match=message):
        open_corpus(str(tmp_path / "a.jsonl"), str(tmp_path / "cache"))


def test_a_missing_corpus_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"nowhere\.jsonl: no such file"):
        open_corpus(str(tmp_path / "deep" / "nowhere.jsonl"))


# --- HTTP ---


def test_a_retriever_is_asked_in_search_r1s_form():
    with serving(hits) as (url, requests):
        (found,) = HttpRetriever(url, 2.0, 0).retrieve("who \ud800 é", 3)
    assert (found.title, found.text, found.score) == ("Title", "about who ? é", 2.5)
    assert requests == [{"queries": ["who ? é"], "topk": 3, "return_scores": True}]


def test_an_overloaded_retriever_is_asked_again_and_cannot_say_when():
    with serving(lambda request, earlier: hits(request, 0) if earlier == 2 else (503, b"busy")) as (url, requests):
        assert HttpRetriever(url, 2.0, 2).retrieve("x", 1)
    assert len(requests) == 3


@pytest.mark.parametrize(
    ("answer", "reason", "attempts", "timeout_s"),
    [
        (lambda *_: (503, b"busy"), "no answer in 2 attempts", 2, 5.0),
        (lambda *_: (404, b"who are you"), r"status 404 \('who are you'\)", 1, 5.0),
        (lambda *_: (200, b"<html>"), "nonsense, not JSON: '<html>'", 1, 5.0),
        (lambda *_: (200, b"[" * 100_000), "nonsense, not JSON", 1, 5.0),
        (lambda *_: (200, b"{}"), "nonsense: result: Field required", 1, 5.0),
        (lambda *_: (200, b'{"result": []}'), "nonsense: 0 results for 1 query", 1, 5.0),
        (
            lambda *_: (200, b'{"result": [[{"document": {}, "score": 1}]]}'),
            r"nonsense: result\.0\.0\.document\.contents",
            1,
            5.0,
        ),
        (
            lambda *_: (200, b'{"result": [[{"document": {"contents": "x"}}]]}'),
            r"result\.0\.0\.score: Field",
            1,
            5.0,
        ),
        (lambda *_: (200, b" " * (5 * 2**20)), "an answer above 4194304 bytes", 1, 5.0),
        (sleeping(1.0), r"no answer in 2 attempts of 0\.2 s", 2, 0.2),
    ],
)
def test_a_retriever_in_trouble_is_reported_by_its_address_and_trouble(answer, reason, attempts, timeout_s):
    with serving(answer) as (url, requests):
        with pytest.raises(RetrieverError, match=reason) as caught:
            HttpRetriever(url, timeout_s, 1).retrieve("x", 1)
        assert len(requests) == attempts
    assert url in str(caught.value)


@contextmanager
def compressed(body: bytes):
    """(url of a retriever that answers so with gzip, whatever it is asked, its requests' headers)."""
    sent = []

    def answer(listener):
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            sent.append(connection.recv(65536))
            head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: {len(body)}\r\n\r\n"
            connection.sendall(head.encode() + body)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=answer, args=(listener,), daemon=True)
        server.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/retrieve", sent
        server.join(180)


def test_an_answer_is_never_inflated():
    """A thousandth of what it inflates to is sent; several encodings one over the other multiply that."""
    bomb = gzip.compress(bytes(2**26))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with compressed(bomb) as (url, sent), pytest.raises(RetrieverError, match="an answer compressed as 'gzip'"):
        HttpRetriever(url, 5.0, 0).retrieve("x", 1)
    assert b"accept-encoding: identity" in sent[0].lower()
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 20 * 1024


@pytest.mark.parametrize("answer", [lambda *_: (404, b"no"), lambda *_: (200, b"{}"), lambda *_: (503, b"busy")])
def test_no_error_of_a_retriever_tells_its_password(answer):
    with serving(answer) as (url, _):
        secret = url.replace("http://", "http://user:hunter22@") + "?api_key=k3y3k3y3"
        with pytest.raises(RetrieverError) as caught:
            HttpRetriever(secret, 2.0, 0).retrieve("x", 1)
    assert "hunter22" not in str(caught.value) and "k3y3" not in str(caught.value) and "***@" in str(caught.value)


def test_a_trickling_answer_is_given_up():
    with (
        serving(hits, chunk=1, pause_s=0.02) as (url, _),
        pytest.raises(RetrieverError, match=r"an answer that takes more than 0\.5 s"),
    ):
        HttpRetriever(url, 0.5, 0).retrieve("x", 1)


def test_an_answer_whose_head_trickles_is_given_up():
    sent, stop = [], threading.Event()

    def trickle(listener):
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\nX: ")
            while not stop.wait(0.05):  # each byte well within the time-out, for as long as the client is there
                connection.sendall(b"a")
                sent.append(1)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=trickle, args=(listener,), daemon=True)
        server.start()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/retrieve"
        with pytest.raises(RetrieverError, match=r"no answer in 1 attempts of 0\.3 s \(.*timed out"):
            HttpRetriever(url, 0.3, 0).retrieve("x", 1)
        stop.set()
        server.join(180)
    assert sent


def test_a_retriever_that_is_down_is_reported():
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # taken, but nobody listens
        url = f"http://127.0.0.1:{closed.getsockname()[1]}/retrieve"
        with pytest.raises(RetrieverError, match="no answer in 2 attempts"):
            HttpRetriever(url, 0.5, 1).retrieve("x", 1)


def test_a_retriever_may_be_shared_between_threads():
    found: list[str] = []
    with serving(hits) as (url, _):
        retriever = HttpRetriever(url, 5.0, 0)
        ask = lambda word: found.append(retriever.retrieve(word, 1)[0].text)  # noqa: E731
        threads = [threading.Thread(target=ask, args=(f"w{i}",)) for i in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(180)
    assert sorted(found) == [f"about w{i}" for i in range(8)]
