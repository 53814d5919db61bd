"""The process that compares answers: math-verify behind a pipe, so that a comparison that does not end can be killed.

`envs.meta_math_qa.answers` runs it as a script (`python -I comparison.py`); it imports no other module of Squelch. It
writes the line `r` once it is ready. For each JSON line `[number, truth, answer, cpu_s]` that it reads it then writes
one line `number verdict`: `1` equal, `0` different, `!` given up. The number tells whose verdict it is. Other lines are
skipped: they are what is left of a request whose reader or writer died.

Invariants:

- The parent imports and warms up the library once and never compares. Its forked child compares, within `cpu_s` seconds
  of CPU time and `MEMORY_BYTES` of address space. The kernel enforces both, even inside one long operation on huge
  integers. If the child dies, the parent gives up the request that it was at, and forks the next child, which takes
  milliseconds. A child that died at none may have taken a request with it: `0 !` asks for it once more.
- One request is answered before the next is read, so a child's death loses at most one request.
- The process ends at the end of its input.

Answers are parsed by a grammar. math-verify's other parser, for bare expressions, evaluates Python and is not used.
"""

import json
import logging
import mmap
import os
import resource
import signal
from typing import Any

from math_verify import LatexExtractionConfig, parse, verify

MEMORY_BYTES = 2**30
NUMBER_BYTES = 8
IDLE = 0
"""The number of no request."""
WARM_UP = (
    ("72", "72"),
    ("0.75", "\\frac{3}{4}"),
    ("75\\%", "3/4"),
    ("2\\sqrt{3}", "\\sqrt{12}"),
    ("x^2+1", "1+x^2"),
    ("(1,2)", "x=5"),
    ("\\pi+a*b", "-1,234"),
)
_READER = [LatexExtractionConfig(boxed_match_priority=0)]


def compare(truth: str, answer: str) -> bool:
    """Whether two answers in LaTeX or plain notation have the same value; False if one cannot be parsed."""
    # None sets no alarm signal; the documentation allows it, although the annotation does not.
    no_alarm: Any = None
    # By itself `parse` would judge a fraction within an answer that it cannot parse.
    gold, said = (
        parse(f"\\boxed{{{text}}}", _READER, "no_fallback", "first_match", parsing_timeout=no_alarm)
        for text in (truth, answer)
    )
    return bool(gold and said) and verify(gold, said, timeout_seconds=None)


def serve(requests: int, replies: int, current: mmap.mmap) -> None:
    """The child: answers requests until they end. `current` holds the number of the request that it is at."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGPROF])  # the thread that started us may have blocked it
    with open(requests, "rb", buffering=0, closefd=False) as lines:
        while line := lines.readline():
            try:
                number, truth, answer, cpu_s = json.loads(line)
            except ValueError:
                continue
            current[:] = number.to_bytes(NUMBER_BYTES)
            signal.setitimer(signal.ITIMER_PROF, cpu_s)  # SIGPROF's default action ends the process
            verdict = compare(truth, answer)
            signal.setitimer(signal.ITIMER_PROF, 0)
            os.write(replies, b"%d %d\n" % (number, verdict))
            current[:] = IDLE.to_bytes(NUMBER_BYTES)


def main(requests: int = 0, replies: int = 1) -> None:
    """Runs one child after another until the input ends."""
    logging.disable(logging.CRITICAL)
    for truth, answer in WARM_UP:
        compare(truth, answer)
    os.write(replies, b"r\n")
    current = mmap.mmap(-1, NUMBER_BYTES)  # shared with the children
    while True:
        current[:] = IDLE.to_bytes(NUMBER_BYTES)
        child = os.fork()
        if child == 0:
            serve(requests, replies, current)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if status == 0:
            return
        os.write(replies, b"%d !\n" % int.from_bytes(current[:]))


if __name__ == "__main__":
    main()
