"""Precision and recall of the judges against reasonings that were labelled by hand.

A label is one claim that a reader found in a reasoning, in the notation of `written`, and whether it is true. The
reader saw the text alone, not what the judge found in it.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from squelch.envs.countdown.claims import Given, Sum, Target, Uses
from squelch.envs.grid_worlds.claims import Claim
from squelch.envs.registry import judge_of
from squelch.kit.diagnosis.grounding import right

LABELLED = Path(__file__).parent / "labelled.json"


@dataclass(frozen=True)
class Labelled:
    """One reasoning of a model, and the claims that a reader found: (claim, whether it is true)."""

    environment: str
    state: str
    reasoning: str
    claims: tuple[tuple[str, bool], ...]


def labelled(path: Path = LABELLED) -> list[Labelled]:
    """The labelled reasonings of a file."""
    return [
        Labelled(
            one["environment"],
            one["state"],
            one["reasoning"],
            tuple((text.removesuffix("!"), not text.endswith("!")) for text in one["claims"]),
        )
        for one in json.loads(path.read_text())["reasonings"]
    ]


def metrics_of(reasonings: Sequence[Labelled]) -> dict[str, float]:
    """Counts, and shares in [0, 1]; NaN where there is nothing to count."""
    total: Counter[str] = Counter()
    for one in reasonings:
        total.update(counts_of(one))
    return {
        "reasonings": len(reasonings),
        "claims": total["read"],
        "precision": _share(total["both"], total["found"]),
        "recall": _share(total["both"], total["read"]),
        "same_verdict": _share(total["agreed"], total["both"]),
        "right": _share(total["right"], len(reasonings)),
        "right_precision": _share(total["both_right"], total["judged_right"]),
        "right_recall": _share(total["both_right"], total["right"]),
    }


def counts_of(one: Labelled) -> dict[str, int]:
    """Of one reasoning: claims that the reader read, that the judge found, that both did, and of these the ones with
    the same verdict; and whether it has a claim and none that is false, by the reader, the judge, and both."""
    judge = judge_of(one.environment)
    if judge is None:
        raise ValueError(f"{one.environment} has no judge")
    facts, claims = judge.facts(one.state), judge.claims(one.reasoning)
    found = Counter((written(claim), judge.holds(claim, facts)) for claim in claims)
    read = Counter(one.claims)
    texts, others = _texts(found), _texts(read)
    is_right, judged = bool(one.claims) and all(true for _, true in one.claims), right(judge, claims, facts)
    return {
        "read": read.total(),
        "found": found.total(),
        "both": (texts & others).total(),
        "agreed": (found & read).total(),
        "right": is_right,
        "judged_right": judged,
        "both_right": is_right and judged,
    }


def _texts(claims: Counter[tuple[str, bool]]) -> Counter[str]:
    found: Counter[str] = Counter()
    for (text, _), count in claims.items():
        found[text] += count
    return found


def written(claim: Any) -> str:
    """A claim in short notation, without regard to its truth.

    `goal 0 3` (a cell; `goal ? 3`: its column), `goal -1 +2 from player` (rows and columns, exactly), and
    `goal - ? from player` (a direction),
    `no hole 1 2`; `12 / 6 = 2` and `12 / 6 != 3` by value (`2 = 2`), `uses 6 12`, `given 6 9 12`, `target 7`.
    """
    match claim:
        case Claim():
            return _written_place(claim)
        case Sum():
            return f"{_number(claim.left)} {'!=' if claim.denied else '='} {_number(claim.right)}"
        case Uses():
            return f"uses {_numbers(claim.numbers)}"
        case Given():
            return f"given {_numbers(claim.numbers)}"
        case Target():
            return f"{'no ' if claim.denied else ''}target {_number(claim.value)}"
        case _:
            raise TypeError(f"no notation for {claim!r}")


def _written_place(claim: Claim) -> str:
    denied = "no " if claim.denied else ""
    if claim.cell is not None:
        row, column = ("?" if part is None else part for part in claim.cell)
        return f"{denied}{claim.fact} {row} {column}"
    if claim.offset is None:
        raise TypeError(f"{claim!r} has neither cell nor offset")
    way = [_way(count, claim.offset.exact) for count in (claim.offset.rows, claim.offset.columns)]
    return f"{denied}{claim.fact} {' '.join(way)} from {claim.reference}"


def _way(count: int | None, exact: bool) -> str:
    if count is None:
        return "0" if exact else "?"
    return f"{count:+d}" if exact else "+" if count > 0 else "-"


def _number(value: Fraction | None) -> str:
    return "?" if value is None else str(value)


def _numbers(numbers: Iterable[int]) -> str:
    return " ".join(map(str, sorted(numbers)))


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
