"""Templates are rendered as transformers renders them, within bounds, and their own text is separated from the
messages'."""

from __future__ import annotations

import gc
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from squelch.actors.play.codec import ChatCodec
from squelch.kit.base import frames
from squelch.kit.text import render, script_process
from squelch.kit.text.chat_template import ChatTemplate, TemplateRefused, Words
from squelch.kit.text.script_process import Answering, Broken
from squelch.kit.untrusted.files import Unreadable
from tests.kit.text.made import CHATML, TEMPLATES, chatml_bpe, save_folder

MESSAGES = [{"role": "system", "content": " a "}, {"role": "user", "content": "b\n"}]
FOLDER = Path("a-model")
MORE = {
    "generation": "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "loop control": "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m.role }}{% endfor %}",
    "white space": "{% for m in messages %}\n  {% if true %}\n{{ m.content }}\n  {% endif %}\n{% endfor %}",
    "json": "{{ messages | tojson }} {{ messages | tojson(indent=1, sort_keys=true) }}",
    "names": "{{ bos_token }} {{ tools is none }} {{ documents }} {{ add_generation_prompt }} {{ strftime_now('%Y') }}",
    "macro": "{% macro show(m) %}[{{ m.content }}]{% endmacro %}{% for m in messages %}{{ show(m) }}{% endfor %}",
}


def template(source: str) -> ChatTemplate:
    return ChatTemplate(FOLDER, source, {"bos_token": "<s>"})


@pytest.mark.parametrize("source", [*TEMPLATES.values(), *MORE.values()])
def test_the_environment_is_that_of_transformers(source: str) -> None:
    theirs, _ = render_jinja_template([MESSAGES], chat_template=source, add_generation_prompt=True, bos_token="<s>")
    assert render.rendered(source, [MESSAGES], {"bos_token": "<s>"})["texts"] == theirs


def test_parts_tell_the_templates_text_from_the_messages() -> None:
    one = template(TEMPLATES["stripped"])
    assert one.parts([MESSAGES]) == [
        ("<|im_start|>system\n", 0, "<|im_end|>\n<|im_start|>user\n", 1, "<|im_end|>\n<|im_start|>assistant\n")
    ]
    kept = template(CHATML).parts([MESSAGES])[0]
    assert kept[0] == "<|im_start|>system\n " and kept[2].startswith(" <|im_end|>")


def test_a_shape_is_rendered_once(monkeypatch: pytest.MonkeyPatch) -> None:
    one, asked = template(CHATML), []
    monkeypatch.setattr(one, "render", lambda texts, tools: asked.append(len(texts)) or ChatTemplate.render(one, texts))
    other = [{"role": "system", "content": " other "}, {"role": "user", "content": "words\n"}]
    assert one.parts([MESSAGES, other]) == one.parts([other]) * 2
    assert asked == [1]


def test_a_template_that_a_loaded_machine_did_not_render_is_not_taken_for_one_that_was_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forgets = CHATML.replace("m.content", "m.content.split('</think>')[-1]")
    folder, answers = save_folder(tmp_path, chatml_bpe(), forgets), [Broken("no answer within 300 s", by_chance=True)]
    child = Answering.answer_of
    monkeypatch.setattr(Answering, "answer_of", lambda *asked: answers.pop() if answers else child(*asked))
    with pytest.raises(Unreadable, match=r"could not be rendered \(no answer within 300 s\): the machine is short of"):
        ChatCodec(folder)
    with pytest.raises(ValueError, match="removes the reasoning of earlier turns"):
        ChatCodec(folder)


def test_blank_contents_have_no_word() -> None:
    blank = [{"role": "system", "content": "  "}, {"role": "user", "content": ""}]
    assert "".join(map(str, template(CHATML).parts([blank])[0])) == (
        "<|im_start|>system\n  <|im_end|>\n<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n"
    )


