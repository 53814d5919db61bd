"""One interpreter decodes all Arrow files of a module's tests, as it does within a command: starting one takes longer
than most of these files. That every call has one of its own otherwise is shown in tests/kit/untrusted."""

from collections.abc import Iterator

import pytest

from squelch.kit.untrusted.decoder_process import one_interpreter


@pytest.fixture(scope="module", autouse=True)
def one_decoder() -> Iterator[None]:
    with one_interpreter():
        yield
