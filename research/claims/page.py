"""docs/research/claims.md and the printed table, made from the judged claims."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from benchmarks.common import markdown_table
from research.claims.table import NOT_COVERED
from research.claims.verdict import Verdict
from research.judging import PAGES
from research.kept import Kept, caveats

PAGE = PAGES / "claims.md"
COLUMNS = ("claim", "where", "statistic", "claimed", "found [95%]", "runs", "verdict")
VERDICTS = get_args(Verdict)
HEAD = """# The paper's claims at this scale

`python -m research.claims --write` generates this page from `research/results/claims.parquet`; do not edit it.

Each row is one claim of a figure, table or section of the RAGEN-2 paper, or of this project where the paper is
silent. Cells, statistics and claimed regions were fixed before the first run (`research/claims/table.py`).
The runs are ordinary `squelch train` runs of the embedded tiny policy of 0.8 M parameters on two CPU cores. A claim
that fails here may hold for a model of billions of parameters, and the reverse.

- **holds**: the whole 95% interval lies in the claimed region. **fails**: the whole interval lies outside it, or, in a
  row that says "by 0.03 to matter", the whole interval lies below 0.03 and reaches 0 or less, because an effect that
  matters is then excluded. **cannot be told**: neither, or fewer runs than the claim asks
  for (3 seeds, 5 where it matters most).
  **not run**: no seed has all the runs that it needs.
- Intervals are t-intervals over seeds; differences are paired by seed, whose cells play the same tasks. Rates have
  Wilson's interval. Both runs of a pair start from the same weights if they were made with one warm-up. Where they were
  not, the fixed probe or the success before training differs, and a note counts those seeds; their differences also
  hold the difference of the warm-ups.
- A claim about 60 or 180 steps also counts the longer runs of its arm, up to that step: for Sokoban five runs of 180
  steps and three of 300 on each side, so eight pairs. [findings.md](findings.md) gives the five alone.
- t-intervals of correlations may reach beyond -1 and 1.
- Rank correlations over a few arms have few possible values. Their interval is never narrower than that of correlations
  of so many arms, and it holds 0 unless an exact test tells their mean from that of random orders.
- Many claims are tested: of 20 intervals one misses its value by chance. Several claims read the same runs: success of
  the lead, of Figure 6 and of Table 4 (GRPO) on Sokoban comes from the same pairs. So the counts of verdicts below are
  no counts of independent findings.
- A claim is judged again whenever one of its runs is done, from 3 or 5 seeds on. A verdict over fewer runs than are
  planned may change; only the last one has the error of a single 95% interval.
- All runs of one environment with the same options start from one warmed-up policy. The intervals cover other tasks and
  samples, not other warm-ups ([findings.md](findings.md) has two that differ by 0.06 of success).
- Figure 9: the paper shows medians of success; the rows here are means over seeds. At each noise level the policy was
  warmed up under that noise, so the levels differ before training. At step 0, H(Z|X) of the fixed probe is 0.776 nats
  at 0.8 and 0.823 at 1 in the runs without a filter, on the same tasks and higher at 1 in all five seeds. The rank
  correlations with the level therefore show the effect of warm-up and training together, while the paper starts every
  level from the same model. The runs of two arms at one level do not always share a warm-up either; their rows count
  the seeds for which that is so.
- Figure 8: with six arms and three seeds an interval is never narrower than 1.1 (1 - r^2) on either side, r being the
  mean correlation. So "above 0" needs r of about 0.65 and "below 0.2" about -0.57, and at the paper's own correlations
  (0.39, -0.14) neither row could be told. Section 4.2: with fewer than four runs no outcome could be told from half.
- The best validation after step 0 leaves out the policy before training, which several unfiltered runs of Sokoban never
  reach again. Counted with it the filter's gain in peak success there is smaller: for GRPO 0.08 instead of 0.14.
- A change from the beginning starts from the mean over the first fifth of a run. A fall within that fifth, such as the
  early one of MI in Figure 5b, counts only in part; the fixed probe's changes start before training.

These were added or changed after the first run:

- "MI declines before success does", after one run of it had been seen. MI is scored at step 1 and every 10 steps, and a
  fall needs two means of three scorings, so the earliest warning comes at step 30, with the first validation. A run
  whose success falls there could never count as warned, whatever its MI did; so it tells nothing about the order. Such
  runs are now left out and counted; before, they counted against the claim. MI that was never above 0 cannot fall;
  before, a constant MI below 0 counted as a warning. No run so far has such MI.
- "With the filter the answer follows more from the reasoning" was suggested by the ten runs of the lead. It was added
  before any run of 300 steps, whose seeds are others, and is judged on those alone.
