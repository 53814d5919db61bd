"""Writes slow.txt, the tests that `make check` leaves out: `python -m tests.slow JUNIT.xml ...`.

The files are what `make test ARGS=--junitxml=JUNIT.xml` left, or `make check` likewise; a test has the time of the last
file that has it. The slowest go, a function with all of its parameters at once, until the others took BUDGET_S seconds
together."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree

LISTED = Path(__file__).parent / "slow.txt"
BUDGET_S = 40.0
CHECKED = ("-m", "not ray and not slow", "--ignore=tests/research")


def slowest(seconds: dict[str, float], budget_s: float) -> list[str]:
    """The tests to leave out, sorted, so that the others take `budget_s` seconds together."""
    left, out = sum(seconds.values()), list[str]()
    for name in sorted(seconds, key=lambda name: -seconds[name]):
        if left <= budget_s:
            break
        left -= seconds[name]
        out.append(name)
    return sorted(out)


def main() -> None:
    """Reads the times, asks pytest what `make check` would run without the list, and writes the list."""
    LISTED.write_text("")
    collect = [sys.executable, "-m", "pytest", "--collect-only", *CHECKED]
    ids = subprocess.run(collect, capture_output=True, text=True, check=True).stdout.splitlines()
    checked = {line.partition("[")[0] for line in ids if "::" in line}
    seconds = dict[str, float]()
    for file in sys.argv[1:]:
        own = Counter[str]()
        for case in ElementTree.parse(file).iter("testcase"):
            name = f"{case.attrib['classname'].replace('.', '/')}.py::{case.attrib['name'].partition('[')[0]}"
            own[name] += float(case.attrib["time"])
        seconds |= {name: own[name] for name in own.keys() & checked}
    LISTED.write_text("".join(f"{name}\n" for name in slowest(seconds, BUDGET_S)))


if __name__ == "__main__":
    main()
