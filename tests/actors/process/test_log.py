"""What the log of an actor says of its end."""

import pytest

from squelch.actors.process.log import VARIABLE, last_error

VLLM = """\
(EngineCore pid=24834) ERROR 11-29 12:59:09 [core.py:1510]     raise ValueError(
(EngineCore pid=24834) ERROR 11-29 12:59:09 [core.py:1510] ValueError: the port is a URI
Process EngineCore:
Traceback (most recent call last):
    raise ValueError(
ValueError: the port is a URI
nanobind: leaked 514 functions!
"""


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (VLLM, "ValueError: the port is a URI"),
        ("x\ntorch.OutOfMemoryError: CUDA out of memory. Tried\n", "torch.OutOfMemoryError: CUDA out of memory. Tried"),
        ("(EngineCore pid=1) ERROR 11-29 [core.py:1] RuntimeError: no\n" + 9000 * "step\n", "RuntimeError: no"),
        ("process 1 is rollout-0\n", ""),
    ],
)
def test_the_newest_error_in_a_log_is_quoted(text, said, tmp_path, monkeypatch):
    (tmp_path / "rollout-0.log").write_text(text)
    monkeypatch.setenv(VARIABLE, str(tmp_path / "rollout-0.log"))
    assert last_error() == said


def test_without_a_log_nothing_is_quoted(monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert last_error() == ""
