"""Texts and ids of the rows, under one tokenizer and one model's vocabulary."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from tokenizers import Tokenizer

from squelch.kit.api.messages import BadSample
from squelch.kit.text.control_tokens import Piece, TextEncoder
from squelch.kit.text.tokenizer import unknown_id
from squelch.kit.untrusted.files import brief


class RowEncoder:
    """Encodes and decodes with a tokenizer, which encodes texts completely (`kit.text.tokenizer`). `vocab_size`:
    number of rows of the model's embedding; `where`, `model`: the source of the rows and the model, as errors name
    them."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, where: str, model: str) -> None:
        self._tokenizer, self._vocab_size, self._model, self.where = tokenizer, vocab_size, model, where
        self._encoder = TextEncoder(tokenizer)
        self._unknown = unknown_id(tokenizer)
        added = tokenizer.get_added_tokens_decoder()
        self.special = {index: token.content for index, token in added.items() if token.special}
        """The tokens that trainers leave out of the text that they log."""
        self.start = _start_of(tokenizer)
        """What the tokenizer puts before a text, such as `<s>`."""
        self._known: dict[tuple[Piece, ...], list[int]] = {}

    def row(self, number: int) -> str:
        """A row as errors name it."""
        return f"{self.where}, row {number}" if self.where else f"row {number}"

    def forget(self) -> None:
        """Drops the ids of earlier files."""
        self._known.clear()

    def encode(self, number: int, pieces: Sequence[Piece]) -> list[int]:
        """The ids of a text, without special tokens at its ends. BadSample if the tokenizer cannot express it."""
        key = tuple(pieces)
        if key not in self._known:
            self._known[key] = self._encoder.encode(pieces)
        self.require_known(number, self._known[key], "".join(piece for piece, _ in pieces))
        return self._known[key]

    def encode_at(self, pieces: Iterable[Piece]) -> tuple[list[int], list[int]]:
        """The ids of a text, and for each the position at which its token ends; unknown words are kept."""
        return self._encoder.encode_at(pieces)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, control tokens included."""
        return self._tokenizer.decode(list(ids), skip_special_tokens=False)

    def knows(self, ids: Sequence[int]) -> bool:
        """Whether the tokenizer could express the text of which these are the ids."""
        return self._unknown is None or self._unknown not in ids

    def require_known(self, number: int, ids: Sequence[int], text: str) -> None:
        """Raises BadSample, naming a word of the text, if the tokenizer could not express it."""
        if self.knows(ids):
            return
        lost = [word for word in text.split() if self._unknown in self._tokenizer.encode(word).ids]
        raise BadSample(
            f"{self.row(number)}: the tokenizer of {self._model} cannot express "
            f"{brief(lost[0]) if lost else 'its white space'}; give the model that wrote the text"
        )

    def require_rows(self, number: int, *ids: Sequence[int]) -> None:
        """Raises BadSample if the model has no row for an id."""
        largest = max(max(each, default=0) for each in ids)
        if largest >= self._vocab_size:
            raise BadSample(
                f"{self.row(number)}: token id {str(largest)[:20]} is outside the vocabulary of {self._model}, which "
                f"has ids 0 to {self._vocab_size - 1}; give the model whose tokenizer wrote the rows"
            )

    def control_in(self, ids: Sequence[int]) -> Counter[str]:
        """The control tokens among ids, with their numbers."""
        return Counter(name for name in map(self._encoder.control.get, ids) if name)

    def without_end(self, ids: list[int]) -> list[int]:
        """Ids without the control tokens at their end, with which a turn ends."""
        size = len(ids)
        while size and ids[size - 1] in self.special:
            size -= 1
        return ids[:size]


def _start_of(tokenizer: Tokenizer) -> list[int]:
    plain, whole = (tokenizer.encode("a", add_special_tokens=flag).ids for flag in (False, True))
    size = next((k for k in range(len(whole)) if whole[k : k + len(plain)] == plain), 0)
    return whole[:size]
