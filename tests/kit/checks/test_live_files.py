"""Files of live runs of TRL's trainer (`write_live_files.py`): what was planted in a run is found, clean ones are
sound."""

from pathlib import Path

import pytest

from squelch.kit.checks.run import CheckResult, check

LIVE = Path(__file__).with_name("live")
CLAIMS = {"group_size": 4, "temperature": 1, "top_p": 1}


def checked(name: str) -> CheckResult:
    return check(LIVE / name, base=LIVE / "tokenizer", claims=CLAIMS)


@pytest.mark.parametrize(
    ("name", "faults"),
    [
        ("clean", []),
        ("clean-tools", []),
        ("turns-clean-tools.parquet", []),
        ("turns-drift.parquet", ["turns_encoded_anew"]),
    ],
)
def test_a_live_run_has_the_faults_that_were_planted_in_it(name, faults) -> None:
    found = checked(name)
    assert [one.name for one in found.faults] == faults, [one.says for one in found.faults]
    assert found.rows


def test_calls_that_go_on_with_the_ids_that_were_sampled_are_sound() -> None:
    results = {one.name: one for one in checked("turns-clean-tools.parquet").results}
    found = results["turns_encoded_anew"]
    assert found.verdict == "sound" and found.of, found.says
