"""Checks that need a tokenizer, on the sampled rollouts: how prompts begin, what the template writes, whether ids and
texts say the same, and whether turns were encoded anew. Loads transformers where a template is rendered.

Ids are decoded rather than texts encoded: a policy samples ids that its tokenizer would not choose, so that ids which
differ from an encoding are no fault, while ids that say something else than their text are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from squelch.kit.base.errors import UserError
from squelch.kit.base.values import first, known
from squelch.kit.checks.collected import Collected
from squelch.kit.checks.result import Result, Size, examples
from squelch.kit.findings.view import SHOWN
from squelch.kit.readers.format_rows import Row
from squelch.kit.records.shared_prefix import common_length
from squelch.kit.text.tokenizer import TOKENIZER_FILE, read_object, read_tokenizer
from squelch.kit.untrusted.files import Unreadable, is_file

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SAMPLED = "sampled rollouts"
NEEDS = "--base DIR, a folder with the policy's tokenizer"
Conversation = tuple[Sequence[Mapping[str, Any]], Any]
"""Messages, and the schemas of their tools."""
END_FILES = ("tokenizer_config.json", "generation_config.json", "config.json")
BATCH = 64
"""Conversations that are rendered in one process."""
TRIMMED = 40
"""Characters of a stop string, and of white space, by which a text may end before or after its ids."""
ARGUMENTS = {
    "enable_thinking": (False, True),
    "thinking": (False, True),
    "reasoning_effort": ("low", "medium", "high"),
}
"""Of templates, with which a run may render on purpose."""
CLOCKS = ("strftime_now", "date_string")
FEWEST_OTHER = 8
"""Prompts of another template from which on that is a fault, if not all are."""
WRONG_STARTS = {
    "doubled": "begin with the first token twice",
    "missing": "lack the first token that the tokenizer writes",
    "no generation prompt": "end without the generation prompt of the template",
    "part of the generation prompt": "lack the end of the generation prompt that the template writes",
}


@dataclass(frozen=True)
class Coder:
    """The tokenizer in a folder."""

    folder: Path
    tokenizer: Tokenizer

    @cached_property
    def begin(self) -> int | None:
        """The id with which the tokenizer lets texts begin; None if it names none."""
        token = read_object(self.folder / "tokenizer_config.json").get("bos_token")
        token = token.get("content") if isinstance(token, dict) else token
        return self.tokenizer.token_to_id(token) if isinstance(token, str) else None

    @cached_property
    def writes_begin(self) -> bool:
        """Whether encoding a text, or the template, writes that id."""
        encoded = self.tokenizer.encode("x").ids
        settings = read_object(self.folder / "tokenizer_config.json")
        template = settings.get("chat_template")
        file = self.folder / "chat_template.jinja"
        text = file.read_text(encoding="utf-8", errors="replace") if is_file(file) else str(template or "")
        return encoded[:1] == [self.begin] or "bos_token" in text

    @cached_property
    def ends(self) -> frozenset[int]:
        """The ids that the folder's files name as ends of what is said."""
        files = [read_object(self.folder / name) for name in END_FILES]
        named = [one for file in files for key in ("eos_token_id", "eos_token") for one in _listed(file.get(key))]
        tokens = [one.get("content") if isinstance(one, dict) else one for one in named]
        ids = (self.tokenizer.token_to_id(one) if isinstance(one, str) else one for one in tokens)
        return frozenset(one for one in ids if isinstance(one, int))

    def ids(self, text: str) -> list[int]:
        """The ids of a text, without those that the tokenizer adds."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def text(self, ids: Sequence[int], special: bool = False) -> str:
        """What ids say."""
        return self.tokenizer.decode(list(ids), skip_special_tokens=not special)

    @cached_property
    def arguments(self) -> list[dict[str, Any]]:
        """Values of the arguments that the folder's template may be given, one at a time."""
        known = ((name, value) for name, values in ARGUMENTS.items() for value in values)
        return [{name: value} for name, value in known if re.search(rf"\b{name}\b", self._template.source)]

    @property
    def has_clock(self) -> bool:
        """Whether the folder's template writes a day."""
        return any(word in self._template.source for word in CLOCKS)

    def rendered(
        self, conversations: Sequence[Conversation], reply: bool = False, given: Mapping[str, Any] | None = None
    ) -> list[list[int] | None]:
        """The ids of each conversation by the folder's template, without the generation prompt if `reply`, and with
        `given` arguments; None for one that it refuses, and for all if the folder has none. Equal ones are rendered
        once."""
        from squelch.kit.text.chat_template import TemplateRefused

        keys = [repr(one) for one in conversations]
        open_ones = list(dict(zip(keys, conversations, strict=True)).items())
        texts: dict[str, str] = {}
        while open_ones:
            batch = open_ones[:BATCH]
            messages, tools = [one[1][0] for one in batch], [one[1][1] for one in batch]
            try:
                found = self._template.render(messages, tools, [reply] * len(batch), given=given)
            except TemplateRefused as error:
                del open_ones[error.index]
                continue
            except ValueError:
                return [None] * len(conversations)
            texts |= dict(zip([key for key, _ in batch], found, strict=True))
            del open_ones[:BATCH]
        ids = {key: self.ids(text) for key, text in texts.items()}
        return [ids.get(key) for key in keys]

    @cached_property
    def _template(self) -> Any:
        from squelch.kit.text.chat_template import read_chat_template, read_chat_tokenizer

        return read_chat_template(self.folder, read_chat_tokenizer(self.folder))


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def tokenizer_folder(base: Path | None, checkpoints: Path | None) -> Path | None:
    """The folder of a tokenizer: the base model's, or that of a checkpoint. UserError if `base` has none."""
    if base is not None:
        if not is_file(base / TOKENIZER_FILE):
            raise UserError(f"--base {base}: it holds no {TOKENIZER_FILE}; give the folder of the model")
        return base
    if checkpoints is None:
        return None
    return next((one.parent for one in sorted(checkpoints.glob(f"**/{TOKENIZER_FILE}"))), None)


