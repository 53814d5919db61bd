"""Precision and recall of the judges on 100 reasonings of SmolLM2-135M-Instruct that were labelled by hand.

python -m research.judge [--quick] [--json]

A claim is found if judge and reader state the same claim; `same verdict` is the share of those on whose truth they
agree. `right` is the share of reasonings with a claim and none that is false, by the reader; its precision and recall
are the judge's. The reasonings, their states and the labels are in research/judge/labelled.json. The rollout engine
sampled them at two temperatures, each after three demonstrated turns of other tasks.
"""

from __future__ import annotations

from benchmarks.common import arguments, print_metrics
from research.judge.measure import labelled, metrics_of


def main() -> None:
    """Prints the metrics."""
    given = arguments(__doc__, "the same: it takes a second")
    reasonings = labelled()
    names = sorted({one.environment for one in reasonings})
    found = {name: metrics_of([one for one in reasonings if one.environment == name]) for name in names}
    found["all"] = metrics_of(reasonings)
    rows = [[key, *(found[name][key] for name in found)] for key in found["all"]]
    print_metrics({"judge": found}, given.json, ("", *found), rows, [])


if __name__ == "__main__":
    main()
