"""Parses JSON and YAML that may be hostile: bounded length, nesting and expansion; errors that name the place.

| bound | why |
|---|---|
| `MAX_LINE`, a JSON line or object | a parsed line takes up to 40 times its length |
| `MAX_LINE`, blank lines in a row | a compressed file has a thousand times its size of them |
| `MAX_DEPTH` levels | code that walks a value recursively, such as `repr`, ends at about 1,000 levels |
| `MAX_NODES` nodes of YAML, with each alias counted in full | ten aliases of ten aliases of ten |
| integers of YAML in 64 bits, of JSON in 4,300 digits (Python's own) | longer ones have no decimal text |
| no lone surrogates | no encoder takes them |
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Literal

from pydantic_core import from_json

from squelch.kit.untrusted.files import MIB, Unreadable, brief, decoding, reason, size_text, text_of

MAX_RECIPE = MIB
"""Bytes of a recipe or another YAML text."""
MAX_LINE = 16 * MIB
"""Bytes of one line of JSON Lines, or of one object of a JSON array."""
_CHUNK = MIB
_WHITE = re.compile(rb"[ \t\n\r\x0b\x0c]*")
MAX_DEPTH = 64
MAX_NODES = 20_000
MAX_DIGITS = 100
"""Characters of an integer in YAML: 64 bits take at most 66, in base 2."""
YamlVersion = Literal["1.1", "1.2"]
_NULL, _BOOL, _INT, _FLOAT, _MERGE = (f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "merge"))
_CORE: tuple[tuple[str, re.Pattern[str], str], ...] = (
    (_NULL, re.compile(r"(?:~|null|Null|NULL)$"), "~nN"),
    (_NULL, re.compile(r"$"), ""),
    (_BOOL, re.compile(r"(?:true|True|TRUE|false|False|FALSE)$"), "tTfF"),
    (_INT, re.compile(r"(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$"), "-+0123456789"),
    (
        _FLOAT,
        re.compile(
            r"(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$"
        ),
        "-+.0123456789",
    ),
    (_MERGE, re.compile(r"<<$"), "<"),
)
"""Tag, pattern and possible first characters of each kind of plain scalar; what none takes is a word."""
_INTEGER = re.compile(r"[-+]?[0-9][0-9a-fA-Fx_:]*")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]")


def parse_json(data: bytes, where: str) -> Any:
    """The JSON value in UTF-8 bytes, whose length the caller bounds.

    Raises Unreadable, whose text begins with `where`.
    """
    try:
        found = from_json(data, cache_strings="keys")  # in a fifth of the time of Python's own parser
    except ValueError:
        found = _read_by_python(data, where)
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH and depth_exceeds(found, MAX_DEPTH):
        raise Unreadable(_too_deep(where))
    return found


def _read_by_python(data: bytes, where: str) -> Any:
    """What `from_json` refuses and Python reads (numbers of many digits, a hundred levels); else why it is refused."""
    text = text_of(data, where)
    try:
        found = json.loads(text)
    except RecursionError as error:
        raise Unreadable(_too_deep(where)) from error
    except ValueError as error:
        raise Unreadable(f"{where}: not JSON ({reason(error)})") from error
    if _SURROGATE.search(text) and not depth_exceeds(found, MAX_DEPTH):
        _require_unicode(json.dumps(found, ensure_ascii=False), where)
    return found


def parse_object(data: bytes, where: str) -> dict[str, Any]:
    """As `parse_json`, for one JSON object."""
    found = parse_json(data, where)
    if not isinstance(found, dict):
        raise Unreadable(f"{where}: one JSON object is needed, not a {type(found).__name__} (got {brief(found)})")
    return found


def lines_of(file: BinaryIO, where: str) -> Iterator[tuple[int, bytes]]:
    """(number, line) of each line of an open file, from 1; a line includes its line break, if it has one.

    Raises Unreadable for a line of more than `MAX_LINE` bytes.
    """
    for number in itertools.count(1):
        line = file.readline(MAX_LINE + 1)
        if not line:
            return
        if len(line) > MAX_LINE:
            raise Unreadable(f"{where}, line {number}: longer than {size_text(MAX_LINE)}")
        yield number, line


def filled_lines(file: BinaryIO, where: str) -> Iterator[tuple[int, bytes]]:
    """As `lines_of`, without blank lines, which cost no more than their bytes. Raises Unreadable for more than
    `MAX_LINE` bytes of a line, or of blank lines in a row."""
    number, held, blank = 0, b"", 0
    while chunk := file.read(_CHUNK):
        data, at = held + chunk, 0
        while True:
            white = _WHITE.match(data, at)
            filled = data.rfind(b"\n", at, white.end() if white else at) + 1 or at
            number, blank, at = number + data.count(b"\n", at, filled), blank + filled - at, filled
            end = data.find(b"\n", at) + 1
            if max(blank, (end or len(data)) - at) > MAX_LINE:
                raise Unreadable(
                    f"{where}, line {number + 1}: longer than {size_text(MAX_LINE)}, or as many blank lines"
                )
            if not end:
                break
            number, blank = number + 1, 0
            yield number, data[at:end]
            at = end
        held = data[at:]
    if held.strip():
        yield number + 1, held


def parse_yaml(text: str, where: str, version: YamlVersion = "1.2") -> Any:
    """The YAML text as plain data: mappings, lists and scalars, without tags. Raises Unreadable, whose text begins with
    `where`. `version`: whose rules tell plain scalars apart: the core schema of 1.2, or 1.1, by which PyYAML writes."""
    import yaml

    seen = set[int]()
    plain: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader

    class Loader(plain):
        yaml_implicit_resolvers = plain.yaml_implicit_resolvers if version == "1.1" else _core_schema()

        def flatten_mapping(self, node: Any) -> None:
            if id(node) not in seen:  # once, because merged keys then stand beside the node's own
                seen.add(id(node))
                _refuse_repeated_keys(node, where)
            super().flatten_mapping(node)

    if version == "1.2":
        Loader.add_constructor(_INT, lambda loader, node: _core_integer(loader.construct_scalar(node)))
    if len(text) > MAX_RECIPE:
        raise Unreadable(f"{where} is longer than {size_text(MAX_RECIPE)}")
    with decoding(where, "is not YAML"):
        try:
            _check_events(yaml.parse(text, Loader=Loader), where)
            found = yaml.load(text, Loader=Loader)
        except yaml.YAMLError as error:
            problem = " ".join(str(error).replace('in "<unicode string>", ', "at ").split())
            raise Unreadable(f"{where} is not YAML: {problem}") from error
    _check_scalars(found, where)
    return found


def own_yaml(path: Path) -> Any:
    """The plain data of a YAML file that ships with Squelch."""
    return parse_yaml(path.read_text(encoding="utf-8"), str(path))


def written_yaml(value: Any) -> str:
    """Plain data as YAML of several lines, which both versions of `parse_yaml` read alike: a text is quoted if either
    would take it for something else."""
    import yaml

    rules, core = dict(yaml.SafeDumper.yaml_implicit_resolvers), _core_schema()

    class Dumper(yaml.SafeDumper):
        pass

    Dumper.yaml_implicit_resolvers = {one: [*rules.get(one, ()), *core.get(one, ())] for one in {*rules, *core}}
    return yaml.dump(value, Dumper=Dumper, sort_keys=False)


def _core_schema() -> dict[str, list[tuple[str, re.Pattern[str]]]]:
    """The core schema of YAML 1.2 (section 10.3.2) and the merge key, as PyYAML wants it: (tag, pattern) by the first
    character of a plain scalar."""
    found: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    for tag, pattern, firsts in _CORE:
        for first in firsts or [""]:
            found.setdefault(first, []).append((tag, pattern))
    return found


def _core_integer(text: str) -> int:
    """`010` is 10, `0o10` is 8, `0x10` is 16."""
    return int(text, 0) if text[:2] in ("0o", "0x") else int(text)


def _check_events(events: Iterator[Any], where: str) -> None:
    """Refuses tags, deep nesting, and aliases that expand to more than `MAX_NODES` nodes, before anything is built."""
    import yaml

    total, open_nodes = 0, list[tuple[str | None, int]]()
    sizes: dict[str, int] = {}
    for event in events:
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in sizes:
                raise Unreadable(
                    f"{where}: the alias *{brief(event.anchor)} stands within its own anchor, or before it"
                )
            total += sizes[event.anchor]
        elif isinstance(event, yaml.NodeEvent):
            total += 1
            _refuse_tag(event, where)
            if isinstance(event, yaml.ScalarEvent):
                _refuse_long_integer(event, where)
                sizes |= {event.anchor: 1} if event.anchor else {}
            else:
                open_nodes.append((event.anchor, total - 1))
        elif isinstance(event, yaml.CollectionEndEvent):
            anchor, before = open_nodes.pop()
            sizes |= {anchor: total - before} if anchor else {}
        if len(open_nodes) > MAX_DEPTH:
            raise Unreadable(_too_deep(where))
        if total > MAX_NODES:
            raise Unreadable(f"{where} holds more than {MAX_NODES} values, with each alias counted in full")


def _refuse_repeated_keys(node: Any, where: str) -> None:
    """Refuses a mapping that has a plain key twice, of which YAML would keep the last."""
    seen: set[tuple[str, str]] = set()
    for key, _ in node.value:
        name = (key.tag, key.value) if isinstance(key.value, str) else None
        if name in seen:
            line = key.start_mark.line + 1
            raise Unreadable(f"{where}, line {line}: the key {brief(key.value)} occurs twice; join the two")
        seen |= {name} if name else set()


def _refuse_tag(event: Any, where: str) -> None:
    if event.tag not in (None, "!"):
        line = event.start_mark.line + 1
        raise Unreadable(f"{where}, line {line}: the tag {brief(event.tag)} has no meaning here; write a plain value")


def _refuse_long_integer(event: Any, where: str) -> None:
    """Refuses what YAML reads as a long integer: `1:1:1` is one in base 60, and takes time quadratic in its length."""
    if event.implicit[0] and len(event.value) > MAX_DIGITS and _INTEGER.fullmatch(event.value):
        line, digits = event.start_mark.line + 1, len(event.value)
        raise Unreadable(
            f"{where}, line {line}: holds an integer of {digits} characters; a setting has at most 64 bits"
        )


def _check_scalars(value: Any, where: str) -> None:
    """Refuses integers of more than 64 bits, which have no use in a configuration, and lone surrogates."""
    for one in _scalars(value):
        if isinstance(one, int) and one.bit_length() > 64:
            raise Unreadable(f"{where} holds an integer of {one.bit_length()} bits; a setting has at most 64")
        if isinstance(one, str):
            _require_unicode(one, where)


def _scalars(value: Any) -> Iterator[Any]:
    """The scalars and the keys of a value. Aliased parts are visited as often as they occur."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield key
            yield from _scalars(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _scalars(inner)
    else:
        yield value


def depth_exceeds(value: Any, most: int) -> bool:
    """Whether lists and mappings are nested in more than `most` levels."""
    level = [value] if isinstance(value, list | dict) else []
    for _ in range(most):
        inner = (node.values() if isinstance(node, dict) else node for node in level)
        level = [child for children in inner for child in children if isinstance(child, list | dict)]
        if not level:
            return False
    return True


def _too_deep(where: str) -> str:
    return f"{where}: nested in more than {MAX_DEPTH} levels"


def _require_unicode(text: str, where: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        found = ascii(error.object[error.start])
        raise Unreadable(f"{where}: text with the lone surrogate {found}, which is no Unicode character") from error
