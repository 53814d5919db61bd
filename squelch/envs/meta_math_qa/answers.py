"""Judges answers to mathematics questions: by value (math-verify), by the paper's exact match, or as text.

Invariants:

- `verdict` raises no error for any answer. An answer that is too long, too deeply nested or has too high powers for any
  question is wrong without being computed (`plain`). Other answers are compared in another process, within `CPU_S`
  seconds of CPU time, after which the answer counts as wrong (`given_up`).
- Values are compared, not texts: 3/4, 0.75, 75%, \\frac{3}{4}; 1,234 and 1234; $12, 12 dollars and 12; x = 5, 5 = x and
  5. One layer of each of the usual wrappers is taken off: \\boxed{5}, \\[5\\], $5$, **5**.
- Two texts of words are compared as words, ignoring case and white space.

`Judge.compare` waits for its process at most `WAIT_S`, then raises TimeoutError, which fails the trajectory.
math-verify's own time-outs use signals, which only the main thread can use; therefore a process is used.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
import select
import subprocess
import sys
import threading
import time
import unicodedata
from pathlib import Path
from typing import Literal

Comparison = Literal["value", "exact", "text"]
Verdict = Literal["equal", "different", "given_up", "refused"]

MAX_LENGTH = 200
"""Most characters of an answer; the longest of MetaMathQA has about 100."""
MAX_DEPTH = 6
"""Brackets within brackets."""
MAX_DIGITS = 30
"""Digits in a row."""
CPU_S = 0.5
"""CPU seconds of one comparison; a usual one takes milliseconds."""
WAIT_S = 60.0
"""Seconds that a comparison may take on a busy machine, including the start of its process and earlier comparisons."""
REMEMBERED = 4096
"""Number of cached verdicts, so that equal answers of a group's trajectories are compared once."""

_WORDS = re.compile(r"[^\W\d_]{3,}(?:[\s'-]+[^\W\d_]+)*")
_NUMBER_WORDS = (
    r"zero|one|two|three|four|five|six|seven|eight|nine|ten|eleven|twelve|(?:thir|four|fif|six|seven|eigh|nine)teen"
    r"|(?:twen|thir|for|fif|six|seven|eigh|nine)ty"
)
_FIRST_NO_UNIT = r"or|and|to|score|squared|cubed|halves|thirds|(?:four|fif|six|seven|eigh|nin|ten|hundred|thousand)ths"
"""Words that change the value of a number right before them only. ("25 meters squared" is 25 of a unit.)"""
_NO_UNIT = (
    rf"(?:{_NUMBER_WORDS}|percent|pct|pi|sqrt|dozen|hundred|thousand|million|billion|trillion|quadrillion|factorial|half"
    r"|plus|minus|over|not|is|times(?! (?:as|more|per|each|every|in)\b|$))\b"
)
"""Words that change the value wherever they follow. ("12 times" counts; "12 times itself" does not.)"""
# Atomic groups, because Python before 3.11.5 matches repeated groups that are possessive wrongly.
_UNIT_WORD = rf"(?!{_NO_UNIT})[a-z]{{2,}}(?:/(?!{_NO_UNIT})[a-z]+)*"
_UNIT = re.compile(rf"(?<=[\d}})])\s*(?!(?:{_FIRST_NO_UNIT})\b)(?>(?:{_UNIT_WORD}\.?\s*)+)$", re.IGNORECASE)
_LENGTH = r"(?:\s+m|\s*(?:[cdkm]m|in|ft|yd|mi|inch(?:es)?|feet|foot|(?:centi|kilo)?met(?:er|re)s?|yards?|miles?))"
_POWER_UNIT = re.compile(rf"([-+]?[\d.,/]+)(?:{_LENGTH}\^(?:[23]|\{{[23]\}})|\s+m/s(?:\^2|\^\{{2\}})?)", re.IGNORECASE)
"""A number of a unit with an exponent. After terms of other kinds, "m^2" is the square of a variable."""
_WRAPPERS = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(?:the (?:final )?answer is:?|answer:)\s*(.*)",
        r"\\boxed\s*\{(.*)\}",
        r"\\\[((?:(?!\\[\[\]]).)*)\\\]",
        r"\\\(((?:(?!\\[()]).)*)\\\)",
        r"\*\*((?:(?!\*\*).)*)\*\*",
        r"\$(.*)\$",
        r"((?:\\[a-z]+|[^a-z=<>!\\])+)=\s*(?![ei])[a-z]",  # 5 = x, of which the library would take the x
    )
)
"""What stands around an answer, which is the pattern's group."""
_CENTS = re.compile(r"\.\d\d ?cents?\W*$", re.IGNORECASE)
"""A price in dollars that is called cents."""
_TEXT = re.compile(r"\\(?:text|mathrm|textbf|mbox)\s*\{([^{}]*)\}")
_VULGAR = re.compile(r"(?<=\d)(?=[¼-¾⅐-⅞]|[⁰¹²³⁴-⁹]+[⁄/][₀-₉])")
_SUPERSCRIPT = re.compile(r"(?<=[\w)\]}])(?<![⁰¹²³⁴-⁹⁺⁻ⁿⁱ])([⁰¹²³⁴-⁹⁺⁻ⁿⁱ]++)(?![⁄/][₀-₉])")
_SUBSCRIPT = re.compile(r"(?<=[\w)\]}])(?<![₀-₉])([₀-₉]++)")
_ROOT = re.compile(r"√ ?(?:\(([^()]*)\)|(\d+(?:\.\d+)?|[^\W\d_]))")
_GROUPED = re.compile(r"\d{1,3}(?: \d{3})+(?:\.\d+)?")
_MIXED = re.compile(r"(-?\d+) +(\d+)/(\d+)")
_SYMBOLS = str.maketrans(
    {"⁄": "/", "÷": "/", "−": "-", "×": "\\times ", "·": "\\cdot ", "π": "\\pi ", "√": "\\sqrt ", "°": "^\\circ "}
)
_SCIENTIFIC = re.compile(r"(-?\d+(?:\.\d+)?)[eE]([+-]?\d{1,2})")
_LONG_NUMBER = re.compile(rf"\d{{{MAX_DIGITS + 1}}}")
_COSTLY = re.compile(
    r"\^\s*\{?\s*[-+]?\s*\d{3,}"  # exponents of three digits
    r"|\^\s*(?:\{[^{}]*|[\w.]+\s*)\^|(?:\^[^^]*){7}"  # towers; more than six powers
    r"|(?:_[^_]*){5}|(?:\|[^|]*){5}|(?:\\(?:sin|cos|tan|cot|sec|csc|sinh|cosh|tanh|log|ln|exp|arc\w+)(?![a-zA-Z]).*?){4}"
    r"|\d{3,}\s*\)*\s*!|!\s*\)*\s*!"  # large factorials, factorials of factorials
    r"|\\(?:boxed|fbox|sum|prod|int|iint|oint|lim|binom|dbinom|tbinom|choose|Gamma|zeta|begin|operatorname|lfloor|lceil|overline)"
    r"(?![a-zA-Z])"
)


