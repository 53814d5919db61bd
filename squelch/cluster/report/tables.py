"""The paper's Tables 4 and 5 from runs, with the paper's numbers beside them, and what the filter saved. Pure.

`squelch.cluster.runs.peak` defines the columns of a run. The gain is the peak minus that of the arm without filter and
with the same other settings, seed by seed.

Intervals are 95% t-intervals over seeds.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from squelch.cluster.presets import preset_names, settings_of
from squelch.cluster.report.points import with_interval
from squelch.cluster.report.runs import Arm, Run, Study, filter_label
from squelch.cluster.runs.peak import COLLAPSE, SUCCESS, Peak, peak_of
from squelch.cluster.runs.savings import Savings, filter_savings
from squelch.cluster.setting_keys import OBSERVATION, PICTURED, flat, of_each
from squelch.cluster.sweep.table import OF_THE_FILTER, text
from squelch.kit.filter.settings import FilterConfig
from squelch.kit.process.terminal import UNKNOWN, aligned
from squelch.kit.untrusted.text import own_yaml

_READ: Any = own_yaml(Path(__file__).with_suffix(".yaml"))
TASKS: Sequence[str] = _READ["tasks"]
TABLE_4: Mapping[tuple[str, str], Sequence[tuple[float, float]]] = {
    (algorithm, model): [(peak, gain) for peak, gain in cells] for algorithm, model, *cells in _READ["table_4"]
}
"""Percent of the baseline's peak and the filter's gain, by algorithm and model, for each of `TASKS`."""
MODALITY = "Qwen2.5-VL-3B-Instruct"
TABLE_4_MODALITY: Mapping[bool, Mapping[str, tuple[float, float]]] = {False: _READ["text"], True: _READ["pictures"]}
"""The same of `MODALITY`, by whether pictures take the place of text."""
TABLE_5: Mapping[tuple[str, Any, str, str], Sequence[Any]] = {tuple(row[:4]): row[4:] for row in _READ["table_5"]}
"""Peak success, retrieval, entropy, stable, by rule, rho, statistic and side."""
OF_TABLE_5 = ("filter.rule", "filter.rho", "filter.statistic", "filter.keep")
SAVINGS: Mapping[str, tuple[str, int, str]] = _READ["savings"]
"""Title, digits and sign of each column of the last table."""


def table_4(study: Study) -> list[list[str]]:
    """A row for each arm: its peak, and beside a filter its gain over the arm that differs in the filter alone."""
    rows = [["task", "algorithm, model", "filter", "seeds", "peak %", "step", "gain", "paper: peak % (gain)"]]
    bases = {_but_filter(arm): arm for arm in study.arms if not arm.filtered}
    for arm in study.arms:
        cells, base = _cells(arm), bases.get(_but_filter(arm))
        gains = _gains(cells, _cells(base)) if base is not None and arm.filtered else []
        steps = [cell.step for cell in cells.values() if cell.step is not None]
        rows.append(
            [
                arm.environment,
                f"{_algorithm(arm)}, {_model(arm)}",
                filter_label(arm.settings, [other.settings for other in study.environments[arm.environment]]),
                str(len(arm.runs)),
                _percent([cell.success for cell in cells.values()]),
                f"{statistics.fmean(steps):.0f}" if steps else UNKNOWN,
                _percent(gains, "+") if gains else "",
                _paper_4(arm),
            ]
        )
    return rows


def table_5(study: Study) -> list[list[str]]:
    """A row for each arm: peak success, and retrieval and entropy where it peaks; whether success ever vanished."""
    rows = [["task", "arm", "seeds", "peak", "MI", "entropy", "stable", "paper: peak, MI, entropy, stable"]]
    for arm in study.arms:
        cells = list(_cells(arm).values())
        known = [cell.stable for cell in cells if cell.stable is not None]
        means = [[getattr(cell, name) for cell in cells] for name in ("success", "retrieval", "entropy")]
        stable = f"{sum(known)} of {len(known)}" if known else UNKNOWN
        row = [arm.environment, arm.label, str(len(arm.runs)), *(text(with_interval(own)) for own in means), stable]
        rows.append([*row, _paper_5(arm)])
    return rows


def table_of_savings(study: Study) -> list[list[str]]:
    """A row for each arm: means a run of what its filter saved and cost, and the gain for what was learned from."""
    rows = [["task", "arm", "seeds", *(title for title, _, _ in SAVINGS.values())]]
    for arm in study.arms:
        found = [_savings(run) for run in arm.runs]
        means = [_in(digits, sign, [own.get(key) for own in found]) for key, (_, digits, sign) in SAVINGS.items()]
        rows.append([arm.environment, arm.label, str(len(arm.runs)), *means])
    return rows


def _savings(run: Run) -> Savings:
    """As `filter_savings`, with the run's last validation minus its first as the gain."""
    validated = list(run.series(SUCCESS).values())
    return filter_savings(run.lines, validated[-1] - validated[0] if len(validated) > 1 else None)