- "The reasoning becomes less true than it was at first", in the same way. The statistic that was fixed beforehand
  starts from the mean over the first fifth of a run, and most of the fall lies before its end: on the lead's runs the
  share fell by 0.178 [0.087, 0.270] since the first scoring without the filter, and by 0.183 [0.065, 0.301] with it.
- "Where reward variance is low, the regularisers dominate the update" (section 3.1; the caption of Figure 3 says the
  reverse) had been overlooked. It was added after four of its six runs.
- Figure 8: the correlation was over all runs, of which those of one seed are not independent. Figure 13, what entropy
  and KL move: absolute differences of single seeds grew with noise alone. Both were changed when the runs with an
  entropy bonus or KL, without which neither can be judged, were still to be made.
- Figures 10 and 11: two rows were named "keeps less and less" and "collapses late". Their statistic, end minus
  beginning, does not tell the course in between, so the rows now say only what it tells.
- Figure 3a's rows did not say which advantage they measure. It is R - mean R (section 3.2), under every algorithm, and
  with it the norm grows with the standard deviation of the reward by itself. GRPO divides by that. Divided bucket by
  bucket, which is only nearly GRPO's gradient, the same runs give a rank correlation of 0.56 [-0.09, 1.22] and a log
  ratio of 0.15 [-0.11, 0.41], of which neither could be told from 0. So the two rows "as GRPO divides" were added, and
  the runs of GRPO made again on the same seeds, with the norm of the divided gradient kept. It hardly grows.
- After the runs of Sokoban's 300 steps had been seen: runs without any spread whose value is the bound itself counted
  as neither in the region nor outside; they are outside. This changed one verdict, of Figure 10, to "fails".
- Table 4: rows whose gain in the paper is below 0.03 have no tolerance any more, because an estimate that holds the
  paper's figure could have failed. Countdown's row of GRPO and Figure 9's with the filter had been overlooked. The row
  of Dr. GRPO on Sokoban says that the paper's cell is a loss. Table 5: `reward_sum` is compared under top_k, because
  top_p refuses negative sums. No verdict was affected: none of these rows had three seeds.
- A reviewer who read the page with its first 61 runs found these. Figures 5a and 6 had the tolerance of 0.03 also on
  FrozenLake and Countdown, where the gain of the paper's Table 4 is smaller; without it two rows are no longer "fails"
  but cannot be told. Figure 9, "The gap closes", held where no gap is left, whether or not there ever was one; those
  rows now say so, and a new one compares the levels. Figure 12, "Validity is near perfect also where MI is lowest",
  held in runs whose MI was never low; it now reads only runs whose retrieval fell below twice chance. Runs of two
  warm-ups whose success before training happened to be equal counted as alike; the fixed probe tells them apart.
- Figure 12 left the first scoring out, and Table 5 took MI and entropy at the end instead of when success is best as
  the paper does. Both were changed before any of their runs.
"""


def cells(row: Mapping[str, Any]) -> list[str]:
    """The printed cells of a judged claim."""
    says = f"{row['source']}: {row['says']}"
    return [says, row["where"], row["statistic"], row["claimed"], _found(row), str(row["runs"]), row["verdict"]]


def _found(row: Mapping[str, Any]) -> str:
    note = f" ({row['note']})" if row["note"] else ""
    if row["mean"] is None:
        return f"-{note}"
    if row["low"] is None:
        return f"{row['mean']:.3f}{note}"
    return f"{row['mean']:.3f} [{row['low']:.3f}, {row['high']:.3f}]{note}"


def counted(rows: Sequence[Mapping[str, Any]]) -> str:
    """How many claims have each verdict."""
    count = Counter(row["verdict"] for row in rows)
    return ", ".join(f"{name}: {count[name]}" for name in VERDICTS)


def markdown(rows: Sequence[Mapping[str, Any]], runs: Sequence[Kept]) -> str:
    """The page's text."""
    lines = [HEAD, f"All {len(runs)} planned runs are done. Of {len(rows)} claims: {counted(rows)}.", ""]
    lines += [line for note in caveats(runs) for line in (f"{note}.", "")]
    lines += _done(runs)
    lines += ["## The claims", ""]
    lines += markdown_table(COLUMNS, ([cell.replace("|", "\\|") for cell in cells(row)] for row in rows))
    lines += ["", "## Parts of the paper that no row covers", ""]
    lines += [f"- {source}: {why}" for source, why in NOT_COVERED.items()]
    return "\n".join(lines) + "\n"


def _done(runs: Sequence[Kept]) -> list[str]:
    """A table of the parts of the study and their runs."""
    lines = ["| part | recipes | runs |", "|---|---|---|"]
    for part, number in Counter(run.part for run in runs).items():
        recipes = ", ".join(sorted({run.recipe for run in runs if run.part == part}))
        lines.append(f"| {part} | {recipes} | {number} |")
    return [*lines, ""]