def coder_of(folder: Path | None) -> Coder | None:
    """The tokenizer in a folder. UserError if it cannot be read."""
    if folder is None:
        return None
    try:
        return Coder(folder, read_tokenizer(folder, of_a_stranger=True))
    except (Unreadable, ValueError) as error:
        raise UserError(str(error)) from error


def encoding_results(found: Collected, coder: Coder | None) -> list[Result]:
    """One result for each check of this module."""
    names = ("prompt_start", "template_differs", "text_differs", "turns_encoded_anew")
    if coder is None:
        results = [Result(name, "unknown", "No tokenizer is at hand", needs=NEEDS) for name in names]
        if not found.continued.broken and found.continued.turns:
            says = f"The ids of all {found.continued.turns} later turns extend those of the turn before"
            results[-1] = Result(names[-1], "sound", says, of=found.continued.turns)
        return results
    rows = found.sample
    return [_start(rows, coder), _template(rows, coder), _texts(rows, coder), _turns(found, coder)]


def _first_ids(row: Row) -> Sequence[int]:
    return row["prompt_ids"] if isinstance(row.get("prompt_ids"), list) else ()


def _start(rows: Sequence[tuple[str, Row]], coder: Coder) -> Result:
    """Prompts whose first token is doubled or missing."""
    name, begin = "prompt_start", coder.begin
    of_ids = [(where, list(_first_ids(row))) for where, row in rows if len(_first_ids(row)) > 1]
    spelled = coder.text([begin], special=True) if begin is not None else ""
    of_text = [(where, row["prompt"]) for where, row in rows if isinstance(row.get("prompt"), str)]
    if begin is None:
        return Result(
            name, "sound", "The tokenizer begins texts with no token of its own, so none can be missing", of=len(rows)
        )
    doubled = [where for where, ids in of_ids if ids[:2] == [begin, begin]]
    doubled += [where for where, text in of_text if spelled and text.startswith(2 * spelled)]
    missing = [where for where, ids in of_ids if coder.writes_begin and begin not in ids[:2]]
    looked = len(of_ids) + len(of_text)
    if doubled:
        return _wrong(name, "doubled", doubled, looked, spelled)
    if missing and len(missing) == len(of_ids):
        return _wrong(name, "missing", missing, looked, spelled)
    if not of_ids:
        needs = "prompts as ids; of text it is only known that none begins with it twice"
        return Result(name, "unknown", "No prompt is recorded as ids", of=looked, needs=needs)
    return Result(name, "sound", f"Each of {looked} prompts begins as the tokenizer writes it", of=looked)


