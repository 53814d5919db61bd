"""The file that weights travel in, and the end of an engine whose worker is gone."""

from __future__ import annotations

import mmap
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from squelch.actors.messages import SharedWeights
from squelch.actors.weights import checksum
from squelch.actors.weights_file import ArraySpec, Unreachable, WeightsFile, opened, read_arrays, written_arrays

ARRAYS = hnp.arrays(
    dtype=st.sampled_from([np.float32, np.uint16, np.float16]),
    shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=5),
)


def specs(table: list[dict]) -> list[ArraySpec]:
    return [ArraySpec.of(entry) for entry in table]


@settings(max_examples=60, deadline=None)
@given(st.lists(ARRAYS, max_size=6))
def test_arrays_come_back_byte_for_byte_in_order(arrays):
    named = [(f"p{index}", array) for index, array in enumerate(arrays)]
    with written_arrays(named, frozenset()) as (path, table):
        back = read_arrays(path, specs(table))
        assert checksum(back.items()) == checksum(named)
    assert not path.exists()


def test_another_process_can_map_the_file_and_nothing_is_left_of_it():
    read = "import sys; sys.stdout.write(open(sys.argv[1], 'rb').read(3).hex())"
    with pytest.raises(KeyError), written_arrays([("w", np.array([1, 2, 3], np.uint8))], frozenset()) as (path, _):
        found = subprocess.run([sys.executable, "-c", read, path], capture_output=True, text=True, check=True)
        assert found.stdout == "010203"
        raise KeyError
    assert not path.exists()


def test_a_short_file_is_an_error_with_the_sizes(tmp_path):
    with written_arrays([("w", np.ones(100))], frozenset()) as (path, table):
        cut = tmp_path / "cut"
        cut.write_bytes(path.read_bytes()[:80])
        with pytest.raises(RuntimeError, match=r"weights of w end at byte 800, but .* holds 80 bytes"):
            read_arrays(cut, specs(table))


def test_sealed_memory_cannot_be_changed_by_anyone():
    with written_arrays([("w", np.ones(100))], frozenset()) as (path, _):
        for change in (lambda: os.truncate(path, 80), lambda: os.truncate(path, 8000)):
            with pytest.raises(PermissionError):
                change()
        with open(path, "r+b") as file, pytest.raises(PermissionError):
            os.pwrite(file.fileno(), b"x", 0)
        with open(path, "r+b") as file, pytest.raises(PermissionError):
            mmap.mmap(file.fileno(), 0)


def test_a_version_stays_readable_for_whoever_opened_it_before_the_learner_freed_it():
    file = WeightsFile()
    file.add("w", np.arange(5), False)
    shared = file.seal()
    with opened(shared) as path:
        file.close()
        assert read_arrays(path, specs(list(shared.arrays)))["w"].tolist() == [0, 1, 2, 3, 4]
    with pytest.raises(Unreachable, match=r"no process here has it: .* or newer weights replaced it"), opened(shared):
        pass


def test_memory_that_is_not_the_published_one_is_not_opened(tmp_path):
    """On another host the path may be anything: also a pipe without a writer, whose opening would wait forever."""
    file = WeightsFile()
    file.add("w", np.arange(5), False)
    unsealed = SharedWeights(str(file.path), file.name, 40, ())
    file._file.flush()
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(Unreachable, match="not sealed"), opened(unsealed):
        pass
    shared = file.seal()
    wrong = {
        r"is /.*pipe here: the weights are on another host": replace(shared, path=str(pipe)),
        r"is /memfd:.* here: the weights are on another host": replace(shared, name="squelch-weights-0"),
        r"holds 40 bytes, and 41 were published": replace(shared, num_bytes=41),
        r"no process here has it: it is on another host": replace(shared, path="/proc/4194999/fd/3"),
    }
    for reason, other in wrong.items():
        with pytest.raises(Unreachable, match=reason), opened(other):
            pass
    file.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_is_told_that_it_may_not_open_the_memory():
    file = WeightsFile()
    file.add("w", np.arange(5), False)
    shared = file.seal()
    child = os.fork()
    if child == 0:
        os.setgid(65534)
        os.setuid(65534)
        try:
            with opened(shared):
                os._exit(1)
        except Unreachable as error:
            os._exit(0 if "may not open it" in str(error) else 2)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    file.close()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_the_checksum_changes_with_any_byte_name_shape_type_or_order(data):
    array = data.draw(hnp.arrays(np.float32, (3, 4), elements=st.floats(-9, 9, width=32)))
    other = np.ones(2, np.float32)
    whole = [("a", array), ("b", other)]
    flipped = array.copy()
    flipped.view(np.uint8).reshape(-1)[data.draw(st.integers(0, 47))] ^= 1 << data.draw(st.integers(0, 7))
    changed = [
        [("a", flipped), ("b", other)],
        [("A", array), ("b", other)],
        [("a", array.reshape(4, 3)), ("b", other)],
        [("a", array.view(np.int32)), ("b", other)],
        [("b", other), ("a", array)],
        [("a", array)],
    ]
    digests = {checksum(one) for one in changed}
    assert len(digests) == len(changed) and checksum(whole) not in digests


def test_an_engine_process_ends_when_its_worker_is_gone():
    worker = subprocess.Popen(["sleep", "60"])
    watch = f"import squelch.actors.process.parent_watch as w; w.end_with({worker.pid})"
    with subprocess.Popen([sys.executable, "-c", watch], cwd=Path(__file__).parents[2]) as engine:
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                engine.wait(0.5)
            worker.kill()
            worker.wait(180)
            assert engine.wait(60) == -signal.SIGKILL
        finally:
            engine.kill()
