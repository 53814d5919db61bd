"""Search over passages: BM25 on disk (`index`), a user's corpus (`corpus`), or a retriever over HTTP (`http`)."""

from squelch.envs.retrieval.http import HttpRetriever
from squelch.envs.retrieval.index import Index, Passage, open_index
from squelch.envs.retrieval.retriever import Found, Retriever, RetrieverError

__all__ = ["Found", "HttpRetriever", "Index", "Passage", "Retriever", "RetrieverError", "open_index"]
