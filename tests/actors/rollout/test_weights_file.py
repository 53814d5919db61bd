"""The file that weights travel in, and the end of an engine whose worker is gone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from squelch.actors.rollout.weights_file import ArraySpec, read_arrays, written_arrays
from squelch.actors.weights import checksum

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


def test_a_short_file_is_an_error_with_the_sizes():
    with written_arrays([("w", np.ones(100))], frozenset()) as (path, table):
        os.truncate(path, 80)
        with pytest.raises(RuntimeError, match=r"weights of w end at byte 800, but .* holds 80 bytes"):
            read_arrays(path, specs(table))


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
    with subprocess.Popen([sys.executable, "-c", watch], cwd=Path(__file__).parents[3]) as engine:
        try:
            with pytest.raises(subprocess.TimeoutExpired):
                engine.wait(0.5)
            worker.kill()
            worker.wait(10)
            assert engine.wait(60) == -signal.SIGKILL
        finally:
            engine.kill()
