"""Each check fails for what it is there for."""

import json
import shutil
from pathlib import Path

from tests.walk.checks import group_faults, kinds, order_faults, output_faults, report_faults, reward_faults, run_faults


def test_a_traceback_and_a_missing_report_are_faults() -> None:
    assert output_faults("step 1\nTraceback (most recent call last):\n") == ["a traceback"]
    assert output_faults("no report: division by zero; write it with x\n") == [
        "no report: division by zero; write it with x"
    ]
    assert output_faults("report: runs/x/report.html\n") == []


def test_a_warning_is_a_fault_unless_the_page_names_it() -> None:
    said = "WARNING        no group of 24 counted"
    assert output_faults(said) == ["a warning that the page does not name: no group of 24 counted"]
    assert output_faults(said, ["Then it warns: no group of 8  counted."]) == []
    assert output_faults("/a/b.py:12: UserWarning: old") == ["a warning that the page does not name: old"]
    assert output_faults("it gives no warning of that") == []


def test_numbers_and_digests_are_replaced_by_their_kind() -> None:
    assert kinds("step    4/60  gain +0.277 [-1e-3], .cache/a-542076d102a14c43") == kinds(
        "step 1/2  gain -0.1  [2.5], .cache/a-00aa11bb22cc33dd".replace("  ", " ")
    )


def test_shown_lines_have_to_be_printed_in_their_order() -> None:
    printed = "ready after 3 s\nstep 1/2  success 0.5\nsuccess after 0.25\n"
    assert order_faults("step  4/60  success 0.312\nsuccess after 0.664\n", printed) == []
    assert order_faults("success after 0.664\nstep  4/60  success 0.312\n", printed) == [
        "not printed, or not in this order: step  4/60  success 0.312"
    ]


def test_a_printed_line_may_lack_a_value_that_a_short_run_does_not_know() -> None:
    shown = "step  4/60  success 0.312  kept 6/8, mass 0.90  entropy 0.59  3.51 s\nanswer  D 2.28 nats  follows\n"
    assert order_faults(shown, "step  1/2  success 0.1  kept 0/2, mass 0.1  1.5 s\nanswer  D 0.1 nats\n") == []
    assert order_faults(shown, "step  1/2  failure 0.1  kept 0/2, mass 0.1  1.5 s\nanswer  D 0.1 nats\n") != []
    assert order_faults(shown, "step  1/2  1.5 s\nanswer  D 0.1 nats\n") != []


def test_no_group_with_two_members_that_ended_well_is_a_fault() -> None:
    group = {"num_trajectories": 4, "num_failures": 3, "failure_causes": ["agent_error"] * 3}
    assert group_faults([group]) == ["no group of 1 counted; failures: agent_error"]
    assert group_faults([group, {**group, "num_failures": 2}]) == []
    assert group_faults([]) == ["no group of 0 counted; failures: none"]


def test_rewards_that_are_all_the_same_are_a_fault() -> None:
    assert reward_faults([{"returns": [0.0, None]}, {"returns": [0.0]}]) == ["every reward is 0.0"]
    assert reward_faults([{"returns": [None]}]) == ["every reward is missing"]
    assert reward_faults([{"returns": [0.0]}, {"returns": [1.0]}]) == []


def test_a_report_that_is_not_there_is_a_fault(tmp_path) -> None:
    assert report_faults(tmp_path / "report.html") == ["report.html does not exist"]


def test_a_warning_in_a_runs_summary_is_a_fault_unless_the_page_names_it(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(Path(__file__).parents[1] / "earlier" / "run", tmp_path / "run"))
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps({**summary, "warnings": ["kl_high (warning, since step 5): far"]}))
    told = [fault for fault in run_faults(folder) if "kl_high" in fault]
    assert told == ["run warns: kl_high (warning, since step 5): far"]
    assert run_faults(folder, ["kl_high"]) == [fault for fault in run_faults(folder) if fault not in told]
