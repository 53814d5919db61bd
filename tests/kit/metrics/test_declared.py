"""A component's file of metrics is read whole or refused, with the file and the metric."""

from pathlib import Path

import pytest

from squelch.kit.metrics.declared import declared
from squelch.kit.metrics.registry import Registry
from squelch.kit.metrics.specification import MetricSpec, Section

VALUES = {"PARTS": ("a", "b")}


def read(folder: Path, text: str) -> list[MetricSpec]:
    (folder / "metrics.yaml").write_text(f"Health:\n{text}")
    return list(declared(str(folder / "metrics.py"), **VALUES)()[Section.HEALTH])


def test_labels_take_the_values_of_the_file_or_of_the_code_in_the_keys_order(tmp_path: Path) -> None:
    (spec,) = read(tmp_path, "  squelch_x: {key: 'x/{part}/{k}', help: X, labels: {k: [1, 2], part: PARTS}}")
    assert spec.labels == ("part", "k") and not spec.open
    assert spec.seeds == (("a", "1"), ("a", "2"), ("b", "1"), ("b", "2"))
    assert spec.flat_keys()["x/b/2"] == ("b", "2")


def test_several_sets_of_label_values_have_the_series_of_each(tmp_path: Path) -> None:
    sets = "[{part: PARTS, k: [1]}, {part: [c], k: [2]}]"
    (spec,) = read(tmp_path, f"  squelch_x: {{key: 'x/{{part}}/{{k}}', help: X, labels: {sets}}}")
    assert spec.seeds == (("a", "1"), ("b", "1"), ("c", "2"))


def test_labels_without_values_take_any(tmp_path: Path) -> None:
    fed, set_by_name = read(
        tmp_path, "  squelch_x: {key: 'x/{k}', help: X}\n  squelch_y: {help: Y, labels: {k: [], l: []}}"
    )
    assert fed.open and fed.label_values({"k": "new"}) == ("new",)
    assert set_by_name.open and set_by_name.labels == ("k", "l")


def test_keys_without_a_pattern_feed_the_values_of_their_label(tmp_path: Path) -> None:
    (spec,) = read(tmp_path, "  squelch_x_total: {help: X, keys: {outcome: {kept: kept_groups, late: late}}}")
    assert spec.kind == "counter" and spec.flat_keys() == {"kept_groups": ("kept",), "late": ("late",)}
    assert spec.seeds == (("kept",), ("late",)) and not spec.open


def test_an_estimate_has_the_metrics_of_its_interval_error_and_null(tmp_path: Path) -> None:
    estimate = "help: X, labels: {part: PARTS}, interval: ' over prompts', error: '', null_95: true"
    _, interval, error, null = read(tmp_path, f"  squelch_x_nats: {{key: 'x/{{part}}', {estimate}}}")
    assert interval.name == "squelch_x_interval_nats" and interval.labels == ("part", "bound")
    assert interval.help == "95% interval of squelch_x_nats over prompts"
    assert interval.flat_keys()["x/a_low"] == ("a", "low")
    assert (error.name, error.seeds) == ("squelch_x_standard_error_nats", (("a",), ("b",)))
    assert (null.name, list(null.flat_keys())) == ("squelch_x_null_nats", ["x/a_null_95", "x/b_null_95"])


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ("{help: X, kye: x}", "unknown field `kye`; did you mean `key`"),
        ("{help: X, 1: x}", "unknown field `1`"),
        ("{key: x}", "needs a `help`"),
        ("X", "needs a `help`"),
        ("{help: X, key: 1}", "`key` cannot be 1"),
        ("{help: X, open: 'yes'}", "`open` cannot be 'yes'"),
        ("{help: X, key: 'x/{k}', labels: {k: PART}}", "unknown label values `PART`; did you mean `PARTS`"),
        ("{help: X, key: 'x/{k}', labels: {part: PARTS}}", r"its labels are \['k'\]"),
        ("{help: X, key: x, labels: {k: [1]}}", "its labels are"),
        ("{help: X, key: 'x/{k}', labels: [k]}", "its labels are"),
        ("{help: X, key: 'x/{k}', labels: {k: [0.5]}}", "text or a whole number"),
        ("{help: X, key: 'x/{k}', labels: {k: [true]}}", "text or a whole number"),
        ("{help: X, keys: {k: {a: x}}, open: true}", "no other field"),
        ("{help: X, help: Y}", "help"),
    ],
)
def test_what_no_metric_may_have_is_refused_with_its_place(tmp_path: Path, fields: str, says: str) -> None:
    with pytest.raises(ValueError, match=says) as refused:
        read(tmp_path, f"  squelch_x: {fields}")
    assert "metrics.yaml" in str(refused.value)


def test_a_section_that_the_docs_do_not_have_is_refused(tmp_path: Path) -> None:
    (tmp_path / "metrics.yaml").write_text("Helth:\n  squelch_x: {help: X}")
    with pytest.raises(ValueError, match=r"metrics\.yaml.*did you mean `Health`"):
        declared(str(tmp_path / "metrics.py"))()


def test_a_file_is_read_when_a_metric_is_first_needed(tmp_path: Path) -> None:
    registry = Registry(declared(str(tmp_path / "metrics.py")))
    read(tmp_path, "  squelch_x: {key: x, help: X}")
    assert registry.section_of("x") is Section.HEALTH
