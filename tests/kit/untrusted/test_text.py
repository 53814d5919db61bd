"""JSON and YAML are parsed within bounds: whatever the text, the result is plain data or an error with its place."""

import io
import json
import re
import time
import tracemalloc
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squelch.kit.untrusted.files import Unreadable
from squelch.kit.untrusted.text import (
    MAX_LINE,
    YamlVersion,
    depth_exceeds,
    lines_of,
    parse_json,
    parse_object,
    parse_yaml,
    written_yaml,
)

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)


@given(PLAIN)
def test_plain_data_is_read_as_it_was_written(value: object) -> None:
    assert parse_json(json.dumps(value).encode(), "it") == value


PIECES = (
    *("[", "]", "{", "}", '"', ",", ":", "0", "17", ".", "e", "E", "+", "-", "null", "true", "NaN", "Infinity", "inf"),
    *(
        "\\",
        "\\u",
        "d800",
        "0041",
        "\\n",
        " ",
        "\n",
        "é",
        "\x00",
        "\x7f",
        '"a":',
        "1e5",
        "9" * 4301,
        "0x",
        "1_0",
        "\ufeff",
    ),
)


@given(st.lists(st.sampled_from(PIECES), max_size=7))
def test_what_pythons_own_parser_reads_is_read_alike_and_nothing_else(pieces: list[str]) -> None:
    text, found = "".join(pieces), list[str]()
    for read in (lambda: parse_json(text.encode(), "it"), lambda: json.loads(text)):
        try:
            found.append(repr(read()))
        except ValueError:
            found.append("refused")
    has_surrogate = re.search(r"\\ud800", text) is not None
    assert found[0] == found[1] or (has_surrogate and found[0] == "refused")


@given(st.binary(max_size=200))
def test_any_bytes_are_data_or_an_error_with_the_position(data: bytes) -> None:
    for parse in (lambda: parse_json(data, "it"), lambda: parse_yaml(data.decode("latin-1"), "it")):
        try:
            parse()
        except Unreadable as error:
            assert str(error).startswith("it") and len(str(error)) < 1000


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"[" * 100_000, "nested in more than 64 levels"),
        (b"[" * 65 + b"]" * 65, "nested in more than 64 levels"),
        (b'{"a":' * 500 + b"1" + b"}" * 500, "nested in more than 64 levels"),
        (b"9" * 5_000, "not JSON"),
        (b'{"a": "\\ud800"}', "the lone surrogate '.ud800'"),
        (b'{"\\udfff": 1}', "lone surrogate"),
        (b"\xff", "not UTF-8"),
        (b"{", "not JSON"),
        (b"", "not JSON"),
    ],
)
def test_hostile_json_is_refused_with_its_position(data: bytes, says: str) -> None:
    with pytest.raises(Unreadable, match=f"^file, line 3.*{says}"):
        parse_json(data, "file, line 3")


def test_a_pair_of_surrogates_is_a_character_and_64_levels_are_fine() -> None:
    assert parse_json(b'"\\ud83d\\ude00"', "it") == "😀"
    assert depth_exceeds(parse_json(b"[" * 64 + b"]" * 64, "it"), 63)
    with pytest.raises(Unreadable, match="one JSON object is needed, not a list"):
        parse_object(b"[1]", "it")


def test_a_line_is_bounded_before_it_is_parsed() -> None:
    short = b'{"a": 1}\n'
    assert list(lines_of(io.BytesIO(short + b"x"), "it")) == [(1, short), (2, b"x")]
    long = io.BytesIO(short + b" " * (MAX_LINE + 1))
    with pytest.raises(Unreadable, match="it, line 2: longer than 16 MiB"):
        list(lines_of(long, "it"))


