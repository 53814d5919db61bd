"""Precision and recall of the judges on 100 reasonings of SmolLM2-135M-Instruct that were labelled by hand.

python -m research.judge [--quick] [--json] [--sample MODEL_FOLDER --write FILE]

A claim is found if judge and reader state the same claim; `same verdict` is the share of those on whose truth they
agree. `right` is the share of reasonings with a claim and none that is false, by the reader; its precision and recall
are the judge's. The reasonings, their states and the labels are in research/judge/labelled.json. `--sample`
writes fresh reasonings of a model as JSON, to be labelled.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from dataclasses import asdict
from pathlib import Path

from benchmarks.common import print_figures
from research.judge.measure import counted, labelled

SAMPLES = 34


def main() -> None:
    """Prints the figures, or writes fresh reasonings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the same: it takes a second")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument("--sample", metavar="MODEL_FOLDER", help="sample fresh reasonings of this model instead")
    parser.add_argument("--write", metavar="FILE", type=Path, default=Path("sampled.json"), help="their file")
    arguments = parser.parse_args()
    if arguments.sample:
        from research.judge.sample import sampled  # imports vLLM

        fresh = asyncio.run(sampled(arguments.sample, SAMPLES))
        arguments.write.write_text(json.dumps([asdict(one) for one in fresh], indent=1) + "\n")
        return
    reasonings = labelled()
    names = sorted({one.environment for one in reasonings})
    found = {name: counted([one for one in reasonings if one.environment == name]).figures() for name in names}
    found["all"] = counted(reasonings).figures()
    rows = [[key, *(found[name][key] for name in found)] for key in found["all"]]
    print_figures({"judge": found}, arguments.json, ("", *found), rows, [])


if __name__ == "__main__":
    main()