@pytest.mark.parametrize(
    "change",
    [
        "m.content | upper",
        "m.content | e",
        "m.content | tojson",
        "m.content[:40]",
        "m.content.replace(' ', '')",
        "m.content.split('\n')[0]",
        "''",
    ],
)
def test_a_template_that_changes_contents_is_refused_by_name(change: str) -> None:
    sample = [{"role": "user", "content": 'a "b" <c> & D\n' * 5 + "e"}]
    with pytest.raises(TemplateRefused, match=r"template of a-model drops or changes .* roles user"):
        template(CHATML.replace("m.content", change)).parts([sample], compare=True)


def test_an_error_in_a_template_names_folder_and_conversation() -> None:
    picky = template("{% if messages | length > 1 %}{{ raise_exception('too many') }}{% endif %}")
    with pytest.raises(TemplateRefused, match=r"a-model refuses messages of roles system, user \(too many\)") as error:
        picky.render([MESSAGES[:1], MESSAGES])
    assert error.value.index == 1
    for source in ("{% for %}", "{{ messages.x.y }}", "{{ 1 / 0 }}", "{{ ''.__class__.__mro__ }}", "{{ 'a' + 1 }}"):
        with pytest.raises(TemplateRefused, match=r"a-model refuses messages of roles system, user"):
            template(source).render([MESSAGES])


DOUBLING = (
    "{% set ns = namespace(s='0123456789abcdef') %}{% for i in range(40) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"
)


@pytest.mark.parametrize(
    "source",
    [
        DOUBLING + "{{ ns.s }}",
        "{{ 'a' * 10 ** 10 }}",
        "{{ 'a'.ljust(10 ** 10) }}",
        "{{ '(' * 100000 }}" + "{% if 1 %}" * 5_000,
        "{% for a in range(99999) %}{{ '0123456789' * 99999 }}{% endfor %}",
    ],
)
def test_a_template_that_wants_much_memory_is_refused(source: str) -> None:
    with pytest.raises(TemplateRefused, match=r"a-model refuses .*"):
        template(source).render([MESSAGES])


def test_a_template_that_never_ends_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "CPU_S", 1)
    loops = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(TemplateRefused, match=r"a-model refuses .* \(it takes more than 1 s\)"):
        template(loops).render([MESSAGES])


def test_a_template_sees_no_environment_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    """Should one leave jinja's sandbox, the child process holds no secret of this one."""
    monkeypatch.setenv("SECRET", "HARM")
    one = template("{{ 1 }}")
    assert one.render([MESSAGES]) == ["1"]
    assert "SECRET" not in child_of(one).environ()


# --- one process for many renderings ---

BURNS = (
    "{% set n = messages[0].content | int %}"
    "{% for a in range(n) %}{% for b in range(n) %}{% endfor %}{% endfor %}{{ messages[0].content }}"
)
ENDLESS = 99_999


def child_of(one: ChatTemplate) -> psutil.Process:
    assert one._process._running is not None
    return psutil.Process(one._process._running.process.pid)


def burnt(one: ChatTemplate, number: int) -> str:
    return one.render([[{"role": "user", "content": str(number)}]])[0]


def test_the_bound_of_cpu_time_is_that_of_each_rendering_and_all_of_them_share_a_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(render, "CPU_S", 1)
    one = template(BURNS)
    assert burnt(one, 1) == "1"
    first = child_of(one)
    while sum(first.cpu_times()[:2]) < 2.5:
        burnt(one, 300)
    assert child_of(one) == first


def test_a_breach_costs_the_renderings_beside_it_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(render, "CPU_S", 1)
    one = template(BURNS)
    burnt(one, 1)
    first = child_of(one)
    with ThreadPoolExecutor(4) as threads:
        asked = [threads.submit(burnt, one, number) for number in (ENDLESS, 1, 2, 3)]
        with pytest.raises(TemplateRefused, match=r"\(it takes more than 1 s\)"):
            asked[0].result()
        assert [each.result() for each in asked[1:]] == ["1", "2", "3"]
    assert not first.is_running() and child_of(one).is_running()


