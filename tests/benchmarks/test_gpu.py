"""The GPU's benchmark, but for the GPU: what its parts need and count, and how it treats parts that fail."""

import importlib.metadata
import io
import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from packaging.requirements import Requirement

from benchmarks.gpu import measure as gpu
from benchmarks.gpu import part_worker, scoring, step
from benchmarks.gpu.common import GIB, QWEN, SMOLLM, Setting, shape_of
from benchmarks.gpu.parts import PARTS, Part
from squelch.learner import memory, process_group

ROOT = Path(gpu.__file__).parents[2]
ALLOWED = ("torch", "transformers", "numpy", "accelerate", "pydantic", "xxhash")
ABSENT = {"psutil", "pyarrow", "ray", "vllm"}
"""Not installed on the machine that the tests pretend to be, whoever else needs them."""


@pytest.fixture
def report(tmp_path: Path) -> gpu.Report:
    return gpu.Report({"parts": {}}, tmp_path / "out.json")


def run(report: gpu.Report, code: str, seconds: float = 30.0) -> dict[str, object]:
    gpu.run_part("one", [sys.executable, "-c", "import json, time\n" + code], seconds, os.environ, report)
    assert report.out is not None and json.loads(report.out.read_text()) == report.found
    return report.found["parts"]["one"]


def test_a_part_that_fails_keeps_its_metrics_and_the_last_line_of_its_trace(report, capsys) -> None:
    found = run(report, "print(json.dumps({'a': 1}), flush=True)\nraise RuntimeError('the kernel differs')")
    assert found["a"] == 1 and found["error"] == "RuntimeError: the kernel differs"
    assert "Traceback" in capsys.readouterr().err


def test_a_part_that_takes_too_long_is_stopped_with_what_it_has(report) -> None:
    found = run(report, "print(json.dumps({'a': 1}), flush=True)\ntime.sleep(3600)", seconds=3.0)
    assert found["a"] == 1 and found["error"] == "stopped after 3 s"


def test_a_part_that_hangs_after_its_last_metric_is_stopped(report) -> None:
    code = "import os\nprint(json.dumps({'a': 1}), flush=True)\nos.close(1)\ntime.sleep(3600)"
    found = run(report, code, seconds=1.0)
    assert found["a"] == 1 and found["error"] == "stopped after 1 s"


def test_a_metric_that_is_not_finite_is_null_in_the_object() -> None:
    metrics = io.StringIO()
    part_worker.write(metrics, {"window 0": {"output": 0.0, "d query": math.nan}})
    assert json.loads(metrics.getvalue()) == {"window 0": {"output": 0.0, "d query": None}}


def test_a_part_that_dies_without_a_word_is_an_error(report) -> None:
    assert run(report, "import os; os._exit(9)")["error"] == "exit code 9"


def test_what_is_missing_is_named_and_no_part_starts_without_time(report, monkeypatch) -> None:
    monkeypatch.setitem(PARTS, "two", Part("nowhere:nothing", 60, ("json", "no_such_package", "nor_this")))
    monkeypatch.setitem(PARTS, "three", Part("nowhere:nothing", 60))
    gpu.measure(["two", "three"], "cpu", True, 0.0, report)
    assert report.found["parts"] == {
        "two": {"skipped": "not installed: no_such_package, nor_this"},
        "three": {"skipped": "no time was left"},
    }


def test_a_stop_prints_the_object_as_it_is(monkeypatch, capsys) -> None:
    def stopped(names: list[str], device: str, quick: bool, seconds: float, report: gpu.Report) -> None:
        report.add("attention", {"a": 1})
        gpu.stop(15, None)

    monkeypatch.setattr(gpu, "measure", stopped)
    with pytest.raises(SystemExit, match="143"):
        gpu.main(["--device", "cpu", "--json"])
    assert json.loads(capsys.readouterr().out)["parts"] == {"attention": {"a": 1}}


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys) -> None:
    assert gpu.main([]) == 2
    assert "no CUDA device" in capsys.readouterr().err


