"""Writes docs/reference/schema.md from the schema: `python -m docs.writers.schema`."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa

from benchmarks.common import markdown_table
from squelch.kit.archive.schema import TABLES
from squelch.kit.archive.version import READ_BY, VERSION, VERSION_KEY

PAGE = Path(__file__).resolve().parents[1] / "reference" / "schema.md"

HEAD = f"""\
# The archive's schema

A run's groups are in `groups/step-NNNNNN.parquet`, one row per trajectory, and in `groups/index-NNNNNN.parquet`, one
row per group for a hundred steps. Both have **schema {VERSION}**: the metadata of their Parquet schema contains
`{VERSION_KEY} = {VERSION}`. `metrics.parquet` states the version in the same way, `summary.json` under `schema`.
`python -m docs.writers.schema` writes this page from `squelch/kit/archive/schema.csv`.

- Schema 1 lacks the column `segments` and is read too: its trajectories are one segment each. A file of another schema
  is refused with its name; the version of Squelch that wrote it reads it.
- A file that states no version, as another trainer may write it, is read as schema {VERSION}. Files of runs from before
  schema 1 state none either; they lack columns and are refused. Commit {READ_BY} of Squelch reads them.
- A nullable column may be missing from a file; it is then read as null. Every other column is required.
- After every hundred steps their files are merged into one of the same columns, e.g.
  `groups/steps-000100-000199.parquet`, each row group of one step. `squelch` reads both; other programs read
  `groups/step*.parquet`. During a merge, and from a kill in it until the run is resumed, they may see a row in two
  files; `step`, `group_id` and `trajectory` name a row.
- Positions count from 0 and ends are exclusive. Lists have one entry per token, per turn, or per trajectory.
"""

SCORES = """\
One row of `scores/step-NNNNNN.parquet`, which each scorer step writes: the score matrices that the mutual-information
metrics were computed from, at most 1 MiB. The texts are in the step's part, at the group, trajectory and turn that the
row names. `squelch.policy_version` in the metadata is the policy version of the scorer's weights. A matrix of more
pairs than fit keeps evenly spaced reasonings. A merged file, e.g. `scores/steps-000100-000195-8421....parquet`, has two
more columns, `step` and `policy_version`; the last number of its name is a hexadecimal mask of its steps, counted from
the first, if there are gaps."""


def page() -> str:
    """The page's text."""
    parts = [
        HEAD,
        _section("A trajectory", "One row of `groups/step-NNNNNN.parquet`.", "trajectory"),
        _section("The filter's decision", "Further columns of the same row, equal within a group.", "decision"),
        _section("A turn", "One entry of `turns`.", "turn"),
        _section(
            "A segment",
            "One entry of `segments`. A trajectory is one or more append-only sequences, each of which sees only its "
            "own ids; the first begins at position 0.",
            "segment",
        ),
        _section(
            "An untrained conversation",
            "One entry of `untrained`: calls of an agent, and what they continued, under one history.",
            "untrained",
        ),
        _section("A version span", "One entry of `version_spans`. A turn may have several.", "version_span"),
        _section("A picture", "One entry of `pictures`.", "picture"),
        _section("A group in the index", "One row of `groups/index-NNNNNN.parquet`.", "index"),
        _section("A scored pair", SCORES, "score"),
    ]
    return "\n".join(parts)


def _section(title: str, about: str, table: str) -> str:
    rows = (
        (f"`{c.name}`", _type(c.type), c.unit or "-", "yes" if c.nullable else "no", c.meaning) for c in TABLES[table]
    )
    lines = markdown_table(("column", "type", "unit", "nullable", "meaning"), rows)
    return "\n".join([f"## {title}", "", about, "", *lines, ""])


def _type(kind: pa.DataType) -> str:
    if pa.types.is_list(kind):
        return f"list of {_type(kind.value_type)}"
    return "struct" if pa.types.is_struct(kind) else str(kind)


def main() -> None:
    """Writes the page."""
    PAGE.write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
