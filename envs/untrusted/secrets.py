"""Keeps secrets out of messages, logs and printed configurations. Pure, apart from the names of the environment.

Masked are the user's name and password in a URL, values of URL parameters whose names say that they are secret, bearer
tokens, and the values of environment variables such as `HF_TOKEN`.
"""

from __future__ import annotations

import os
import re

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
    """Values of the environment variables whose names say that they are secret, the longest first, without white space
    around them: a secret from a file often ends with a line end. Paths of files are none, but a key may begin with `/`
    too."""
    found = {value.strip() for name, value in os.environ.items() if _VARIABLE.search(name)}
    return sorted((one for one in found if len(one) >= SHORTEST and not _is_path(one)), key=len, reverse=True)


def _is_path(value: str) -> bool:
    return os.path.isabs(value) and ("." in value or os.path.lexists(value))
