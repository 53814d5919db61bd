"""The judge of the grid worlds: what a reasoning claims about its board, and whether that is true.

The facts are the cells of the last board in the prompt. A claim says where a fact is, in one of two forms:

    a cell       "the goal is at row 1, column 2", "hole at (1, 2)", "goal at 1 2" (the tiny style); "I am in row 3"
    an offset    "the goal is 2 rows up and 1 column to the right", "there is a hole to my left", "the box is above me"

The tiny style is closed, so its phrases are recognised exactly. In English a sentence is read from left to right: a
cell or an offset belongs to the noun before it ("the holes at (0, 1) and (2, 2)"), unless a word of motion or of intent
stands between them ("so I go up to row 1, column 2" says where the player will be, which the board does not show), or
the name of something that is not judged (a wall). After "the box above the target" a cell is the target's, and a
further offset the box's. A place that a verb follows at once begins a clause ("(2, 2) is a hole and (1, 1) is safe"):
it belongs to the noun right after the verb, or to none, unless it stands right after the noun before it ("the hole at
(2, 2) is near"). A denial says that a fact is not at a place only right before the noun ("no hole at", "I don't see a
hole") or right before the place ("is not at"), up to the last place of a list; elsewhere it denies something else ("I
must not fall into the hole at row 1, column 2" says where the hole is). Cells count from 0. All other text is ignored,
so a statement in words that this module does not know is no claim, and neither are ranges ("at most 1 row above me"),
nearness ("next to (1, 1)") and offsets from things that are not judged.

An offset without a count says only the direction ("above": in some row above); with one, or with "directly", it says
the exact way. Among several holes or boxes, one that fits makes a claim true; a denied claim is true if none fits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from squelch.envs.grid_worlds.board import facts_of, last_board, without_rows
from squelch.envs.grid_worlds.picture import rows_of
from squelch.envs.wording import Cell, Wording
from squelch.kit.records.pictures import Picture

Facts = Mapping[str, frozenset[Cell]]
Nouns = Mapping[str, tuple[str, ...]]
PLAYER = "player"

_NUMBERS = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7}
_COUNT = rf"(\d{{1,3}}|{'|'.join(_NUMBERS)})"
_UNIT = r"(?:rows?|columns?|cols?|cells?|squares?|steps?|spaces?|tiles?|moves?)"
_SIDE = r"(?:(?:to|on) (?:the|my) )?(left|right)(?: side)?"
_EXACT = rf"{_COUNT} {_UNIT} (?:directly )?(?:(up|down|above|below|north|south|east|west)|{_SIDE})"
_VAGUE = (
    r"(directly |right |just |immediately )?"
    r"(?:(above|below|north|south|east|west)|(?:to|on) (?:the|my) (left|right)(?: side)?|(left|right) of)\b"
)
_PIECE = rf"(?:{_EXACT}|{_VAGUE})"
_CELL = re.compile(
    r"\(?\brow:? (?P<r1>\d{1,3})(?: ?,? ?(?:and )?)(?:the )?col(?:umn)?:? (?P<c1>\d{1,3})\b\)?"
    r"|\(?\bcol(?:umn)?:? (?P<c2>\d{1,3})(?: ?,? ?(?:and |of )?)(?:the )?row:? (?P<r2>\d{1,3})\b\)?"
    r"|[(\[] ?(?P<r3>\d{1,3}) ?, ?(?P<c3>\d{1,3}) ?[)\]]"
    r"|\brow:? (?P<r4>\d{1,3})\b|\bcol(?:umn)?:? (?P<c4>\d{1,3})\b"
)
_AND = r"(?: ?,(?: and)?(?: then)?| and(?: then)?| then)"
_VERB = r"(?: (?:is|has|was|contains|holds|looks|seems|are|were|have|isn't|hasn't|wasn't|aren't|doesn't)\b)"
_COUNTED = rf"(?: (?:(?:of|from) )?me\b)?{_AND}(?: (?:it )?is| it's)?(?= (?:\d{{1,3}}|{'|'.join(_NUMBERS)}) {_UNIT})"
"""Between the two pieces of an offset, of which the second has a count: "1 row above me and 2 columns to the right"."""
_OFFSET = re.compile(
    rf"\b{_PIECE}(?:(?: ?(?:,|and|, and)|{_COUNTED}) (?:{_EXACT}|{_VAGUE}(?!(?: me)?{_VERB})))?"
    r"(?: (?:of|from)\b)?(?: (?:the |me\b))?"
)
_SECOND = re.compile(rf"{_AND}(?: i am| i'm| is)? {_EXACT}(?: (?:of|from) it\b|(?! (?:of|from|the|me|it)\b))")
"""The second piece of an offset from a noun: "one row below the goal and two columns left of it"."""
_NEAR = (
    r"at least|at most|(?:less|more|fewer|other) than|near|close to|next to|beside|adjacent to|between|within|up to"
    r"|(?:\d{1,3}|one|two|three) (?:or|to)"
)
_UNSURE_CELL = re.compile(rf"\b(?:{_NEAR}) (?:(?:the|a|cell|position|square) )*$")
_UNSURE_OFFSET = re.compile(rf"\b(?:{_NEAR}|about|around|approximately|roughly|nearly|almost) $")
_UNSURE_AFTER = re.compile(
    rf" or (?:more|less|fewer|so|{_COUNT})\b|(?: (?:of |from )?(?:it|them|that|this|these|those)\b)"
    rf"|(?: me)?{_AND}(?: (?:it )?is| it's)? (?:at least|at most|(?:less|more|fewer) than|about|{_COUNT} {_UNIT})\b"
)
_UNSURE_SIDE = re.compile(rf"(?<=me){_AND} (?:to|on) (?:the|my) (?:left|right)\b")
"""Words before a place that make it a range, or a place beside the noun; and words after an offset that make it a
range, let it start from something unknown, or continue it in a way that is not understood; a second piece without a
count after one with a count."""
_OTHER = re.compile(r"\bwalls?\b|(?<!on the )(?<!on )\b(?:ice|floor)\b|\bempty (?:cell|square|space|tile)s?\b")
"""Things on the board that are not judged."""
_DENIAL = re.compile(
    r"\b(?:(?:none|neither)(?: of (?:the|these|those|my)(?: two)?)?|nor|nowhere|no|not|without|never|cannot"
    r"|(?:is|are|was|were|do|does|did|ca)n't)\b"
)
_BEFORE_NOUN = re.compile(
    r" (?:(?:a|an|any|another|single|other|more|such|longer|see|have|find|visible|dangerous|immediate|adjacent|nearby"
    r") )*"
)
_ELSEWHERE = re.compile(r"\b(?:in|into|on|onto|to|from|over|reach|reached|hit|touch|enter)\b")
_BEFORE_PLACE = re.compile(
    r" (?:(?:at|in|on|located|positioned|placed|standing|longer|exactly|currently|now|yet|found|the|cell|position"
    r"|location|coordinates?) )*"
)
_LIST = re.compile(r" ?(?:,? ?(?:and|or|nor|&|/)|,) (?:at |in |on )?|[,/&]| ")
_AGAIN = re.compile(r"\b(?:is|it's|are|but)\b")
"""What may stand between a denial and its noun, or its place, and between two places of a list; what says that a denial
before a noun denies something else, and that a place is no longer of the list. After anything else nothing is said."""
_ATTACHED = re.compile(
    r"(?: |: ?| (?:(?:which|that|who|am|is|are|'m|'s|at|in|on|located|positioned|placed|standing|currently|now|the|cell"
    r"|square|position|location) )*)"
)
"""Between a noun and a place that belongs to it, whatever follows: "the hole at (2, 2) is near"."""
_PLURAL = r"(?: (?:are|were|have|contain|hold|look|seem|aren't)\b)"
_STATING = re.compile(
    r" (?:is|has|contains|holds|are|have|contain|hold|isn't|aren't)(?P<no> not| no|(?<=n't))?"
    r" (?:(?:a|an|the|also|both|actually|currently|now|in fact|really) )*"
)
"""Between a place and the noun that is said to be there: "(2, 2) is not a "."""
_NO_NOUN = re.compile(r"[-'/]| (?:or|free|row|column|col|line|side|area|if|unless)\b")
"""After a noun that is only a part of a longer name, or uncertain."""
_UNREAL = re.compile(r"\b(?:whether|unless|until|when|once|maybe|perhaps|assum\w+|suppos\w+|think|only|both|either)\b")
_TURN = re.compile(
    r"\b(?:so|then|therefore|go|goes|going|move|moves|moving|walk|walks|walking|step|push|pushes|pushing|pushed|reach|"
    r"get to|getting to|be at|want|need|should|will|would|can|could|if|after|plan|best|try|take|instead|let)\b"
)
_SENTENCE = re.compile(r"[.;!?](?=\s|$)|\n")


@dataclass(frozen=True)
class Offset:
    """A way over the board. Counts are signed, down and right positive; None: not said. `exact`: the whole way."""

    rows: int | None
    columns: int | None
    exact: bool

    def fits(self, start: Cell, end: Cell) -> bool:
        """Whether the way from `start` to `end` is as said."""
        pairs = ((self.rows, end[0] - start[0]), (self.columns, end[1] - start[1]))
        if self.exact:
            return all((said or 0) == true for said, true in pairs)
        return all(said * true > 0 for said, true in pairs if said is not None)


@dataclass(frozen=True)
class Claim:
    """`fact` is at `cell`, of which row or column can be unsaid, or at `offset` from `reference`; `denied`: it is
    not."""

    fact: str
    cell: tuple[int | None, int | None] | None = None
    offset: Offset | None = None
    reference: str = PLAYER
    denied: bool = False


@dataclass(frozen=True)
class GridJudge:
    """The judge of one grid world: `legend` says what symbols show, `nouns` how English names the facts that are
    judged, `wordings` how boards and tiny claims are worded."""

    legend: Mapping[str, str]
    nouns: Nouns
    wordings: Sequence[Wording]

    def board(self, prompt: str) -> list[str] | None:
        """The last board of a prompt, one string per row; None if it shows none."""
        return last_board(prompt, "".join(self.legend), self._row_texts)

    def without_boards(self, text: str) -> str:
        """The text without the rows of boards."""
        return without_rows(text, "".join(self.legend), self._row_texts)

    @property
    def _row_texts(self) -> list[str]:
        return [wording.shown["row"] for wording in self.wordings]

    def facts(self, prompt: str, pictures: Sequence[Picture] = ()) -> Facts | None:
        """Cells (row, column), from 0, of each fact in the last board of a prompt, in the last of its `pictures` if it
        has any; None if it shows no board."""
        rows = rows_of(pictures[-1].rgb, self.legend) if pictures else self.board(prompt)
        if rows is None:
            return None
        return {fact: frozenset(cells) for fact, cells in facts_of(rows, self.legend, self.nouns).items()}

    def claims(self, reasoning: str) -> list[Claim]:
        """The claims of a reasoning, in order; those in the tiny style if there are any, else those in English."""
        return self._tiny_claims(" ".join(reasoning.split())) or self._english_claims(reasoning)

    def holds(self, claim: Claim, facts: Facts) -> bool:
        """Whether the claim is true of the board."""
        cells = facts.get(claim.fact, frozenset())
        if claim.cell is not None:
            row, column = claim.cell
            return any(row in (None, at[0]) and column in (None, at[1]) for at in cells) != claim.denied
        if claim.offset is None:
            raise RuntimeError(f"{claim} has neither cell nor offset")
        starts = facts.get(claim.reference, frozenset())
        return any(claim.offset.fits(start, end) for start in starts for end in cells) != claim.denied

    def _tiny_claims(self, text: str) -> list[Claim]:
        """Every phrase with a coordinate; of overlapping phrases the longest counts."""
        pattern, names = self._phrases
        found = []
        for match in pattern.finditer(text):
            row, column = (match[match.lastgroup or 0]).split()
            found.append(Claim(names[match.lastgroup or ""], (int(row), int(column))))
        return found

    @cached_property
    def _phrases(self) -> tuple[re.Pattern[str], dict[str, str]]:
        cell = "{row} {column}"
        texts = [
            (fact, text)
            for wording in self.wordings
            for fact in self.nouns
            for text in wording.said.get(fact, ())
            if cell in text
        ]
        texts.sort(key=lambda pair: -len(pair[1]))
        names = {f"g{index}": fact for index, (fact, _) in enumerate(texts)}
        parts = [
            re.escape(text).replace(re.escape(cell), rf"(?P<g{index}>\d{{1,3}} \d{{1,3}})")
            for index, (_, text) in enumerate(texts)
        ]
        return re.compile(rf"(?<!\w)(?:{'|'.join(parts)})(?!\w)"), names

    def _english_claims(self, reasoning: str) -> list[Claim]:
        sentences = (" ".join(part.lower().split()) for part in _SENTENCE.split(reasoning.replace("\u2019", "'")))
        return [claim for sentence in sentences for claim in self._in_sentence(sentence)]

    def _in_sentence(self, sentence: str) -> Iterable[Claim]:
        """The claims of one sentence in lower case."""
        turned = False  # whether the sentence says what will or should be
        named = -1  # where the last noun ended, before any place
        fact: str | None = None  # whose offset follows
        near: str | None = None  # whose cell follows
        denied = False
        denial = listed = -1  # where the last denial, and the last place of a list, ended
        position = 0
        while match := self._words.search(sentence, position):
            position = max(match.end(), position + 1)
            if match.lastgroup == "noun":
                fact = near = self._facts_by_noun[match["noun"]]
                denied = denial >= 0 and _BEFORE_NOUN.fullmatch(sentence, denial, match.start()) is not None
                if denial >= 0 and not denied and not _ELSEWHERE.search(sentence, denial, match.start()):
                    fact = near = None
                denial = listed = -1
                named = match.end()
            elif match.lastgroup == "denial":
                denial = match.end()
            elif match.lastgroup == "other":
                fact = near = None
            elif match.lastgroup == "turn":
                fact = near = None
                denied, denial, turned = False, -1, True
            elif (end := self._subject_end(sentence, match.start(), -1 if fact is None else named)) is not None:
                claims, noun_end = self._stated(sentence, match.start(), end)
                unreal = turned or _UNREAL.search(sentence, max(0, match.start() - 200), match.start())
                if denial < 0 and not unreal:
                    yield from claims
                position = end if unreal or denial >= 0 else noun_end
                fact = near = None
                denied, denial, listed = False, -1, -1
            elif fact is not None and near is not None:
                stated = True
                if denial >= 0:
                    denied = stated = _BEFORE_PLACE.fullmatch(sentence, denial, match.start()) is not None
                elif denied and listed >= 0 and not _LIST.fullmatch(sentence, listed, match.start()):
                    denied, stated = False, _AGAIN.search(sentence, listed, match.start()) is not None
                claim, position = self._claim_at(fact, near, sentence, match.start())
                denial, listed, named = -1, position, -1
                if not stated or claim is None:
                    continue
                near = claim.reference if claim.offset is not None and claim.reference != PLAYER else claim.fact
                if claim.cell is not None or claim.fact != claim.reference:  # nothing is left or right of itself
                    yield replace(claim, denied=denied)

    def _subject_end(self, sentence: str, start: int, named: int) -> int | None:
        """Where the places that begin a clause at `start` end; None if none does, or if the place belongs to the noun
        that ended at `named` (-1: no noun)."""
        if named >= 0 and _ATTACHED.fullmatch(sentence, named, start):
            return None
        places = self._subject.match(sentence, start)
        return places.end() if places else None

    def _stated(self, sentence: str, start: int, end: int) -> tuple[list[Claim], int]:
        """The claims of a clause whose subjects are the places from `start` to `end`, and where the clause's noun ends;
        none, and `end`, if the noun does not follow at once."""
        verb = _STATING.match(sentence, end)
        noun = self._noun.match(sentence, verb.end()) if verb else None
        if not verb or not noun or _NO_NOUN.match(sentence, noun.end()):
            return [], end
        fact, denied = self._facts_by_noun[noun[0]], verb["no"] is not None
        found = [
            self._claim_at(fact, fact, sentence, at.start())[0] for at in self._place.finditer(sentence, start, end)
        ]
        claims = [claim for claim in found if claim is not None and (claim.cell is not None or fact != claim.reference)]
        return [replace(claim, denied=denied) for claim in claims], noun.end()

    def _claim_at(self, fact: str, near: str, sentence: str, start: int) -> tuple[Claim | None, int]:
        """The claim whose cell (of `near`) or offset (of `fact`) begins at `start`, and where it ends. No claim if the
        words around make the place uncertain."""
        before = sentence[max(0, start - 40) : start]
        if cell := _CELL.match(sentence, start):
            row, column = (
                next((int(cell[f"{axis}{form}"]) for form in "1234" if cell[f"{axis}{form}"]), None) for axis in "rc"
            )
            return None if _UNSURE_CELL.search(before) else Claim(near, (row, column)), cell.end()
        found = _OFFSET.match(sentence, start)
        if found is None:
            raise RuntimeError(f"no place begins at {start} in {sentence!r}")
        noun = self._noun.match(sentence, found.end())
        end = noun.end() if noun else found.end()
        reference = self._facts_by_noun[noun[0]] if noun else PLAYER
        first, second = found.groups()[:7], found.groups()[7:]
        if noun and first[0] and not any(second) and (more := _SECOND.match(sentence, end)):
            end, second = more.end(), (*more.groups(), None, None, None, None)
        # "the" before an unknown noun: the offset starts from something that is not judged.
        from_unknown = not noun and found[0].endswith(" the ")
        if from_unknown or _UNSURE_OFFSET.search(before) or _UNSURE_AFTER.match(sentence, end):
            return None, end
        if first[0] and _UNSURE_SIDE.match(sentence, end):
            return None, end
        offset = _offset((*first, *second))
        return None if offset is None else Claim(fact, None, offset, reference), end

    @cached_property
    def _facts_by_noun(self) -> dict[str, str]:
        return {noun: fact for fact, nouns in self.nouns.items() for noun in nouns}

    @cached_property
    def _noun(self) -> re.Pattern[str]:
        nouns = sorted(self._facts_by_noun, key=len, reverse=True)
        return re.compile(rf"\b(?:{'|'.join(map(re.escape, nouns))})\b")

    @cached_property
    def _place(self) -> re.Pattern[str]:
        return re.compile(f"{re.sub(r'[?]P<[a-z][0-9]>', '?:', _CELL.pattern)}|{_uncaptured(_OFFSET.pattern)}")

    @cached_property
    def _subject(self) -> re.Pattern[str]:
        """Places that a verb follows at once, and that therefore begin a clause."""
        place = f"(?>{self._place.pattern})"
        listed = rf"(?>(?:(?: ?,)?(?: and| or| nor)? (?:at |in )?{place}){{1,8}})"
        return re.compile(rf"{place}(?:(?={_VERB})|{listed}(?={_PLURAL}))")

    @cached_property
    def _words(self) -> re.Pattern[str]:
        """All that matters in a sentence, in order of precedence."""
        return re.compile(
            rf"(?P<noun>{self._noun.pattern})|(?P<place>{self._place.pattern})|(?P<denial>{_DENIAL.pattern})|(?P<turn>{_TURN.pattern})"
            rf"|(?P<other>{_OTHER.pattern})"
        )


def _uncaptured(pattern: str) -> str:
    """The pattern without capturing groups."""
    return re.sub(r"(?<!\\)\((?!\?)", "(?:", pattern)


def _offset(groups: Sequence[str | None]) -> Offset | None:
    """The offset of one or two matched pieces: (count, word, side, directly, word, side, side) each. None if both
    pieces are rows, or both columns."""
    rows: int | None = None
    columns: int | None = None
    exact: set[bool] = set()
    for count, *words, directly, vague, side, other in (groups[:7], groups[7:]):
        word = next((word for word in (*words, vague, side, other) if word), None)
        if word is None:
            continue
        size = (_NUMBERS.get(count) or int(count)) if count else 1
        exact.add(bool(count or directly))
        is_row = word in ("up", "above", "north", "down", "below", "south")
        if (rows if is_row else columns) is not None:
            return None
        if is_row:
            rows = size if word in ("down", "below", "south") else -size
        else:
            columns = size if word in ("right", "east") else -size
    # "Above me and 2 columns to the right" says no number of rows, so only its directions are judged.
    return Offset(rows, columns, exact == {True})
