"""Reads the configuration of another trainer, as flat keys; nothing is executed.

| file | trainer | complete |
|---|---|---|
| a folder `.hydra/`, or the YAML that `--cfg job --resolve` prints | verl | yes |
| TOML | prime-rl | no: keys that are left out have their defaults |
| a shell script, or the command line in a text file | OpenRLHF, verl | no |
| a Python script with `GRPOConfig(...)` | TRL | no |

A script is read as text. Of a shell script the words of the trainer's command are taken, with variables and arrays that
are assigned once before it, outside of any block, from text that names none but such ones. HOME is the user's own. Of
`${NAME:-TEXT}` TEXT is taken if neither the script before it nor the environment has the variable. Both are assumptions
about the environment of a run, and `Source.assumed` names them. Of a Python script the arguments of
`GRPOConfig`, `GRPOTrainer` and `LoraConfig` are taken that are literals, or names of such. Everything else is unknown;
so are keys that are not there, if the command has words, or the call arguments, that cannot be read. Of OpenRLHF's
command only an array that is not known counts as such words, since a single word may be the value of the flag before.
The script's own arguments (`$@`, `$*`) never count: they are taken to be none.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path
from typing import Any

from squelch.kit.base.dotted import flattened
from squelch.kit.base.errors import UserError, as_user_error, bad_files_are_the_users
from squelch.kit.importing.tables import rows, scalar
from squelch.kit.importing.values import Unknown
from squelch.kit.untrusted.files import is_folder, read_bytes, text_of
from squelch.kit.untrusted.text import MAX_RECIPE, parse_yaml

VERL, TRL, PRIME_RL, OPENRLHF = "verl", "TRL", "prime-rl", "OpenRLHF"
COMMANDS = {"train_ppo_ray": OPENRLHF, "main_ppo": VERL, "main_dapo": VERL}
"""The trainer of a module or file that a command runs, by its last name."""
PEFT = {"r": 8, "lora_alpha": 8}
"""Defaults of the package PEFT's `LoraConfig`."""
MOST_RESOLVED = 32
"""References of a value that lead to one another."""
_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?([^${},:]+)(?:,([^${}]*))?\}")
_VARIABLE = re.compile(r"\$(?:\{(\w+)(\}|:?[-=])|(\w+))")
"""A variable; what follows its name in braces: their end, or the text for an environment without it."""
_WORD = re.compile(
    r"""(?:\$\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)|`[^`]*`|[^\s'"\\]|\\.|'[^']*'|"(?:[^"\\]|\\.)*")+""", re.DOTALL
)
_OPERATOR = re.compile(r"[;|&]+|[&\d]?[<>].*", re.DOTALL)
"""A word that ends a command, or says where its output goes."""
_CHANGED = re.compile(r"\b(?:for|read)\s+(\w+)|(?:^|[;&|)]|\b(?:then|else|do)\b)\s*([A-Za-z_]\w*)\+?=")
"""The variables that a command sets which is no plain assignment."""
_ASSIGNED = re.compile(r"^(?:export\s+|readonly\s+|local\s+)?([A-Za-z_]\w*)=(.*)$", re.DOTALL)


@dataclass(frozen=True)
class Source:
    """What a configuration says. `complete`: whether every key of the trainer is in it, so that one that is not there
    has no default. `more`: why there may be keys that nobody knows; empty if there are none. `assumed`: variables of
    the environment on which values depend, with what is taken for them: HOME's own value, and of the others what the
    script has for an environment without them."""

    trainer: str
    where: str
    values: Mapping[str, Any]
    complete: bool
    more: str = ""
    assumed: Mapping[str, str] = field(default_factory=dict)


class Text(str):
    """Text of a script; `assumed` as in `Source`."""

    __slots__ = ("assumed",)
    assumed: Mapping[str, str]

    def __new__(cls, text: str, assumed: Mapping[str, str]) -> Text:
        made = super().__new__(cls, text)
        made.assumed = assumed
        return made


