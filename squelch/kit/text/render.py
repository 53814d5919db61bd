"""Renders a chat template in a process of its own, which has little memory and little time. Run as a script.

A template is a program of the model folder's author: it can loop, or double a string until the memory is gone, inside
jinja's sandbox, too. `squelch/kit/text/chat_template.py` starts this script, writes one JSON object to its standard
input (the arguments of `rendered`) and reads one from its standard output: `texts`, or `error` with the `index` of the
conversation at fault. The arguments are the bounds: bytes of memory and seconds of CPU time.

The environment is that of transformers' `apply_chat_template`, which this process does not import because the import
takes ten times as long as everything else here; a test compares the two.
"""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Sequence
from datetime import datetime
from itertools import zip_longest
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MEMORY_BYTES = 512 * 2**20
"""Bound of the process's address space, of which the interpreter takes 25 MiB."""
CPU_S = 4
"""Bound of its CPU time; an ordinary template takes 0.2 s, start included."""
MAX_CHARACTERS = 2**24
"""Bound of all rendered text together."""


class _Generation(Extension):
    """`{% generation %}`, with which templates mark what the assistant said; it shows its body."""

    tags = {"generation"}  # noqa: RUF012 - jinja's own interface

    def parse(self, parser: Parser) -> nodes.Node:
        """The statement's body, in a scope of its own."""
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True)).set_lineno(line)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _as_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def compiled(template: str, date: str = "") -> Template:
    """The template in the environment in which chat templates are written to run. `date`: the day in it, as 2026-11-28;
    empty: today."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _as_json
    now = datetime.fromisoformat(date) if date else datetime.now()
    functions = {"raise_exception": _refuse, "strftime_now": now.strftime}
    return environment.from_string(template, globals=functions)


def rendered(
    template: str,
    conversations: list[list[dict[str, Any]]],
    variables: dict[str, str],
    tools: Sequence[list[Any] | None] = (),
    replies: Sequence[bool] = (),
    date: str = "",
) -> dict[str, Any]:
    """`texts`, one a conversation; or the first `error` and its `index`. `tools`: the schemas of each conversation;
    `replies`: whether it ends with a reply, and so without the generation prompt. None has either if they are empty.
    `date`: as of `compiled`."""
    texts: list[str] = []
    try:
        program = compiled(template, date)
        for messages, schemas, reply in zip_longest(conversations, tools, replies):
            text = program.render(
                messages=messages, tools=schemas, documents=None, add_generation_prompt=not reply, **variables
            )
            if sum(map(len, texts)) + len(text) > MAX_CHARACTERS:
                raise MemoryError
            texts.append(text)
    except MemoryError:
        return {"error": "it needs more memory than a template may have", "index": len(texts)}
    except Exception as error:  # a template can raise what Python can raise; all of it is the template's fault
        return {"error": f"{str(error)[:300] or type(error).__name__}", "index": len(texts)}
    return {"texts": texts}


def main(memory_bytes: int, cpu_s: int) -> None:
    """Renders what standard input asks for, within these bounds."""
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, cpu_s + 1))  # the first bound sends SIGXCPU, the second kills
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    request = json.load(sys.stdin.buffer)
    answer = rendered(**request)
    sys.stdout.write(json.dumps(answer))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