def verdict(answer: str, truth: str, comparison: Comparison = "value") -> Verdict:
    """The verdict on `answer` against `truth`. Raises only if the comparing process does not start or is late."""
    if answer.strip() == truth.strip():
        return "equal"
    if comparison == "exact":
        return "different"
    if comparison == "text":
        return "equal" if _without_spaces(answer) == _without_spaces(truth) else "different"
    if _CENTS.search(answer) and "cent" not in truth.lower():
        return "different"
    said, true = plain(answer), plain(truth)
    if said is None or true is None:
        return "refused" if said is None else "different"
    if _WORDS.fullmatch(said) or _WORDS.fullmatch(true):
        return "equal" if _folded(said) == _folded(true) else "different"
    return "equal" if said == true else compare(true, said)


def plain(answer: str) -> str | None:
    """`answer` in the compared notation, without sentence, currency and unit; None if it exceeds the limits.

    Unicode's other digits, fractions and minus signs become ASCII's.
    """
    if len(answer) > MAX_LENGTH:
        return None
    # First, because NFKC turns 3² into 32.
    text = _SUBSCRIPT.sub(r"_{\1}", _SUPERSCRIPT.sub(r"^{\1}", _VULGAR.sub(" ", answer)))
    text = unicodedata.normalize("NFKC", _ROOT.sub(r"\\sqrt{\1\2}", text)).translate(_SYMBOLS).replace("\\$", "$")
    text = " ".join("".join(str(unicodedata.decimal(c, c)) for c in text).split())
    text = _unwrapped(text).removeprefix("$").strip()
    text = _TEXT.sub(r"\1", text).strip()
    text = "\\pi" if text == "pi" else _UNIT.sub("", text) or text
    if measured := _POWER_UNIT.fullmatch(text):
        text = measured[1]
    if _GROUPED.fullmatch(text):
        text = text.replace(" ", "")
    if mixed := _MIXED.fullmatch(text):
        text = "{}\\frac{{{}}}{{{}}}".format(*mixed.groups())
    if scientific := _SCIENTIFIC.fullmatch(text):
        text = "{}*10^{{{}}}".format(*scientific.groups())
    return text if _is_modest(text) else None


def _unwrapped(text: str) -> str:
    """The text without what models put around an answer, each at most once: of two layers of one kind, or of two
    answers that are wrapped side by side, the wrappers stay."""
    text, left = text.rstrip(" ."), list(_WRAPPERS)
    while found := next(((one, match) for one in left if (match := one.fullmatch(text))), None):
        wrapper, match = found
        if not _is_closed(match[1]):
            break
        text = match[1].strip(" .")
        left.remove(wrapper)
    return text


