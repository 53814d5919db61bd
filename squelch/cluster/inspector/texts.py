"""Token ids as text for the page: one piece a token, escaped, with control characters made visible.

The ids are never encoded again, so the page shows exactly what was fed and sampled. A character whose bytes are spread
over several tokens is shown at the last of them. Without a tokenizer the ids themselves are shown.
"""

from __future__ import annotations

import codecs
from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup, escape
from tokenizers import Tokenizer

from squelch.kit.process.terminal import controls_visible
from squelch.kit.text.tokenizer import byte_alphabet, try_tokenizer
from squelch.kit.untrusted.files import decoding

BINS = (-0.02, -0.105, -0.36, -0.7, -1.6, -3.0, -4.6)
"""Lower edges, nats, of the colours of a token's log-probability: probabilities of about 98%, 90%, 70%, 50%, 20%, 5%,
1%; the last colour is anything below."""
SHARES = ("98%", "90%", "70%", "50%", "20%", "5%", "1%")


class Pieces:
    """Texts of tokens. `data`: a tokenizer.json, or None; Unreadable, naming `where`, if it is damaged."""

    def __init__(self, data: bytes | None, where: str) -> None:
        self._tokenizer: Tokenizer | None = None
        if data is not None:
            try_tokenizer(data, where)
            with decoding(where, "is no tokenizer", "copy the model's tokenizer.json again"):
                self._tokenizer = Tokenizer.from_buffer(data)
        self._alphabet = byte_alphabet()
        added = {} if self._tokenizer is None else self._tokenizer.get_added_tokens_decoder()
        self.added: Mapping[int, str] = {index: token.content for index, token in added.items()}
        """The tokenizer's added tokens, control tokens among them."""
        self._bytes: dict[int, bytes] = {}
        self._shown: dict[bytes, Markup] = {}

    @property
    def known(self) -> bool:
        """Whether there is a tokenizer."""
        return self._tokenizer is not None

    def text(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of a sequence; control characters are not yet visible."""
        return b"".join(self._spelled(int(index)) for index in ids).decode("utf-8", errors="replace")

    def html(self, ids: np.ndarray) -> list[Markup]:
        """The escaped text of each token of a sequence."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        found = []
        pending = False
        for index in ids.tolist():
            data = self._spelled(index)
            if not pending and data in self._shown:
                found.append(self._shown[data])
                continue
            text = decoder.decode(data)
            whole = not pending and not decoder.getstate()[0]
            pending = bool(decoder.getstate()[0])
            found.append(shown(text))
            if whole:
                self._shown[data] = found[-1]
        return found

    def _spelled(self, index: int) -> bytes:
        if index not in self._bytes:
            self._bytes[index] = self._spell(index)
        return self._bytes[index]

    def _spell(self, index: int) -> bytes:
        if self._tokenizer is None:
            return f"⟨{index}⟩".encode()
        if index in self.added:
            return self.added[index].encode()
        piece = self._tokenizer.id_to_token(index)
        if piece is None:
            return f"⟨{index}⟩".encode()
        if set(piece) <= self._alphabet.keys():
            return bytes(self._alphabet[character] for character in piece)
        return piece.encode()


def shown(text: str) -> Markup:
    """A text of a model or an environment as the page may show it."""
    return escape(controls_visible(text))


def bins(log_probs: np.ndarray) -> list[int]:
    """(num_tokens,) the colour of each token, 0 (nearly certain) to 7 (below 1%)."""
    return np.searchsorted(-np.array(BINS), -log_probs, side="left").tolist()


def tokens_html(pieces: Sequence[Markup], log_probs: np.ndarray, reasoning: tuple[int, int]) -> Markup:
    """Sampled tokens, coloured by log-probability; those of the reasoning, [start, end), are in a frame."""
    colours, values = bins(log_probs), log_probs.tolist()
    each = [
        f'<i class="b{colour}" data-p="{value:.3f}">{piece}</i>'
        for piece, colour, value in zip(pieces, colours, values, strict=True)
    ]
    start, end = reasoning
    if start == end:
        return Markup("".join(each))
    return Markup("".join([*each[:start], '<span class="z">', *each[start:end], "</span>", *each[end:]]))