def test_a_process_that_was_ended_from_outside_is_replaced() -> None:
    one = template("{{ 1 }}")
    assert one.render([MESSAGES]) == ["1"]
    first = child_of(one)
    first.kill()
    assert one.render([MESSAGES]) == ["1"] and child_of(one) != first


def test_a_process_that_ends_by_itself_answers_first_or_another_one_does(tmp_path: Path) -> None:
    script = tmp_path / "once.py"
    script.write_text(
        "import os, sys\n"
        "size = int.from_bytes(sys.stdin.buffer.read(4), 'big')\n"
        "body = sys.stdin.buffer.read(size) + b' %d' % os.getpid()\n"
        "sys.stdout.buffer.write(len(body).to_bytes(4, 'big') + body)\n"
    )
    process = Answering(str(script), 2**29, 1)
    answers = [process.answer_of(b"said") for _ in range(3)]
    assert all(isinstance(one, bytes) and one.startswith(b"said ") for one in answers) and len(set(answers)) == 3
    script.write_text("")
    found = process.answer_of(b"said")
    assert isinstance(found, Broken) and found.by_chance and "exit code 0" in found.reason


def test_a_request_that_had_no_answer_in_time_is_not_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script, started = tmp_path / "silent.py", []
    script.write_text("import time\ntime.sleep(600)\n")
    begin = Answering._started
    monkeypatch.setattr(Answering, "_started", lambda one: started.append(one) or begin(one))
    monkeypatch.setattr(script_process, "WAIT_S", 0.2)
    found = Answering(str(script), 2**29, 1).answer_of(b"said")
    assert isinstance(found, Broken) and found.by_chance and len(started) == 1


def test_a_request_waits_for_those_before_it_only_so_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(script_process, "WAIT_S", 0.2)
    process = Answering(os.devnull, 2**29, 1)
    with ThreadPoolExecutor(1) as thread, process._turn:
        found = thread.submit(process.answer_of, b"said").result(60)
    assert isinstance(found, Broken) and found.by_chance


def test_an_answer_that_was_read_by_half_is_none_of_the_next_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "echo.py"
    script.write_text(
        "import sys\n"
        "while size := int.from_bytes(sys.stdin.buffer.read(4), 'big'):\n"
        "    body = sys.stdin.buffer.read(size)\n"
        "    sys.stdout.buffer.write(len(body).to_bytes(4, 'big') + body)\n"
        "    sys.stdout.buffer.flush()\n"
    )
    process, received = Answering(str(script), 2**29, 1), frames._exactly

    def short_of_memory(channel: socket.socket, size: int, until: float) -> bytearray:
        if size > frames.HEAD:
            raise MemoryError
        return received(channel, size, until)

    with monkeypatch.context() as patched:
        patched.setattr(frames, "_exactly", short_of_memory)
        with pytest.raises(MemoryError):
            process.answer_of(b"\0\0\0\1x the first")
    assert process.answer_of(b"the second") == b"the second"


def test_a_process_ends_with_its_template() -> None:
    one = template("{{ 1 }}")
    one.render([MESSAGES])
    child = child_of(one)
    del one
    gc.collect()
    assert not child.is_running()


def test_a_fork_renders_in_a_process_of_its_own() -> None:
    one = template("{{ messages[0].content }}")
    burnt(one, 1)
    first = child_of(one)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            same = burnt(one, 2) == "2" and child_of(one) != first
            del one
            gc.collect()
            os.write(writing, b"own" if same else b"shared")
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        assert pipe.read() == b"own"
    os.waitpid(pid, 0)
    assert burnt(one, 3) == "3" and child_of(one) == first


def test_words_keep_white_space_and_cannot_be_guessed() -> None:
    words, others = Words(), Words()
    shown = [words.hide("  a\n", 3), words.hide("b", 0), words.hide(" ", 1)]
    assert words.split("x".join(shown)) == ["  ", 3, "\nx", 0, "x "]
    assert others.split(shown[1]) == [shown[1]]