BOMB = "a: &a [x,x,x,x,x,x,x,x,x,x]\n" + "".join(
    f"{new}: &{new} [{','.join([f'*{old}'] * 10)}]\n" for old, new in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (BOMB, "more than 20000 values, with each alias counted in full"),
        ("a: &a {x: 1, <<: [" + ",".join(["*b"] * 9) + "]}", "alias"),
        ("a: &a [*a]", "within its own anchor"),
        ("[" * 100_000, "nested|not YAML"),
        ("- " * 500 + "x", "nested in more than 64 levels"),
        ("a: !!python/object/apply:os.system [id]", "line 1: the tag .* has no meaning"),
        ("a: !!int ''", "the tag"),
        ("a: " + "9" * 5_000, "an integer of 5000 characters"),
        ("a: 0x" + "f" * 5_000, "an integer of 5002 characters"),
        ("a: 0x" + "f" * 50, "an integer of 200 bits"),
        ("{a: " + "1:" * 500_000 + "1}", "line 1: holds an integer of 1000001 characters"),
        ('a: "\\ud800"', "not YAML|surrogate"),
        ("[" + "1," * 30_000 + "]", "more than 20000 values"),
        ("a: " + "x" * 2**21, "longer than 1 MiB"),
    ],
)
def test_hostile_yaml_is_refused_at_once_in_little_memory(text: str, says: str) -> None:
    tracemalloc.start()
    start = time.process_time()
    with pytest.raises(Unreadable, match=says) as caught:
        parse_yaml(text, "it")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(str(caught.value)) < 1000 and peak < 2**26 and time.process_time() - start < 10


def test_anchors_in_use_are_fine() -> None:
    assert parse_yaml("a: &a {x: 1}\nb: *a\nc: {<<: *a, y: 2}\n", "it")["c"] == {"x": 1, "y": 2}
    assert parse_yaml("a: &a {x: 1, y: 1}\nc: {<<: *a, y: 2}\n", "it")["c"] == {"x": 1, "y": 2}
    nested = "b: &b {k: 0}\nx: {inner: &a {<<: *b, k: 1}}\nc: {<<: *a, z: 3}\n"
    assert parse_yaml(nested, "it")["c"] == {"k": 1, "z": 3}


@pytest.mark.parametrize("text", ["a: 1\nb: 2\na: 3\n", "x: {a: 1}\n\ny: {a: 1, b: 2, 'a': 2}\n"])
def test_a_key_that_occurs_twice_is_named_with_its_line(text: str) -> None:
    """Found by a reviewer: YAML keeps the last, and the settings of the first were lost."""
    with pytest.raises(Unreadable, match=r"it, line 3: the key 'a' occurs twice; join the two"):
        parse_yaml(text, "it")


def test_a_date_that_is_none_is_refused_by_the_older_yaml_and_a_word_in_the_newer() -> None:
    with pytest.raises(Unreadable, match=r"month must be in 1\.\.12"):
        parse_yaml("a: 2020-13-45", "it", "1.1")
    assert parse_yaml("a: 2020-13-45", "it") == {"a": "2020-13-45"}


def test_plain_scalars_are_what_the_core_schema_says() -> None:
    numbers = "[010, -7, +7, 0o10, 0x1F, 1e3, .5, 5., 1.5E-2, -.inf]"
    assert parse_yaml(numbers, "it") == [10, -7, 7, 8, 31, 1000.0, 0.5, 5.0, 0.015, float("-inf")]
    assert parse_yaml("[true, False, TRUE, null, ~, ]", "it") == [True, False, True, None, None]
    words = "[off, on, yes, no, y, 1:30, 1_000, 2026-01-01, 0b11, tRue, '010', 0x, -0x1]"
    assert all(isinstance(value, str) for value in parse_yaml(words, "it"))


@given(PLAIN)
def test_data_that_is_written_is_read_the_same_by_both_versions(value: object) -> None:
    text = written_yaml({"it": value})
    for version in get_args(YamlVersion):
        assert parse_yaml(text, "it", version) == {"it": value}
