"""The real loop on the stand-ins of `benchmarks.overlap`, whose groups reach learner and archive as a run's do."""

import asyncio
from pathlib import Path

from benchmarks.overlap import LAST, WARM_UP, measured, run, settings, summary
from tests.stand_ins.paced import PacedActors, Times


def test_a_run_on_stand_ins_reaches_its_last_step_and_has_metrics(tmp_path: Path) -> None:
    config = settings(1, WARM_UP + LAST + 1, tmp_path, ())
    asyncio.run(run(config, PacedActors(config, Times(generate_s=0.04, train_s=0.02, publish_s=0.0, load_s=0.0))))
    assert [line["step"] for line in measured(config)] == [WARM_UP + 1]
    assert summary(config)["staleness_max"] <= 1
