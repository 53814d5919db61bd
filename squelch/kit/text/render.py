"""Renders a chat template in a process of its own, which has little memory and, for each request, little time. Run as a
script.

A template is a program of the model folder's author: it can loop, or double a string until the memory is gone, inside
jinja's sandbox, too. `squelch/kit/text/chat_template.py` has one such process for each template. It writes a request to
the process's standard input, a socket, and reads the answer from its standard output: 4 bytes of length and one JSON
object each. A request has the arguments of `rendered`; an answer has `texts`, or `error` with the `index` of the
conversation at fault. The arguments are the bounds: bytes of memory, and seconds of CPU time for one request, which the
kernel enforces by ending the process.

The process ends by itself with the socket, after `IDLE_S` without a request, after an answer that took too much memory,
and once it has used `LIFE_S` of CPU time, a bound that nothing in it can raise.

The environment is that of transformers' `apply_chat_template`, which this process does not import because the import
takes ten times as long as everything else here; a test compares the two.
"""

from __future__ import annotations

import json
import math
import resource
import select
import signal
import sys
import time
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from itertools import zip_longest
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MEMORY_BYTES = 512 * 2**20
"""Bound of the process's address space, of which the interpreter takes 25 MiB."""
CPU_S = 4
"""Bound of the CPU time of one request, up to a second more; an ordinary one takes milliseconds, the first 0.2 s."""
LIFE_S, IDLE_S = 120, 60.0
"""Bound of the process's CPU time, and the longest wait for its next request."""
MAX_CHARACTERS = 2**24
"""Bound of all rendered text of a request together."""
HEAD = 4
"""Bytes of the length before a request or an answer."""
TOO_MUCH = "it needs more memory than a template may have"


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


@lru_cache(maxsize=4)
def compiled(template: str, date: str = "") -> Template:
    """The template in the environment in which chat templates are written to run. `date`: the day in it, as 2026-11-28;
    empty: today."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _as_json
    day = datetime.fromisoformat(date) if date else None
    functions = {"raise_exception": _refuse, "strftime_now": lambda form: (day or datetime.now()).strftime(form)}
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
        return {"error": TOO_MUCH, "index": len(texts)}
    except Exception as error:  # a template can raise what Python can raise; all of it is the template's fault
        return {"error": f"{str(error)[:300] or type(error).__name__}", "index": len(texts)}
    return {"texts": texts}


def answer_of(request: bytes) -> dict[str, Any]:
    """The answer to a request."""
    try:
        return rendered(**json.loads(request))
    except MemoryError:
        return {"error": TOO_MUCH, "index": 0}


def main(memory_bytes: int, cpu_s: int) -> None:
    """Answers requests, within these bounds."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C at the terminal is for whoever asks
    resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, memory_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_s, LIFE_S))
    source, target = sys.stdin.buffer, sys.stdout.buffer
    while (used := math.ceil(time.process_time())) + cpu_s < LIFE_S and select.select([source], [], [], IDLE_S)[0]:
        resource.setrlimit(resource.RLIMIT_CPU, (used + cpu_s, LIFE_S))  # beyond the first, SIGXCPU ends the process
        if not (head := source.read(HEAD)):
            return
        answer = answer_of(source.read(int.from_bytes(head, "big")))
        body = json.dumps(answer).encode()
        target.write(len(body).to_bytes(HEAD, "big") + body)
        target.flush()
        if answer.get("error") == TOO_MUCH:
            return


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