@dataclass(frozen=True)
class Words(Unknown):
    """Words of a command, any number, that a script computes."""


ARGUMENTS = Unknown("arguments of the script")


def read(path: Path) -> Source:
    """The configuration in a file or in Hydra's folder. UserError if it is of no known trainer."""
    with bad_files_are_the_users():
        if is_folder(path):
            inner = path / ".hydra" if (path / ".hydra" / "config.yaml").is_file() else path
            return _yaml(inner / "config.yaml")
        text = text_of(read_bytes(path, MAX_RECIPE), str(path))
    if path.suffix == ".toml":
        with as_user_error(about=f"{path}: not TOML"):
            return Source(PRIME_RL, str(path), flattened(tomllib.loads(text)), False)
    if path.suffix in (".yaml", ".yml"):
        return _yaml(path)
    if path.suffix == ".py":
        return _of_python(text, str(path))
    return _of_shell(text, str(path))


def _yaml(path: Path) -> Source:
    with bad_files_are_the_users():
        tree = parse_yaml(text_of(read_bytes(path, MAX_RECIPE), str(path)), str(path), "1.1")
    if not isinstance(tree, dict) or "actor_rollout_ref" not in tree:
        raise UserError(
            f"{path}: no configuration of verl: it has no actor_rollout_ref. Give what `--cfg job --resolve` prints, "
            "or the run's .hydra folder; of prime-rl the TOML, of OpenRLHF and TRL the script "
            "(docs/guide/coming-from.md)"
        )
    flat = flattened(tree)
    return Source(VERL, str(path), {key: _resolved(value, key, flat) for key, value in flat.items()}, True)


def _resolved(value: Any, key: str, flat: Mapping[str, Any], depth: int = 0) -> Any:
    """A value whose references to other keys are replaced; `Unknown` if Hydra would compute it, or nobody set it."""
    if not isinstance(value, str) or ("${" not in value and value != "???"):
        return value
    found = _REFERENCE.fullmatch(value.strip().replace("\n", " "))
    if found is None or depth > MOST_RESOLVED:
        return Unknown("nobody set it" if value == "???" else f"Hydra computes it: {value}")
    name, default = found[1].strip(), found[2]
    if name.startswith("."):
        name = f"{key.rpartition('.')[0]}.{name.lstrip('.')}"
    if name in flat:
        return _resolved(flat[name], name, flat, depth + 1)
    return Unknown(f"it refers to {name}, which is not there") if default is None else scalar(default.strip())


# -- shell -------------------------------------------------------------------------------------------------------------


def _of_shell(text: str, where: str) -> Source:
    lines = list(_commands(text))
    for number, (depth, line) in enumerate(lines):
        if not any(name in line for name in COMMANDS):
            continue
        words = _words(line, _assigned(lines if depth else lines[:number]))
        for place, word in enumerate(words):
            trainer = COMMANDS.get(_module(word)) if isinstance(word, str) else None
            if trainer is not None:
                rest = [one for one in takewhile(_is_argument, words[place + 1 :]) if one != ARGUMENTS]
                parse, unread = (_flags, Words) if trainer == OPENRLHF else (_overrides, Unknown)
                more = next((one.why for one in rest if isinstance(one, unread)), "")
                assumed = {key: own for one in rest if isinstance(one, Text) for key, own in one.assumed.items()}
                return Source(trainer, where, parse(rest), False, more, assumed)
    raise UserError(
        f"{where}: no command of a trainer that can be imported: it runs none of {', '.join(COMMANDS)}. Of verl give "
        "what `--cfg job --resolve` prints or the folder .hydra, of prime-rl the TOML, of TRL the script, or call "
        "squelch.trl.recipe(trainer, FILE) in it (docs/guide/coming-from.md)"
    )


def _module(word: str) -> str:
    """The last name of a module, or of a file of Python; empty for an assignment."""
    return "" if "=" in word else re.split(r"[./]", word.removesuffix(".py"))[-1]


