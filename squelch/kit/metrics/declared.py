"""Reads a component's metrics from the YAML file beside its module, which has the module's name.

    Where time goes:                    # a section, one of `Section`
      squelch_learner_part_seconds:     # `..._total` is a counter; others are gauges, or with buckets histograms
        key: learner_seconds/{part}
        help: Seconds of each part of the learner's last step
        labels: {part: PARTS}           # a name that the module passes to `declared`
        open: true

A metric may have these fields, and no others:

    help      what it means, for Prometheus and docs/reference/metrics.md
    key       the flat key that feeds it, with `{label}` in place of a label's value; none if it is set by name
    keys      instead of `key`, flat keys that follow no pattern: `{label: {value: flat key}}`
    labels    values whose series exist from the start, by label: a list, or a name that the module passes. A list of
              such mappings has the series of each. Without `labels`, and with empty lists, every value is accepted
    open      true: values other than these are accepted too
    buckets   upper ends of a histogram's buckets
    interval  there is a 95% interval too, whose ends are the label `bound`; this text ends its help, after the name
    error     there is a standard error too; this text ends its help, after the name
    null_95   true: there is the 95% point of its null distribution too
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from squelch.kit.base.lookup import look_up, nearest
from squelch.kit.metrics.specification import Kind, LabelValues, MetricSpec, Section, Table
from squelch.kit.untrusted.text import own_yaml

FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "help": str,
    "key": str,
    "keys": dict,
    "labels": (dict, list),
    "open": bool,
    "buckets": list,
    "interval": str,
    "error": str,
    "null_95": bool,
}


def declared(module: str, **values: LabelValues) -> Table:
    """The metrics of the YAML file beside `module`, read when the table is called.

    Args:
        module: the path of the component's module, its `__file__`.
        values: label values from the code, by the name that the file uses.
    """
    return partial(_read, Path(module).with_suffix(".yaml"), values)


def _read(path: Path, values: Mapping[str, LabelValues]) -> dict[Section, tuple[MetricSpec, ...]]:
    """Raises ValueError, which names the file and the metric, for what no metric may have."""
    found: dict[Section, tuple[MetricSpec, ...]] = {}
    for title, metrics in own_yaml(path).items():
        if title not in set(Section):
            raise ValueError(f"{path}: no section is called `{title}`{nearest(str(title), Section)}")
        specs: list[MetricSpec] = []
        for name, written in metrics.items():
            try:
                specs += _measured(_metric(name, _checked(written), values), written)
            except ValueError as error:
                raise ValueError(f"{path}: {name}: {error}") from None
        found[Section(title)] = tuple(specs)
    return found


def _checked(written: Any) -> dict[str, Any]:
    if not isinstance(written, dict) or not written.get("help"):
        raise ValueError("it needs a `help`")
    for field, value in written.items():
        if not isinstance(value, look_up(FIELDS, str(field), "field")):
            raise ValueError(f"`{field}` cannot be {value!r}")
    if "keys" in written and set(written) != {"help", "keys"}:
        raise ValueError("a metric with `keys` has no other field than `help`")
    return written


def _metric(name: str, written: Mapping[str, Any], values: Mapping[str, LabelValues]) -> MetricSpec:
    kind: Kind = "counter" if name.endswith("_total") else "histogram" if "buckets" in written else "gauge"
    spec = partial(MetricSpec, name, kind, written["help"])
    if "keys" in written:
        ((label, keys),) = written["keys"].items()
        seeds = tuple((value,) for value in keys)
        return spec(labels=(label,), seeds=seeds, keys=dict(zip(keys.values(), seeds, strict=True)))
    key = written.get("key", "")
    in_key = tuple(re.findall(r"\{(\w+)\}", key))
    given = written.get("labels", dict.fromkeys(in_key, ()))
    several = given if isinstance(given, list) else [given]
    labels = in_key if key else tuple(several[0])
    seeds = tuple(series for one in several for series in _series(labels, one, values) if labels)
    is_open = written.get("open", bool(labels) and not seeds)
    return spec(key, labels, seeds, is_open, buckets=tuple(written.get("buckets", ())))


def _series(
    labels: tuple[str, ...], given: Mapping[str, Any], values: Mapping[str, LabelValues]
) -> itertools.product[LabelValues]:
    """Every combination of the values that are given for these labels."""
    if not isinstance(given, dict) or set(given) != set(labels):
        raise ValueError(f"`labels` gives values for {given}, and its labels are {list(labels)}")
    return itertools.product(*(_values(given[label], values) for label in labels))


def _values(given: str | Sequence[str | int], values: Mapping[str, LabelValues]) -> LabelValues:
    if isinstance(given, str):
        return look_up(values, given, "label values")
    if any(type(one) not in (str, int) for one in given):
        raise ValueError(f"a label's value is text or a whole number: {given}")
    return tuple(map(str, given))


def _measured(spec: MetricSpec, written: Mapping[str, Any]) -> Iterator[MetricSpec]:
    """The metric, and its interval, standard error and null where it is an estimate with these."""
    yield spec
    if "interval" in written:
        bounded = tuple((*values, bound) for values in spec.seeds or ((),) for bound in ("low", "high"))
        help = f"95% interval of {spec.name}{written['interval']}"
        yield _beside(spec, "interval", "_{bound}", help, labels=(*spec.labels, "bound"), seeds=bounded)
    if "error" in written:
        yield _beside(spec, "standard_error", "_standard_error", f"Standard error of {spec.name}{written['error']}")
    if written.get("null_95"):
        yield _beside(spec, "null", "_null_95", f"95% point of the null distribution of {spec.name}")


def _beside(spec: MetricSpec, word: str, suffix: str, help: str, **changed: Any) -> MetricSpec:
    return replace(spec, name=named_beside(spec.name, word), key=spec.key + suffix, help=help, **changed)


def named_beside(name: str, word: str) -> str:
    """The name of a metric's `interval`, `standard_error` or `null`: the word stands before the unit."""
    return re.sub(r"(_nats|_ratio)?$", rf"_{word}\1", name, count=1)