def _is_closed(text: str) -> bool:
    """Whether every closing brace follows its opening one."""
    depth = 0
    for character in text:
        depth += (character == "{") - (character == "}")
        if depth < 0:
            return False
    return depth == 0


def _is_modest(text: str) -> bool:
    """Whether computing with `text` is probably cheap; the judge's limits stop the other cases."""
    if _WORDS.fullmatch(text):
        return True
    if not text.isascii() or len(text) > 2 * MAX_LENGTH or _LONG_NUMBER.search(text) or _COSTLY.search(text):
        return False
    depth = 0
    for character in text:
        depth += (character in "([{") - (character in ")]}")
        if not 0 <= depth <= MAX_DEPTH:
            return False
    return bool(text) and depth == 0


def _without_spaces(text: str) -> str:
    return "".join(text.lower().split())


def _folded(words: str) -> str:
    return " ".join(words.casefold().split())


_COMMAND = (sys.executable, "-I", str(Path(__file__).with_name("comparison.py")))


NOBODYS = 0
"""The number in the reply of a child that died at no request that it knew of."""
_VERDICTS: dict[bytes, Verdict] = {b"1": "equal", b"0": "different", b"!": "given_up"}


class Judge:
    """The comparing process, which is started when needed, also after it has died. May be shared between threads.

    Requests are numbered, so that the verdict on one that was abandoned (an interrupt while it was waited for) is never
    taken for the verdict on the next.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_ready = False
        self._number = 0
        self._read = b""

    def prepare(self) -> None:
        """Starts the process if it does not run, without waiting; its start takes a second or more."""
        if self._lock.acquire(blocking=False):
            try:
                self._started()
            finally:
                self._lock.release()

    def compare(self, truth: str, answer: str) -> Verdict:
        """The verdict on two texts that `plain` returned. Raises TimeoutError after `WAIT_S`, and RuntimeError if the
        process does not start."""
        deadline = time.monotonic() + WAIT_S
        if not self._lock.acquire(timeout=WAIT_S):
            raise TimeoutError(f"the answer judge was busy with other answers for {WAIT_S:.0f} s")
        try:
            process = self._alive(deadline)
            self._send(process, truth, answer)
            while reply := self._reply(process, deadline):
                number, verdict = reply.split()
                if int(number) == self._number:
                    return _VERDICTS[verdict]
                if int(number) == NOBODYS:
                    self._send(process, truth, answer)
            raise RuntimeError(f"the answer judge ended (exit status {process.poll()}) while it compared {answer!r}")
        finally:
            self._lock.release()

    def close(self) -> None:
        """End the process."""
        with self._lock:
            if self._process is not None:
                self._end(self._process)

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            self._is_ready, self._read = False, b""
            pipe = subprocess.PIPE
            self._process = subprocess.Popen(_COMMAND, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, bufsize=0)
        return self._process

    def _alive(self, deadline: float) -> subprocess.Popen[bytes]:
        """The process, once it accepts requests."""
        process = self._started()
        if not self._is_ready and self._reply(process, deadline) != b"r":
            raise RuntimeError(f"the answer judge did not start: run `{' '.join(_COMMAND)}` to see why")
        self._is_ready = True
        return process

    def _send(self, process: subprocess.Popen[bytes], truth: str, answer: str) -> None:
        """Sends the request under a new number. A process that has ended shows when its reply is read."""
        if process.stdin is None:
            raise RuntimeError("the answer judge was started without a pipe")
        self._number += 1
        request = json.dumps([self._number, truth, answer, CPU_S])
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(f"\n{request}\n".encode())  # the first end closes what was left of an earlier request

    def _reply(self, process: subprocess.Popen[bytes], deadline: float) -> bytes:
        """The next line without its end; empty at the end of the output. Kills a process that is late."""
        if process.stdout is None:
            raise RuntimeError("the answer judge was started without a pipe")
        while b"\n" not in self._read:
            poll = select.poll()  # `select.select` takes no file beyond the first 1,024
            poll.register(process.stdout, select.POLLIN)
            if not poll.poll(1000 * max(deadline - time.monotonic(), 0)):
                self._end(process)
                raise TimeoutError(f"the answer judge did not answer within {WAIT_S:.0f} s")
            if not (some := process.stdout.read(256)):
                return b""
            self._read += some
        line, _, self._read = self._read.partition(b"\n")
        return line

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        """Ends the process; its child, which may still compute, ends at its CPU limit."""
        process.kill()
        process.wait()
        self._process = None


_JUDGE = Judge()


def prepare() -> None:
    """`Judge.prepare` of the process's own judge."""
    _JUDGE.prepare()


@functools.lru_cache(maxsize=REMEMBERED)
def compare(truth: str, answer: str) -> Verdict:
    """`Judge.compare` of the process's own judge, with a cache."""
    return _JUDGE.compare(truth, answer)
