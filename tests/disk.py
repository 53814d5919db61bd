"""A disk that is full, for tests: a real write, a real error."""

import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def files_of_at_most(num_bytes: int) -> Iterator[None]:
    """The kernel refuses to let a file of this process grow past the size, as a full disk does.

    Nothing is compiled meanwhile: Python would leave the part of a module that it could write, and then read it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    compiles_nothing, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sys.dont_write_bytecode = compiles_nothing
