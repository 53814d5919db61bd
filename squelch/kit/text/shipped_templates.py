"""The chat templates that Squelch ships, and the model folder that has one of them in place of its own, or a stamp.

Some models' own templates remove the reasoning of earlier turns (Qwen3, DeepSeek-R1). A policy that is trained with one
would be shown other text, when it is served, than it was trained on, so such a template is refused
(`actors.play.codec`). `model.chat_template` names a shipped template, or the path of another one, which keeps it.

Invariant: the folder with the replaced template holds links to the model's other files, so it costs no space; it is
written whole or not at all, and its name holds a digest of the template and of the model's path.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

from squelch.kit.base.disk import put_in_place
from squelch.kit.text.chat_template import MAX_TEMPLATE_CHARACTERS
from squelch.kit.text.stamp import STAMP_FILE, Stamp, read_stamp
from squelch.kit.untrusted.files import decoding, is_file, is_folder, read_bytes

FOLDER = Path(__file__).parent / "templates"
SHIPPED = tuple(sorted(path.stem for path in FOLDER.glob("*.jinja")))
SIGNS = {"chatml": "<|im_start|>", "deepseek": "<｜Assistant｜>"}
"""Text in a model's own template by which the shipped template that fits the model is found."""
TEMPLATE_FILE = "chat_template.jinja"
_OTHERS = ("additional_chat_templates", "chat_template.json", "tokenizer_config.json")
"""Files of a folder in which it can hold templates besides `TEMPLATE_FILE`. The last is linked, because a
`chat_template.jinja` takes precedence over the template in it."""


def fitting(source: str) -> str:
    """The name of the shipped template that writes what a model's own template `source` writes; empty if none does."""
    return next((name for name, sign in SIGNS.items() if sign in source), "")


def template_text(name: str) -> str:
    """The shipped template of that name, or the one in that file. Raises ValueError with the setting's key."""
    path = FOLDER / f"{name}.jinja" if name in SHIPPED else Path(name)
    if not is_file(path):
        raise ValueError(
            f"model.chat_template={name!r} is neither a file nor a shipped template; shipped are {', '.join(SHIPPED)}"
        )
    data = read_bytes(path, MAX_TEMPLATE_CHARACTERS)
    with decoding(f"model.chat_template={name!r}", "is no text in UTF-8"):
        return data.decode()


def with_template(model: Path, name: str, cache: Path) -> Path:
    """The folder below `cache` that has the files of the folder `model` and the template `name`; `model` itself if no
    template is named, or if there is no such folder. Raises ValueError as `template_text`."""
    if not name or not is_folder(model):
        return model
    text = template_text(name)
    return _with_file(model, TEMPLATE_FILE, text, _OTHERS[:2], cache, "template", text)


def with_stamp(model: Path, stamp: Stamp, cache: Path) -> Path:
    """The folder below `cache` that has the files of the folder `model` and that stamp; `model` itself if it has the
    stamp already."""
    if stamp == read_stamp(model):
        return model
    text = json.dumps({name: value for name, value in stamp._asdict().items() if value}) + "\n"
    return _with_file(model, STAMP_FILE, text, (), cache, "format", f"format {text}")


def _with_file(model: Path, name: str, text: str, without: Sequence[str], cache: Path, kind: str, content: str) -> Path:
    """The folder of links to the files of `model`, apart from those `without`, and of the file `name` with that text.
    `content`: what distinguishes it from the folder of another text."""
    model = model.resolve()
    files = sorted(file.name for file in model.iterdir() if file.is_file())
    digest = hashlib.sha256("\0".join([str(model), content, *files]).encode()).hexdigest()[:12]
    target = cache / f"{model.name}-{kind}-{digest}"
    if not target.is_dir():
        target.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=cache, prefix=f".{target.name}."))
        for file in model.iterdir():
            if file.is_file() and file.name not in (name, *without):
                (made / file.name).symlink_to(file)
        (made / name).write_text(text)
        put_in_place(made, target)
    return target
