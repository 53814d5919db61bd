"""Keeps secrets out of messages, logs and printed configurations. Pure, apart from the names of the environment.

Masked are the user's name and password in a URL, values of URL parameters whose names say that they are secret, bearer
tokens, and the values of environment variables such as `HF_TOKEN`. In settings also what stands after a name that says
so: `--api-key VALUE`, `API_KEY=VALUE`, a key of a mapping; and `user:password@host` without a scheme.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

MASK = "***"
SHORTEST = 8
"""Characters; a shorter value of a variable is not masked, because it would occur in innocent words."""
_USER_INFO = re.compile(r"(?<=://)[^/?#\s@'\"]*(?:@[^/?#\s@'\"]*)*(?=@)")
_PARAMETER = re.compile(
    r"(?i)([?&#;](?:sig|key|auth|"
    r"[\w.-]{0,40}(?:token|secret|password|passwd|api[_-]?key|access[_-]?key|signature|credential)[\w.-]{0,40})=)"
    r"[^&#\s'\"]+"
)
_BEARER = re.compile(r"(?i)\b(bearer\s+)[\w.~+/=-]{8,}")
_VARIABLE = re.compile(
    r"(?i)(?:token|secret|password|passwd|passphrase|(?:^|_)(?:key|pat|access_key_id|connection_string|credentials?)|_pwd)$"
)


_SECRET = (
    r"(?:token|secret|password|passwd|passphrase|credentials?|(?:api|access|secret|private|auth|subscription)[-_]?key)"
)
_NAME = re.compile(rf"(?i)[\w.-]*{_SECRET}")
_FLAG = re.compile(rf"(?i)--?[\w.-]*{_SECRET}")
_NAMED = re.compile(
    rf"(?i)((?:^|[\s'\"{{,])(?:--?[\w.-]*{_SECRET}\s+|[\w.-]*{_SECRET}['\"]?\s*[=:]\s*)['\"]?)(?!-)[^\s'\"]+"
)
_USER_AND_PASSWORD = re.compile(r"(?<![^\s'\"=,])[^\s:/@'\"=,]+:[^\s/@'\"]+(?=@[\w.-])")
_STAND_INS = ("x" * SHORTEST, "x:x")
"""A secret, and a name with its password."""
_known: set[str] = set()


def masked_settings(value: Any, name: str = "") -> Any:
    """Settings, plain data, as they are kept and shown. `name`: the key, or the flag, before the value."""
    if isinstance(value, Mapping):
        return {key: masked_settings(inner, str(key)) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        flags = (one if isinstance(one, str) and _FLAG.fullmatch(one) else "" for one in value)
        return [masked_settings(one, flag) for flag, one in zip(("", *flags), value, strict=False)]
    return _masked_word(value, name) if isinstance(value, str) else value


def _masked_word(text: str, name: str) -> str:
    if _NAME.fullmatch(name) and text and not text.startswith("-") and not text.isdigit() and not _is_path(text):
        return MASK
    return masked(_USER_AND_PASSWORD.sub(MASK, _NAMED.sub(rf"\g<1>{MASK}", text)))


def stand_for_secrets(value: Any) -> bool:
    """Whether settings hold a `***` where `masked_settings` would write one."""
    if isinstance(value, str):
        return value == MASK
    words = list(_words(value))
    for stand_in in _STAND_INS:
        would = _words(masked_settings(_replaced(value, stand_in)))
        if any(MASK in word and word in (MASK, one) for word, one in zip(words, would, strict=True)):
            return True
    return False


def know_secrets(value: Any) -> None:
    """From here on `masked` knows the secrets in these settings, wherever they stand in a text."""
    for word, shown in zip(_words(value), _words(masked_settings(value)), strict=True):
        before, mask, after = shown.partition(MASK)
        if mask and MASK not in after and word.startswith(before) and word.endswith(after):
            _known.add(word[len(before) : len(word) - len(after)])


def _words(value: Any) -> Iterator[str]:
    """The texts of plain data, in order."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for inner in value.values() if isinstance(value, Mapping) else value:
            yield from _words(inner)


def _replaced(value: Any, stand_in: str) -> Any:
    if isinstance(value, Mapping):
        return {key: _replaced(inner, stand_in) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_replaced(inner, stand_in) for inner in value]
    return value.replace(MASK, stand_in) if isinstance(value, str) else value


def masked(text: str) -> str:
    """The text with every secret in it replaced by `***`."""
    if "://" in text:
        text = _USER_INFO.sub(MASK, text)
    text = _PARAMETER.sub(rf"\g<1>{MASK}", text)
    text = _BEARER.sub(rf"\g<1>{MASK}", text)
    for value in _secret_values():
        text = text.replace(value, MASK)
    return text


def token_in(variable: str) -> str:
    """The token that an environment variable holds, without white space around it, with which files of secrets often
    end; empty if there is none. Raises ValueError, which names the variable and not the token, if no HTTP header can
    carry it: libraries would quote it."""
    token = os.environ.get(variable, "").strip()
    if re.fullmatch(r"[ -~\xa0-\xff]*", token) is None:
        raise ValueError(
            f"the variable {variable} holds a character that no HTTP header carries, e.g. a line end; set it to the "
            "token alone"
        )
    return token


def bearer(variable: str) -> dict[str, str]:
    """The header with the token of `token_in`; empty without one."""
    token = token_in(variable)
    return {"Authorization": f"Bearer {token}"} if token else {}


def _secret_values() -> list[str]:
    """Values of the environment variables whose names say that they are secret, without white space around them: a
    secret from a file often ends with a line end; and those of settings; the longest first. Paths of files are none,
    but a key may begin with `/` too."""
    found = _known | {value.strip() for name, value in os.environ.items() if _VARIABLE.search(name)}
    return sorted((one for one in found if len(one) >= SHORTEST and not _is_path(one)), key=len, reverse=True)


def _is_path(value: str) -> bool:
    return os.path.isabs(value) and ("." in value or os.path.lexists(value))