def _wrong(name: str, kind: str, rows: Sequence[str], of: int, token: str) -> Result:
    says = f"{len(rows)} of {of} sampled prompts {WRONG_STARTS[kind]} ({token})"
    shown = examples((where, kind) for where in rows)
    return Result(name, "fault", says, len(rows), of, Size.share(len(rows), of, SAMPLED), shown)


def _template(rows: Sequence[tuple[str, Row]], coder: Coder) -> Result:
    """Prompts that are not what the folder's template writes for their messages."""
    name, told = "template_differs", [one for where, row in rows if (one := _told(where, row)) is not None]
    whole = coder.rendered([one.asked for one in told])
    pairs = [(one, ids) for one, ids in zip(told, whole, strict=True) if ids is not None]
    compared = [(replace(one, ids=_as_begun(one.ids, ids, coder.begin)), ids) for one, ids in pairs]
    if not compared:
        return Result(name, "unknown", "No prompt is recorded as messages and ids", needs="both, as verifiers has them")
    looked, wrong = len(compared), [(one, ids) for one, ids in compared if not _same(coder, one.ids, ids)]
    for given in coder.arguments if wrong else ():
        again = coder.rendered([one.asked for one, _ in wrong], given=given)
        pairs = [(pair, other) for pair, other in zip(wrong, again, strict=True)]
        wrong = [pair for pair, other in pairs if other is None or not _same(coder, pair[0].ids, other)]
    if not wrong:
        return Result(name, "sound", f"Each of {looked} sampled prompts is what the template writes", of=looked)
    short = coder.rendered([one.asked for one, _ in wrong], reply=True)
    cut = [one.where for (one, _), ids in zip(wrong, short, strict=True) if one.ids == ids]
    if cut:
        return _wrong(name, "no generation prompt", cut, looked, "what the policy says is then no reply")
    lost = [
        (one.where, coder.text(ids[len(one.ids) :], special=True))
        for (one, ids), begun in zip(wrong, short, strict=True)
        if begun is not None and ids[: len(one.ids)] == one.ids and one.ids[: len(begun)] == begun
    ]
    if lost:
        return _wrong(name, "part of the generation prompt", [where for where, _ in lost], looked, repr(lost[0][1]))
    says = f"{len(wrong)} of {looked} sampled prompts are not what the template of {coder.folder.name} writes"
    shown = examples((one.where, _first_difference(coder, one.ids, ids)) for one, ids in wrong)
    other = [one for one, ids in wrong if one.is_plain and not _is_cut_or_begun(one.ids, ids, coder.begin)]
    if other and not coder.has_clock and (len(other) >= FEWEST_OTHER or len(other) == looked):
        return Result(name, "fault", says, len(wrong), looked, Size.share(len(wrong), looked, SAMPLED), shown)
    needs = "the template that the run was given: a run may have its own, or other arguments of it"
    return Result(name, "unknown", says, len(wrong), looked, examples=shown, needs=needs)


@dataclass(frozen=True)
class _Told:
    """A prompt as messages and as ids."""

    where: str
    asked: Conversation
    ids: list[int]

    @property
    def is_plain(self) -> bool:
        """Whether its messages are texts of a system and a user, which every program renders alike."""
        messages, tools = self.asked
        return not tools and all(
            one.get("role") in ("system", "user") and isinstance(one.get("content"), str) and len(one) == 2
            for one in messages
        )


def _told(where: str, row: Row) -> _Told | None:
    """The first prompt of a rollout as messages and ids; None if one of them is not recorded."""
    learned = row.get("learned") or {}
    messages, ids, tools = learned.get("messages"), list(learned.get("ids", ())[: learned.get("start", 0)]), None
    if messages and ids:
        tools = learned["tools"]
    else:
        messages, ids = first((row.get("messages"), row.get("prompt")), known), row.get("prompt_ids")
        tools = row.get("tools") or None
    if not isinstance(ids, list) or not isinstance(messages, list) or not messages:
        return None
    if not all(isinstance(one, dict) and "role" in one for one in messages):
        return None
    messages = [{key: value for key, value in one.items() if value is not None} for one in messages]
    return _Told(where, (messages, tools), ids)


