"""Lets a tokenizer encode and decode a sample, in a process that has little memory and time. Run as a script.

A tokenizer.json is a program of the model folder's author: replacements can double a text again and again, and damaged
fields make the Rust library panic. `squelch/kit/text/tokenizer.py` starts this script, which reads the file from
standard input and writes the fault, if there is one. The arguments are the bounds: bytes of memory and seconds of CPU
time.
"""

from __future__ import annotations

import resource
import sys

from tokenizers import Tokenizer

MEMORY_BYTES = 2 * 2**30
"""Bound of the process's writable memory; a tokenizer of 250,000 tokens takes a quarter of it."""
CPU_S = 10
"""Bound of its CPU time; the same tokenizer takes 2 s."""
SAMPLE = (
    "".join(map(chr, range(1, 0x250))) + " The answer is 42 .\n\n    return x == y  # \u4f60\u597d \U0001f600 " * 20
)
"""The text that it encodes; of 2,000 characters."""


def fault(data: bytes) -> str:
    """Why the tokenizer must not be loaded; empty if it may: an ordinary error is left to its reader."""
    try:
        found = Tokenizer.from_buffer(data)
        found.no_truncation()
        found.no_padding()
        ids = found.encode(SAMPLE, add_special_tokens=False).ids
        found.decode(ids, skip_special_tokens=False)
        found.get_vocab(with_added_tokens=True)
    except MemoryError:
        return "it needs too much memory"
    except Exception:
        return ""
    except BaseException as error:  # a panic of the Rust library
        return f"{str(error)[:300] or type(error).__name__}"
    return ""


def main(memory_bytes: int, cpu_s: int) -> None:
    """Tries the tokenizer at standard input, within these bounds."""
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))  # the first bound sends SIGXCPU, the second kills
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    sys.stdout.write(fault(sys.stdin.buffer.read()))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