def _is_argument(word: Any) -> bool:
    return not isinstance(word, str) or not _OPERATOR.fullmatch(word)


def _commands(text: str) -> Iterator[tuple[int, str]]:
    """(depth, command) of each: the lines that a backslash, a quote or a parenthesis joins, without comments. Depth 0
    is outside of every block."""
    depth, held = 0, ""
    for line in text.splitlines():
        held += _without_comment(line)
        if held.endswith("\\"):
            held = held[:-1] + " "
            continue
        if _open(held):
            held += "\n"
            continue
        words, held = held.strip(), ""
        if not words:
            continue
        first = words.split(maxsplit=1)[0].rstrip(";")
        ends = first in ("fi", "done", "esac", "}") or words in (")",)
        depth -= ends and depth > 0
        yield depth, words
        if (first in ("if", "for", "while", "until", "case") and not re.search(r"\b(fi|done|esac)\s*$", words)) or (
            words.endswith("{") and re.match(r"(function\s+)?[\w-]+\s*(\(\))?\s*\{$", words)
        ):
            depth += 1


def _without_comment(line: str) -> str:
    """The line up to a `#` that begins a word, outside of quotes."""
    quote = ""
    for place, char in enumerate(line):
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        elif char == "#" and (place == 0 or line[place - 1].isspace()):
            return line[:place].rstrip()
    return line.rstrip()


def _open(text: str) -> bool:
    """Whether a quote, or the parenthesis of an array, is not closed."""
    try:
        shlex.split(text, posix=True)
    except ValueError:
        return True
    return bool(re.match(r"^\s*[A-Za-z_]\w*=\(", text)) and not text.rstrip().endswith(")")


class Names(dict[str, Any]):
    """What is known of a script's variables: text, or a list of words; the others `Unknown`. `before`: the script up to
    where they are asked for."""

    before = ""

    def __missing__(self, name: str) -> Any:
        """None for a variable of the environment; `Unknown` if the script names it, or may set it, in another way."""
        if re.search(rf"(?<![\w${{-]){name}(?!\w)", self.before):
            return Unknown(f"a script computes {name}")
        run = re.search(r"^\s*((?:source|\.|eval)\s.*)", self.before, re.MULTILINE)
        return Unknown(f"`{run[1][:80]}` may set {name}") if run and name != "HOME" else None


def _assigned(lines: Sequence[tuple[int, str]]) -> Names:
    """The variables that are assigned once, outside of every block."""
    assigned = list[tuple[int, str, str]]()
    times = Counter[str]()
    for number, (depth, line) in enumerate(lines):
        match = _ASSIGNED.match(line)
        if match is None or (not match[2].startswith("(") and len(_quoted_words(match[2])) > 1):
            times.update({name: 2 for names in _CHANGED.findall(line) for name in names if name})
        else:
            assigned.append((number, match[1], match[2].strip()))
            times[match[1]] += 1 + (depth > 0)
    found = Names({name: Unknown(f"a script computes {name}") for name, count in times.items() if count > 1})
    for number, name, value in assigned:
        if times[name] == 1:
            found.before = "\n".join(line for _, line in lines[:number])
            is_array = value.startswith("(")
            words = _words(value[1:].removesuffix(")") if is_array else value, found, whole=not is_array)
            one = words[0] if len(words) == 1 else Unknown(f"a script computes {name}") if words else ""
            found[name] = words if is_array else one
    found.before = "\n".join(line for _, line in lines)
    return found


