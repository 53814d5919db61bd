"""Mutations of valid files: of their bytes, and of the values in JSON, so that the result still parses. Pure; every
choice comes from the given generator, so an input is a function of its seed."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

LARGEST = 2**20
"""Bytes of a mutated file."""
WORDS = (
    *(b"", b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xc3", b"\x1b[2J\x1b]0;x\x07", "\u202e".encode()),
    *(b"null", b"true", b"NaN", b"-Infinity", b"1e999", b"-1", b"0x", b"0b_", b"4294967296", b"18446744073709551616"),
    *(b"9" * 5_000, b"0x" + b"f" * 5_000, b"1:" * 2_000 + b"1", b"0001-01-01t00:00:00+23:59", b"2020-13-45"),
    *(
        b"[" * 2_000,
        b'{"a":' * 2_000,
        b"- " * 2_000,
        b"[" * 70 + b"]" * 70,
        b'"\\ud800"',
        b"\\udc00\\ud800",
        b'"',
        b"\\",
    ),
    *(
        b"&a [*a]",
        b"*a",
        b"<<: *a",
        b"!!int ''",
        b"!!binary x",
        b"!!python/object/apply:os.system [id]",
        b"? {}\n: 1\n",
    ),
    *(b"{}", b"[]", b"{", b"]", b",", b":", b"\n", b"\r\n", b"\t", b"---\n", b"...\n", b"%YAML 9.9\n", b"#", b"PAR1"),
    b"x: &x [a,a,a,a,a,a,a,a,a,a]\ny: &y [*x,*x,*x,*x,*x,*x,*x,*x,*x,*x]\nz: [*y,*y,*y,*y,*y,*y,*y,*y,*y,*y]\n",
)
VALUES: tuple[Any, ...] = (
    *(None, True, False, -1, 0, 2**31, 2**32 + 1, 2**63, 2**64, 10**40, 10**4000, -(10**400), 1e308, -1e308, 0.5),
    *(
        float("nan"),
        float("inf"),
        float("-inf"),
        "",
        "x",
        "\ud800",
        "\x1b[31m",
        "a\nb",
        "\x00",
        "٣",
        "9" * 400,
        "/",
        "..",
    ),
    *([], {}, [[]], [None], [{}], {"a": None}, {"": []}, [1, "2", None], {"x": {"y": {"z": [1]}}}, list(range(300))),
    *("http://user:secret@host/?token=abc", "A" * 3000, "../../etc/passwd", "os:system", "😀", "step-1", "kept"),
)
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?")


def mutated(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """The file with one to four mutations; `others` are valid files of the same kind, parts of which are spliced in."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        data = rng.choice(_MUTATIONS)(rng, data, others)[:LARGEST]
    return data


def mutated_value(rng: random.Random, value: Any) -> Any:
    """A copy of a JSON value in which one to three nodes are replaced, removed, repeated or wrapped."""
    root = [copy.deepcopy(value)]
    for _ in range(rng.choice((1, 1, 2, 3))):
        holder, key = rng.choice(_places(root))
        node = holder[key]
        what = rng.randrange(6)
        if what == 0 and isinstance(holder, dict):
            del holder[key]
        elif what == 1:
            holder[key] = [node] * rng.choice((0, 2, 50))
        elif what == 2:
            holder[key] = _wrapped(node, rng.choice((1, 63, 70, 300)))
        elif what == 3 and isinstance(node, dict):
            node[str(rng.choice(VALUES))] = rng.choice(VALUES)
        else:
            holder[key] = copy.deepcopy(rng.choice(VALUES))
    return root[0] if root else None


def mutated_json(rng: random.Random, data: bytes) -> bytes:
    """A JSON text whose value is mutated."""
    return json.dumps(mutated_value(rng, json.loads(data)), ensure_ascii=rng.random() < 0.8).encode(
        "utf-8", "surrogatepass"
    )


def _places(root: list[Any]) -> list[tuple[Any, Any]]:
    """(holder, key) of every node; an unbounded list of alike entries counts with its first 20."""
    found: list[tuple[Any, Any]] = []
    waiting: list[Any] = [root]
    while waiting and len(found) < 500:
        holder = waiting.pop()
        keys = list(holder)[:20] if isinstance(holder, dict) else range(min(20, len(holder)))
        for key in keys:
            found.append((holder, key))
            if isinstance(holder[key], list | dict):
                waiting.append(holder[key])
    return found


def _wrapped(node: Any, levels: int) -> Any:
    for _ in range(levels):
        node = [node]
    return node


def _span(rng: random.Random, data: bytes) -> tuple[int, int]:
    first = rng.randrange(len(data) + 1)
    return first, min(len(data), first + rng.choice((1, 2, 8, 64, 1024)))


def _flip(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    changed = bytearray(data)
    for _number in range(rng.choice((1, 2, 8)) if data else 0):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _noise(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    first, last = _span(rng, data)
    return data[:first] + rng.randbytes(last - first) + data[last:]


def _cut(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    first, last = _span(rng, data)
    return data[:first] if rng.random() < 0.5 else data[:first] + data[last:]


def _repeat(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    first, last = _span(rng, data)
    return data[:first] + data[first:last] * rng.choice((2, 3, 1000)) + data[last:]


def _word(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    first, last = _span(rng, data)
    return data[:first] + rng.choice(WORDS) + data[first if rng.random() < 0.5 else last :]


def _number(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    found = list(_NUMBER.finditer(data[:65_536]))
    if not found:
        return data
    place = rng.choice(found)
    return data[: place.start()] + rng.choice(WORDS[8:25]) + data[place.end() :]


def _splice(rng: random.Random, data: bytes, others: Sequence[bytes]) -> bytes:
    other = rng.choice(others)
    return data[: rng.randrange(len(data) + 1)] + other[rng.randrange(len(other) + 1) :]


def _nothing_of_it(rng: random.Random, data: bytes, _: Sequence[bytes]) -> bytes:
    return rng.choice(
        (b"", rng.choice(WORDS), rng.randbytes(rng.randrange(300)), data.decode("latin-1").encode("utf-16"))
    )


_MUTATIONS: tuple[Callable[[random.Random, bytes, Sequence[bytes]], bytes], ...] = (
    *(_flip, _flip, _noise, _cut, _repeat, _word, _word, _number, _splice, _nothing_of_it),
)