def _same(coder: Coder, ids: Sequence[int], other: Sequence[int]) -> bool:
    """Whether they are the same ids, or other pieces of the same text."""
    return ids == other or coder.text(ids, special=True) == coder.text(other, special=True)


def _is_cut_or_begun(ids: Sequence[int], whole: Sequence[int], begin: int | None) -> bool:
    """Whether the beginning of a long prompt was cut off, or the answer was begun for the policy."""
    kept = ids[1:] if ids[:1] == [begin] else ids
    return whole[-len(kept) :] == kept or ids[: len(whole)] == whole


def _as_begun(ids: list[int], whole: Sequence[int], begin: int | None) -> list[int]:
    """The ids with the first token once, if the template writes it; `prompt_start` says what is wrong with it."""
    if begin is None or whole[:1] != [begin]:
        return _once(ids, begin)
    return _once(ids, begin) if ids[:1] == [begin] else [begin, *ids]


def _once(ids: list[int], begin: int | None) -> list[int]:
    """The ids without a second first token, which `prompt_start` says."""
    return ids[1:] if begin is not None and ids[:2] == [begin, begin] else ids


def _first_difference(coder: Coder, given: Sequence[int], whole: Sequence[int]) -> str:
    at = common_length([np.asarray(given), np.asarray(whole)])
    own, other = (coder.text(ids[at : at + 8], special=True) for ids in (given, whole))
    return f"{own!r} stands where the template writes {other!r}"[:SHOWN]


def _texts(rows: Sequence[tuple[str, Row]], coder: Coder) -> Result:
    """Ids that say something else than the text that is recorded beside them."""
    name, wrong, looked = "text_differs", list[tuple[str, str]](), 0
    for where, row in rows:
        said = row.get("learned") or {}
        for start, end, text in said.get("said") or ():
            if end <= start:
                continue
            looked += 1
            if not _says(coder, said["ids"][start:end], text):
                decoded = coder.text(said["ids"][start:end])
                wrong.append((where, f"ids say {decoded[:80]!r}, text {text[:80]!r}"))
    if not looked:
        return Result(name, "unknown", "No completion is recorded as ids and as text", needs="ids and text of a row")
    if not wrong:
        return Result(name, "sound", f"The ids of {looked} sampled texts say these texts", of=looked)
    says = f"The ids of {len(wrong)} of {looked} sampled texts say another text"
    return Result(name, "fault", says, len(wrong), looked, Size.share(len(wrong), looked, SAMPLED), examples(wrong))


def _says(coder: Coder, ids: Sequence[int], text: str) -> bool:
    """Whether the ids say the text, apart from control tokens, white space, broken characters, and a stop string."""
    wanted = _plain(text)
    for special in (False, True):
        decoded = _plain(coder.text(ids, special))
        if wanted in decoded or (decoded in wanted and len(wanted) - len(decoded) <= TRIMMED):
            return True
    bare = _plain(coder.text(coder.ids(text)))
    return bare in _plain(coder.text(ids))


def _plain(text: str) -> str:
    return re.sub(r"[\s\ufffd]+", "", text)


def _turns(found: Collected, coder: Coder) -> Result:
    """Turns whose prompts are other ids of the same text as those of the turn before."""
    name, continued = "turns_encoded_anew", found.continued
    if not continued.turns:
        return Result(name, "unknown", "No rollout has two turns as ids", needs="turns with the ids of their prompts")
    same = [
        where
        for where, before, now in continued.differing
        if _plain(coder.text(now, special=True)).startswith(_plain(coder.text(before, special=True)))
    ]
    if not same:
        extra = f", and {continued.broken} rewrite their history" if continued.broken else ""
        says = f"The ids of {continued.turns - continued.broken} later turns extend those of the turn before{extra}"
        return Result(name, "sound", says, of=continued.turns)
    looked = len(continued.differing)
    says = f"{len(same)} later turns of {continued.turns} have the text of the turn before as other ids"
    shown = examples((where, "the same text, other ids") for where in same)
    size = Size.share(len(same), looked, "turns that do not extend the turn before")
    return Result(name, "fault", says, len(same), continued.turns, size, shown)