def _words(line: str, names: Names, *, whole: bool = False) -> list[Any]:
    """The words of a command; those that a script computes are `Unknown`. `whole`: the values of variables are not
    split into words, as on the right of an assignment."""
    found: list[Any] = []
    try:
        words = _quoted_words(line)
    except ValueError:
        return found
    for word, quote in words:
        literal = quote == "'"
        array = re.fullmatch(r"\$\{(\w+)\[[@*]\]\}", word)
        if array:
            own = names.get(array[1])
            found += own if isinstance(own, list) else [Words(f"a script computes {word}")]
        elif not literal and re.search(r"\$\(|`", word):
            found.append(_computed(word))
        else:
            made = word if literal else _substituted(word, names)
            splits = isinstance(made, str) and made != word and not quote and not whole
            found += [Text(one, _assumed(made)) for one in made.split()] if splits else [made]
    return found


def _quoted_words(line: str) -> list[tuple[str, str]]:
    """(word, its quote): in single quotes nothing is replaced, without any a variable's value is split into words."""
    return [("".join(shlex.split(word)), _quote(word)) for word in _WORD.findall(line)]


def _quote(word: str) -> str:
    """What quotes it: one that stands within a word counts for all of it, where it is double."""
    return "'" if word[:1] == "'" == word[-1:] else '"' * ('"' in word)


def _substituted(word: str, names: Names) -> Any:
    """The word with its variables; `Unknown` where one is none that is known, and keeps the part before `=`."""
    if word in ("$@", "$*", "${@}"):
        return ARGUMENTS
    made = _expanded(word, names)
    key, equals, _ = word.partition("=")
    return (key, made) if isinstance(made, Unknown) and equals and "$" not in key else made


def _expanded(text: str, names: Names) -> str | Unknown:
    """The text with the values of its variables."""
    made, rest = "", text
    assumed: Mapping[str, str] = {}
    while match := _VARIABLE.search(rest):
        name, mark = match[1] or match[3], match[2] or "}"
        end = match.end() if mark == "}" else _closing(rest, match.end())
        own = names[name]
        if own is None and name == "HOME":
            own = Text(str(Path.home()), {name: str(Path.home())})
        elif mark != "}" and own is None and name in os.environ:
            return Unknown(f"the environment sets {name}")
        elif mark != "}" and (own is None or (own == "" and mark[0] == ":")):
            default = _expanded(rest[match.end() : end - 1], names)
            new = {name: str(default)} if own is None else {}
            own = default if isinstance(default, Unknown) else Text(default, {**_assumed(default), **new})
        if isinstance(own, Unknown):
            return own
        if not isinstance(own, str):
            why = "comes from the environment" if own is None else "is an array"
            return Unknown(f"{rest[match.start() : end]} {why}")
        plain, rest = rest[: match.start()], rest[end:]
        if "${" in plain:
            break
        made, assumed = made + plain + own, {**assumed, **_assumed(own)}
    else:
        if "${" not in rest:
            return Text(made + rest, assumed) if assumed else made + rest
    return Unknown(f"a script computes {text}")


def _assumed(text: str) -> Mapping[str, str]:
    return text.assumed if isinstance(text, Text) else {}


def _closing(text: str, start: int) -> int:
    """The place after the brace that closes one that is open."""
    depth = 1
    for place in range(start, len(text)):
        depth += {"{": 1, "}": -1}.get(text[place], 0)
        if not depth:
            return place + 1
    return len(text) + 1


def _computed(word: str) -> Any:
    key, equals, value = word.partition("=")
    why = Unknown(f"a script computes {value or word}")
    return (key, why) if equals and "$" not in key else why


def _flags(words: Sequence[Any]) -> dict[str, Any]:
    """The values of `--flag`, `--flag VALUE ...` and `--flag=VALUE`."""
    found: dict[str, Any] = {}
    name, values = "", list[Any]()

    def close() -> None:
        if name:
            unknown = next((one for one in values if isinstance(one, Unknown)), None)
            own = [scalar(str(one)) if isinstance(one, str) else one for one in values]
            found[name] = unknown or (True if not own else own[0] if len(own) == 1 else own)

    for word in words:
        flag = word[0] if isinstance(word, tuple) else word
        if isinstance(flag, str) and re.match(r"--[A-Za-z]", flag):
            close()
            name, equals, value = str(flag)[2:].partition("=")
            values = [word[1]] if isinstance(word, tuple) else [value] if equals else []
        elif isinstance(word, Words):
            close()
            name, values = "", []
        else:
            values.append(word)
    close()
    return found