def lines(study: Study) -> list[str]:
    """The tables as text, and what their columns mean."""
    return [
        "Table 4: peak success",
        *aligned(table_4(study)),
        "",
        "Table 5: where success peaks",
        *aligned(table_5(study)),
        "",
        "What the filter saves, a run",
        *aligned(table_of_savings(study)),
        "",
        "mean [95% t-interval over seeds]; no interval from one seed. peak: largest validation success after step 0. "
        "gain: over the arm that differs in the filter alone, seed by seed. MI: retrieval accuracy of the first turn, "
        "entropy: H(Z|X) in nats per token, at the last scorer step up to the peak. stable: success never below "
        f"{COLLAPSE:g}.",
        "paper: Tables 4 and 5 of RAGEN-2, which states neither seeds nor intervals: Qwen2.5-3B unless the run's model "
        "has a row there; Table 5 is of Sokoban. A filter has a number if it is that of preset=paper or "
        "preset=published, in Table 5 but for rule, rho, statistic and side; a run on pictures if its model has one.",
        "training seconds saved: those of a trained token, times the tokens not trained on; rollout seconds lost: by "
        "the share of groups not learned from; gain: last validation minus the first, for 100 groups or updates.",
        *study.notes,
    ]


def _cells(arm: Arm) -> dict[int, Peak]:
    return {run.seed: peak_of(run.lines) for run in arm.runs}


def _but_filter(arm: Arm) -> tuple[str, str]:
    return arm.environment, arm.without(OF_THE_FILTER)


def _gains(own: Mapping[int, Peak], base: Mapping[int, Peak]) -> list[float | None]:
    pairs = [(cell.success, base[seed].success) for seed, cell in own.items() if seed in base]
    return [peak - other for peak, other in pairs if peak is not None and other is not None]


def _percent(values: Sequence[float | None], sign: str = "") -> str:
    return _in(1, sign, [None if value is None else 100 * value for value in values])


def _in(digits: int, sign: str, values: Sequence[float | None]) -> str:
    """Mean and interval with so many digits."""
    found = with_interval(values)
    if found["mean"] is None:
        return UNKNOWN
    mean, low, high = (found[name] for name in ("mean", "low", "high"))
    form = f"{sign}.{digits}f"
    return f"{mean:{form}}" if low is None else f"{mean:{form}} [{low:{form}}, {high:{form}}]"


def _algorithm(arm: Arm) -> str:
    return str(arm.settings.get("learner.algorithm", UNKNOWN))


def _model(arm: Arm) -> str:
    return Path(str(arm.settings.get("model.path", UNKNOWN)).split("@")[0]).name


def _pictures(arm: Arm) -> bool:
    """Whether the run's prompts hold pictures."""
    return any(shown in PICTURED for shown in of_each(arm.settings, OBSERVATION))


def _paper_4(arm: Arm) -> str:
    """The paper's cell of this algorithm and model, else of this algorithm on the paper's first model."""
    if arm.environment not in TASKS or (arm.filtered and not _is_the_papers(arm)):
        return ""
    if (cell := _cell_4(arm)) is None:
        return ""
    peak, gain = cell
    return f"{peak + gain:.1f} ({gain:+.1f})" if arm.filtered else f"{peak:.1f}"


def _cell_4(arm: Arm) -> tuple[float, float] | None:
    """Percent of the baseline's peak and the filter's gain in the paper's row."""
    algorithm, model = _algorithm(arm), _model(arm)
    if model == MODALITY and "both" not in of_each(arm.settings, OBSERVATION):
        return TABLE_4_MODALITY[_pictures(arm)].get(arm.environment)
    row = TABLE_4.get((algorithm, model)) or TABLE_4.get((algorithm, "Qwen2.5-3B"))
    return None if row is None or _pictures(arm) else row[TASKS.index(arm.environment)]


def _paper_5(arm: Arm) -> str:
    rule, *rest = (arm.settings.get(key) for key in OF_TABLE_5)
    if arm.environment != "Sokoban" or _pictures(arm) or (arm.filtered and not _is_the_papers(arm, OF_TABLE_5)):
        return ""
    form = "top_p" if rule == "top_p_softmax" else rule
    keys = [(form, *rest), ("", None, *rest[1:])] if arm.filtered else [("none", None, "", "")]
    found = next((TABLE_5[key] for key in keys if key in TABLE_5), None)
    return "" if found is None else f"{found[0]:.2f}, {found[1]:.2f}, {found[2]:.2f}, {'yes' if found[3] else 'no'}"


def _is_the_papers(arm: Arm, but: Sequence[str] = ()) -> bool:
    """Whether a preset, which says what the paper or its authors' scripts set, has the arm's filter, some settings
    aside."""
    own, aside = _selection(arm.settings), {key: arm.settings[key] for key in but if key in arm.settings}
    presets = _filters_of_presets("picture" if _pictures(arm) else "grid")
    return own is not None and own in [_selection({**filter_of, **aside}) for filter_of in presets]


@cache
def _filters_of_presets(observation: str) -> list[dict[str, Any]]:
    """The filter of each preset for runs that are shown a board so."""
    run = {"environment": {"options": {"observation_format": observation}}}
    return [flat({"filter": settings_of(name, run)["filter"]}) for name in preset_names()]


def _selection(settings: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """All that decides which groups a filter drops, and from what; None for settings that this release refuses."""
    given = {key.removeprefix("filter."): value for key, value in settings.items() if key.startswith("filter.")}
    try:
        own = FilterConfig.model_validate(given)
    except ValidationError:
        return None
    trains_on_none = own.on_no_signal == "passthrough"
    return own.describe(), own.target, own.refill, own.kind_floor, own.min_groups, trains_on_none
