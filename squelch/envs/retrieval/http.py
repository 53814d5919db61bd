"""A user's retriever over HTTP, with the protocol of Search-R1's server (Jin et al. 2025, `retrieval_server.py`).

    POST <url>  {"queries": ["..."], "topk": 3, "return_scores": true}
    -> {"result": [[{"document": {"contents": "\\"Title\\"\\ntext"}, "score": 1.5}]]}

`kit.untrusted.http` bounds every wait and every answer; an attempt is repeated also for the status codes of an
overloaded server.
"""

from __future__ import annotations

import json

from pydantic import BaseModel, ValidationError

from squelch.envs.retrieval.retriever import Found, RetrieverError
from squelch.kit.untrusted.files import brief, shortened
from squelch.kit.untrusted.http import JsonClient, NoAnswer
from squelch.kit.untrusted.secrets import masked

OVERLOADED = (429, 500, 502, 503, 504)
MAX_COMPLAINT = 500
"""Characters of an error besides the URL, parts of which the server may have chosen."""


class _Document(BaseModel):
    contents: str


class _Hit(BaseModel):
    document: _Document
    score: float


class _Answer(BaseModel):
    result: list[list[_Hit]]


class HttpRetriever:
    """Retriever that queries the server at `url`. May be shared between threads."""

    def __init__(self, url: str, timeout_s: float, retries: int) -> None:
        self.url = url
        self._client = JsonClient(timeout_s, retries, OVERLOADED)

    def retrieve(self, query: str, count: int) -> list[Found]:
        """The server's passages for `query`. Raises RetrieverError with the reason if there is no valid answer."""
        body = {"queries": [query.encode(errors="replace").decode()], "topk": count, "return_scores": True}
        try:
            status, content = self._client.post(self.url, body)
        except NoAnswer as error:
            raise self._error(str(error)) from error
        if status != 200:
            raise self._error(f"status {status} ({_brief(content)})")
        return self._found(content)[:count]

    def _found(self, content: bytes) -> list[Found]:
        try:
            answer = _Answer.model_validate(json.loads(content))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "the whole"
            raise self._error(f"nonsense: {where}: {first['msg']} (got {brief(first['input'])})") from error
        except (ValueError, RecursionError) as error:
            raise self._error(f"nonsense, not JSON: {_brief(content)}") from error
        if len(answer.result) != 1:
            raise self._error(f"nonsense: {len(answer.result)} results for 1 query")
        return [_split(hit) for hit in answer.result[0]]

    def _error(self, what: str) -> RetrieverError:
        return RetrieverError(masked(f"retriever {self.url}: {shortened(what, MAX_COMPLAINT)}"))


def _split(hit: _Hit) -> Found:
    """The passage in Search-R1's contents: the title in quotes, a line break, the text."""
    title, _, text = hit.document.contents.partition("\n")
    return Found(title.strip().strip('"'), text.strip(), hit.score)


def _brief(content: bytes) -> str:
    return repr(content[:80].decode(errors="replace"))