def test_the_whole_work_is_16k_tokens_in_one_micro_batch() -> None:
    assert step.WHOLE.tokens == 16_384
    config = step.settings(step.WHOLE, "cuda")
    assert config.minibatches == 1 and config.token_budget >= step.WHOLE.tokens and config.num_gpus == 1
    assert shape_of(QWEN, False).hidden_size == 896
    smollm = shape_of(SMOLLM, False)
    assert sum(p.numel() for p in memory.skeleton(smollm).parameters()) == 134_515_008
    assert memory.estimate(shape_of(QWEN, False), config, 1).total < 80 * GIB


@pytest.fixture
def ended_group() -> Iterator[None]:
    yield
    if dist.is_initialized():
        process_group.stop()


@pytest.mark.usefixtures("ended_group")
def test_a_step_counts_what_it_computes(tmp_path: Path) -> None:
    """32 rows of 64 + 12 tokens, prompts once a group: 512 tokens fed, 416 sampled; width 224, two layers."""
    torch.set_num_threads(1)
    found: dict[str, float] = {}
    for metrics in step.qwen(Setting("cpu", True, tmp_path, time.monotonic() + 60)):
        found |= metrics
    linear = 2 * (2 * 224 * 224 + 2 * 224 * 32 + 3 * 224 * 672)
    pairs = 2 * (64 * 65 / 2 + 16 * (12 * 13 / 2 + 12 * 64))
    wanted = 6 * 512 * linear + 6 * 416 * 512 * 224 + 14 * pairs * 224 * 2
    assert found["tokens"] == step.QUICK.tokens == 512
    assert found["model_tflops"] * 1e12 == pytest.approx(wanted)
    assert found["model_tflops_per_second"] == pytest.approx(found["model_tflops"] / found["step_s"])
    assert found["share_of_peak"] is None


def test_the_scorers_part_scores_a_quarter_and_then_the_whole_if_there_is_time(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    whole, in_vain = (list(scoring.measure(Setting("cpu", True, tmp_path, time.monotonic() + s))) for s in (600, 0))
    assert [metrics.get("2 x 8", {}).get("pairs") for metrics in whole] == [32, None, None]
    assert whole[-1]["8 x 8"]["pairs"] == 512 and whole[-1]["8 x 8"]["tflops_per_second"] > 0
    assert in_vain[-1]["8 x 8"]["skipped"].endswith("s left")


def bare_packages(folder: Path) -> Path:
    """A folder with links to the allowed packages and what they need, and to nothing else."""
    todo, seen = list(ALLOWED), set(ABSENT)
    while todo:
        name = todo.pop().lower().replace("_", "-")
        if name in seen:
            continue
        seen.add(name)
        try:
            distribution = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        for top in {path.parts[0] for path in distribution.files or () if path.parts[0] != ".."}:
            if not (folder / top).exists():
                (folder / top).symlink_to(distribution.locate_file(top))
        needs = map(Requirement, distribution.requires or ())
        todo += [one.name for one in needs if one.marker is None or one.marker.evaluate({"extra": ""})]
    return folder


BARE = """
import importlib, sys
from benchmarks.gpu import part_worker
from benchmarks.gpu.parts import PARTS, installed
assert not {name for name in ("psutil", "pyarrow") if installed(name)}
for part in PARTS.values():
    importlib.import_module(part.function.partition(":")[0])
sys.argv = ["part_worker", "learner, SmolLM2-135M", "cpu", "60", "--quick"]
part_worker.main()
"""


@pytest.mark.slow
def test_parts_need_few_packages(tmp_path: Path) -> None:
    packages = tmp_path / "packages"
    packages.mkdir()
    environment = {"PYTHONPATH": f"{ROOT}:{bare_packages(packages)}", "OMP_NUM_THREADS": "1", "HOME": str(tmp_path)}
    environment |= {"PATH": os.environ["PATH"], "TORCHINDUCTOR_CACHE_DIR": str(tmp_path / "compiled")}
    command = [sys.executable, "-S", "-c", BARE]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr[-3000:]
    metrics: dict[str, object] = {}
    for line in done.stdout.splitlines():
        metrics |= json.loads(line)
    assert metrics["device"] == "cpu" and metrics["tokens"] == 512 and metrics["step_s"] > 0