def _overrides(words: Sequence[Any]) -> dict[str, Any]:
    """The values of Hydra's `key=value`, `+key=value` and `++key=value`."""
    found: dict[str, Any] = {}
    for word in words:
        if isinstance(word, tuple):
            found[word[0].lstrip("+")] = word[1]
        elif isinstance(word, str) and re.match(r"(\+{0,2}[\w.@/]+|--config-\w+)=", word):
            key, _, value = str(word).partition("=")
            found[key.lstrip("+")] = scalar(value)
    return found


# -- Python ------------------------------------------------------------------------------------------------------------


def _of_python(text: str, where: str) -> Source:
    """The keywords of `GRPOConfig(...)`, and of `GRPOTrainer(...)` those that the table has."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise UserError(f"{where}: not Python: {error}") from error
    names = _constants(tree)
    calls = {name: _calls(tree, name) for name in ("GRPOConfig", "GRPOTrainer")}
    if len(calls["GRPOConfig"]) != 1:
        raise UserError(
            f"{where}: it has {len(calls['GRPOConfig'])} calls GRPOConfig(...), and one is needed; call "
            "squelch.trl.recipe(trainer, FILE) in it instead, where every value is known"
        )
    found = _keywords(calls["GRPOConfig"][0], names)
    known = {name for row in rows(TRL) for name in row.names}
    for call in calls["GRPOTrainer"][:1]:
        own = _keywords(call, names)
        found |= {key: value for key, value in own.items() if key in known}
        found |= _adapters(own.get("peft_config"), _calls(tree, "LoraConfig"), names)
        if call.args and "model" not in found:
            found["model"] = _value(call.args[0], names)
    more = "a mapping of arguments" if _has_mapping([*calls["GRPOConfig"], *calls["GRPOTrainer"][:1]]) else ""
    return Source(TRL, where, found, False, more)


def _adapters(given: Any, calls: Sequence[ast.Call], names: Mapping[str, Any]) -> dict[str, Any]:
    """The adapters that the trainer is given, of the one call `LoraConfig(...)` of the script."""
    if given is None:
        return {}
    if len(calls) != 1:
        return {"peft_config.r": Unknown(f"the script has {len(calls)} calls LoraConfig(...)")}
    unread = Unknown("a mapping of arguments") if _has_mapping(calls) else None
    own = _keywords(calls[0], names)
    return {f"peft_config.{key}": own.get(key, unread or default) for key, default in PEFT.items()}


def _has_mapping(calls: Sequence[ast.Call]) -> bool:
    return any(one.arg is None for call in calls for one in call.keywords)


def _calls(tree: ast.AST, name: str) -> list[ast.Call]:
    def called(node: ast.Call) -> str:
        function = node.func
        return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")

    return [node for node in ast.walk(tree) if isinstance(node, ast.Call) and called(node) == name]


def _constants(tree: ast.Module) -> dict[str, Any]:
    """The names that are assigned once, at the top level, to a literal."""
    stored = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    found: dict[str, Any] = {}
    for node in tree.body:
        if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None:
            continue
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        if len(targets) == 1 and isinstance(targets[0], ast.Name) and stored.count(targets[0].id) == 1:
            value = _value(node.value, found)
            if not isinstance(value, Unknown):
                found[targets[0].id] = value
    return found


def _keywords(call: ast.Call, names: Mapping[str, Any]) -> dict[str, Any]:
    return {one.arg: _value(one.value, names) for one in call.keywords if one.arg is not None}


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    if isinstance(node, ast.Name) and node.id in names:
        return names[node.id]
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return Unknown(f"a program computes it: {ast.unparse(node)[:80]}")
