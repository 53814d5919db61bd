"""Precision and recall of the judges on 100 reasonings of SmolLM2-135M-Instruct that were labelled by hand.

python -m benchmarks.judge [--quick] [--json] [--sample MODEL_FOLDER]

A claim is found if judge and reader state the same claim; `same verdict` is the share of those on whose truth they
agree. `right` is the share of reasonings with a claim and none that is false, by the reader; its precision and recall
are the judge's. The reasonings, their states and the labels are in benchmarks/judge/labelled.json. `--sample` prints
fresh reasonings of a model as JSON, to be labelled.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict

from benchmarks.common import print_figures
from benchmarks.judge.measure import counted, labelled

SAMPLES = 17


def main() -> None:
    """Prints the figures, or fresh reasonings."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the same: it takes a second")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of the table")
    parser.add_argument("--sample", metavar="MODEL_FOLDER", help="print fresh reasonings of this model instead")
    arguments = parser.parse_args()
    if arguments.sample:
        from benchmarks.judge.sample import ENVIRONMENTS, TEMPERATURES, Sampler  # imports torch

        sampler = Sampler(arguments.sample)
        cases = [(name, k) for name in ENVIRONMENTS for k in range(len(TEMPERATURES))]
        fresh = [one for name, k in cases for one in sampler.sample(name, TEMPERATURES[k], SAMPLES * k, SAMPLES)]
        json.dump([asdict(one) for one in fresh], sys.stdout, indent=1)
        return
    reasonings = labelled()
    names = sorted({one.environment for one in reasonings})
    found = {name: counted([one for one in reasonings if one.environment == name]).figures() for name in names}
    found["all"] = counted(reasonings).figures()
    rows = [[key, *(found[name][key] for name in found)] for key in found["all"]]
    print_figures({"judge": found}, arguments.json, ("", *found), rows, [])


if __name__ == "__main__":
    main()
