"""What a model folder says to other programs, so that they ask for a turn and sample it as a run does.

A run opens the reasoning of Squelch's turns behind the chat template, and keeps it in the conversation. A server gives
back what was sampled behind `<think>`, and its client sends that again, so the template opens both. The base model's
generation settings may cut off the distribution that the run has trained (`top_k`, `repetition_penalty`), or lack the
token with which its turns end.
"""

from __future__ import annotations

import json
from pathlib import Path

from squelch.actors.formats.choice import AnyFormat, open_format
from squelch.kit.text.chat_template import read_chat_template, read_chat_tokenizer
from squelch.kit.text.shipped_templates import TEMPLATE_FILE
from squelch.kit.text.tags import THINK_CLOSE, THINK_OPEN

GENERATION = "generation_config.json"
_REOPENED = f"""\
{{%- set squelch = namespace(shown=[]) -%}}
{{%- for m in messages -%}}
{{%- if m.role == 'assistant' and m.content is string and '{THINK_CLOSE}' in m.content and \
'{THINK_OPEN}' not in m.content -%}}
{{%- set m = dict(m, content='{THINK_OPEN}' + m.content) -%}}
{{%- endif -%}}
{{%- set squelch.shown = squelch.shown + [m] -%}}
{{%- endfor -%}}
{{%- set messages = squelch.shown %}}
"""
"""Opens the reasoning of earlier turns whose text begins behind the opening."""
_OPENED = f"{{% if add_generation_prompt %}}{THINK_OPEN}{{% endif %}}"


def as_played(folder: Path, opens: bool, temperature: float) -> dict[str, str]:
    """Texts of files for a copy of a model folder, by name. `opens`: whether the run opens the reasoning of each turn.

    Raises ValueError as `open_format`.
    """
    one = open_format(folder)
    files = {GENERATION: json.dumps(_generation(one, temperature), indent=2) + "\n"}
    if opens:
        source = read_chat_template(folder, read_chat_tokenizer(folder)).source
        files[TEMPLATE_FILE] = opened(source, one.begins_inside(()) is True)
    return files


def opened(source: str, opens: bool) -> str:
    """The chat template with the reasoning opened, of earlier turns too; `opens`: whether it opens a new turn's itself.
    One that was made here stays as it is."""
    if source.startswith(_REOPENED):
        return source
    return _REOPENED + (source if opens else source.removesuffix("\n") + _OPENED)


def _generation(one: AnyFormat, temperature: float) -> dict[str, object]:
    return {
        "eos_token_id": list(one.stop_ids),
        "pad_token_id": one.pad_id,
        "do_sample": True,
        "temperature": temperature,
        "top_p": 1.0,
        "top_k": 0,
    }
