"""Where a run is: `status` says it once, `watch` shows it live in the terminal. Both only read the run's folder.

Invariants:

- Everything shown comes from `metrics.jsonl`, `events.jsonl` and `summary.json`; the run does not know that it is
  watched, and may be on another machine that shares the folder.
- A summary counts only while it is newer than the metrics: a resumed run is running again.
- Nobody waits for the watcher. It waits for the run's first step at most `START_TIMEOUT_S` and for each further one at
  most `SILENCE_TIMEOUT_S`, then names the run that is late. It ends when the run does, or at Ctrl-C.

Imports neither Ray nor torch.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from actors.archive.reader import EVENTS, METRICS, last_event, read_metrics
from actors.archive.store import ArchiveError
from actors.diagnosis.alarm import alarm_text
from actors.metrics.registry import LEDGER_STATES, PARTS
from cluster.commands.arguments import add_run_dir, run_folder
from cluster.errors import UserError

SUMMARY = "summary.json"
START_TIMEOUT_S = 1800.0
"""Seconds that set-up, warm-up and the first validation may take before the watcher gives up."""
SILENCE_TIMEOUT_S = 3600.0
"""Seconds without a new step after which the watcher gives up."""
RECENT_STEPS = 20
"""Steps from which the speed is taken."""
SPARK_WIDTH = 32
SPARKS = "▁▂▃▄▅▆▇█"

Line = Mapping[str, Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What `squelch watch` takes."""
    add_run_dir(parser)


def run(options: argparse.Namespace) -> int:
    """Shows the run until it ends."""
    watch(run_folder(options.run_dir))
    return 0


@dataclass(frozen=True)
class Figure:
    """One line of the view: a name, its value as text, and its history (oldest first) within [low, high]."""

    name: str
    value: str
    history: tuple[float, ...] = ()
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class RunStatus:
    """Where a run is. None: not measured yet. Shares are 0 to 1, times seconds."""

    run: str
    state: str
    """`starting`, `running`, `finished`, or `stopped`."""
    stopped: str | None
    """Why it was stopped, when it was."""
    step: int
    total_steps: int
    seconds_since_step: float | None
    seconds_per_step: float | None
    seconds_left: float | None
    tokens_per_second: float | None
    success: float | None
    """Of the last step's training trajectories."""
    validation_success: float | None
    validation_low: float | None
    validation_high: float | None
    validation_step: int | None
    first_validation_success: float | None
    reward_variance_mean: float | None
    kept_mass: float | None
    kept_groups: float | None
    num_groups: float | None
    format_validity: float | None
    retrieval_accuracy: float | None
    """First turn, of the step scored last."""
    retrieval_chance: float | None
    mi_est: float | None
    conditional_entropy: float | None
    dependence: str | None
    """The early warning in words, while it is raised."""
    staleness_max: float | None
    no_signal_streak: float | None
    seconds: dict[str, float] = field(default_factory=dict)
    """Of the last step, by part."""
    ledger: dict[str, int] = field(default_factory=dict)
    last_event: str | None = None


def read_status(run_dir: Path, now: float) -> RunStatus:
    """The status of a run's folder at `now` (unix seconds)."""
    return status_of(run_dir.name, read_metrics(run_dir), _summary(run_dir), last_event(run_dir), now)


@contextmanager
def _readable() -> Iterator[None]:
    """A damaged file of the run is the user's to mend."""
    try:
        yield
    except ArchiveError as error:
        raise UserError(str(error)) from error


def status_of(run: str, lines: Sequence[Line], summary: Line | None, event: Line | None, now: float) -> RunStatus:
    """The status that the lines of `metrics.jsonl`, a current `summary.json` and the last span make."""
    steps = [line for line in lines if line["step"] > 0]
    last: Line = steps[-1] if steps else {"step": 0}
    total = int(_latest(lines, "total_steps") or 0)
    pace = seconds_per_step([line["time"] for line in steps]) or last.get("seconds/step")
    validated = [line for line in lines if line.get("validation/success") is not None]
    checked: Line = validated[-1] if validated else {}
    return RunStatus(
        run=run,
        state=_state(lines, summary),
        stopped=summary.get("stopped") if summary else None,
        step=last["step"],
        total_steps=total,
        seconds_since_step=now - lines[-1]["time"] if lines else None,
        seconds_per_step=pace,
        seconds_left=None if pace is None or summary else pace * (total - last["step"]),
        tokens_per_second=last.get("tokens/per_second"),
        success=last.get("success"),
        validation_success=checked.get("validation/success"),
        validation_low=checked.get("validation/success_low"),
        validation_high=checked.get("validation/success_high"),
        validation_step=checked.get("step"),
        first_validation_success=validated[0]["validation/success"] if validated else None,
        reward_variance_mean=last.get("reward_variance_mean"),
        kept_mass=last.get("kept_mass"),
        kept_groups=last.get("kept_groups"),
        num_groups=last.get("num_groups"),
        format_validity=last.get("format_validity"),
        retrieval_accuracy=_latest(lines, "first_turn/retrieval_accuracy"),
        retrieval_chance=_latest(lines, "first_turn/retrieval_chance"),
        mi_est=_latest(lines, "first_turn/mi_est"),
        conditional_entropy=_latest(lines, "first_turn/conditional_entropy"),
        dependence=_dependence(last),
        staleness_max=last.get("staleness_max"),
        no_signal_streak=last.get("no_signal_streak"),
        seconds={part: last[f"seconds/{part}"] for part in PARTS if last.get(f"seconds/{part}") is not None},
        ledger=_tickets(last),
        last_event=_event_text(event, now),
    )


def _dependence(line: Line) -> str | None:
    if line.get("alarm/raised") != 1:
        return None
    return alarm_text(line.get("alarm/since"), line.get("alarm/reward_trend") or 0)


def _state(lines: Sequence[Line], summary: Line | None) -> str:
    if summary is not None:
        return "finished" if summary.get("finished") else "stopped"
    return "running" if lines else "starting"


def _tickets(line: Line) -> dict[str, int]:
    """Tickets by state."""
    known = {state: line.get(f"ledger/{state}") for state in LEDGER_STATES}
    return {state: int(count) for state, count in known.items() if count is not None}


def _latest(lines: Sequence[Line], key: str) -> Any:
    """The last known value of a key; None when there is none."""
    return next((line[key] for line in reversed(lines) if line.get(key) is not None), None)


def _event_text(event: Line | None, now: float) -> str | None:
    if event is None:
        return None
    took, ago = event["end"] - event["start"], max(0.0, now - event["end"])
    return f"{event['actor']} {event['name']} took {took:.1f} s, {duration(ago)} ago"


def seconds_per_step(times: Sequence[float]) -> float | None:
    """Wall seconds from one step to the next over the last steps. A pause (a resume) counts as at most ten steps."""
    recent = times[-RECENT_STEPS - 1 :]
    gaps = [after - before for before, after in itertools.pairwise(recent)]
    if not gaps:
        return None
    usual = statistics.median(gaps)
    return statistics.fmean(min(gap, 10 * usual) for gap in gaps)


def _summary(run_dir: Path) -> dict[str, Any] | None:
    """`summary.json`, unless the metrics are newer than it."""
    path, metrics = run_dir / SUMMARY, run_dir / METRICS
    if not path.exists():
        return None
    if metrics.exists() and metrics.stat().st_mtime > path.stat().st_mtime:
        return None
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} is not JSON: {error}. Delete it to see the run's metrics.") from error


def duration(seconds: float) -> str:
    """`45 s`, `3 min 20 s`, `2 h 05 min`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def sparkline(values: Sequence[float], low: float | None = None, high: float | None = None) -> str:
    """The last `SPARK_WIDTH` values as blocks between `low` and `high`, or between their own extremes."""
    shown = [value for value in values if math.isfinite(value)][-SPARK_WIDTH:]
    if not shown:
        return ""
    floor = min(shown) if low is None else low
    span = (max(shown) if high is None else high) - floor
    if span <= 0:
        return SPARKS[0] * len(shown)
    return "".join(SPARKS[min(7, max(0, int((value - floor) / span * 8)))] for value in shown)


def _number(value: float | None, form: str = ".3f") -> str:
    return "-" if value is None else format(value, form)


def _nats(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f} nats a token"


def figures(status: RunStatus, lines: Sequence[Line]) -> list[Figure]:
    """What the view shows, in its order."""

    def history(key: str) -> tuple[float, ...]:
        return tuple(line[key] for line in lines if line.get(key) is not None)

    return [
        Figure("validation success", _validation(status), history("validation/success"), 0, 1),
        Figure("training success", _number(status.success), history("success"), 0, 1),
        Figure("kept mass", _kept(status), history("kept_mass"), 0, 1),
        Figure("reward variance", _number(status.reward_variance_mean, ".4f"), history("reward_variance_mean"), 0),
        Figure("retrieval accuracy", _retrieval(status), history("first_turn/retrieval_accuracy"), 0, 1),
        Figure("MI estimate", _nats(status.mi_est), history("first_turn/mi_est"), 0),
        Figure("H(Z|X)", _nats(status.conditional_entropy), history("first_turn/conditional_entropy"), 0),
        *([Figure("ALARM", status.dependence)] if status.dependence else []),
        Figure("format valid", _number(status.format_validity), history("format_validity"), 0, 1),
        Figure("throughput", _throughput(status), history("tokens/per_second"), 0),
        Figure("seconds by part", "  ".join(f"{part} {value:.2f}" for part, value in status.seconds.items()) or "-"),
        Figure("tickets", "  ".join(f"{state} {count}" for state, count in status.ledger.items() if count) or "-"),
        Figure("last finished", status.last_event or "-"),
    ]


def _validation(status: RunStatus) -> str:
    if status.validation_success is None:
        return "-"
    text = (
        f"{status.validation_success:.3f}  [{_number(status.validation_low)}, {_number(status.validation_high)}]"
        f"  step {status.validation_step}"
    )
    first = status.first_validation_success
    return text if first is None or not status.validation_step else f"{text}  (first {first:.3f})"


def _kept(status: RunStatus) -> str:
    groups = f"{_number(status.kept_groups, '.0f')}/{_number(status.num_groups, '.0f')}"
    text = f"{_number(status.kept_mass)}  groups {groups}"
    return f"{text}  NO SIGNAL for {status.no_signal_streak:.0f} steps" if status.no_signal_streak else text


def _retrieval(status: RunStatus) -> str:
    accuracy, chance = status.retrieval_accuracy, status.retrieval_chance
    if accuracy is None or not chance:
        return "-"
    return f"{accuracy:.3f}  chance {chance:.3f}  ({accuracy / chance:.1f} x)"


def _throughput(status: RunStatus) -> str:
    return f"{_number(status.tokens_per_second, '.0f')} tokens/s  {_number(status.seconds_per_step, '.2f')} s/step"


def headline(status: RunStatus) -> str:
    """`frozenlake: running, step 12/60, 3 min 20 s left`."""
    parts = [status.state if not status.stopped else f"{status.state} ({status.stopped})"]
    parts.append(f"step {status.step}/{status.total_steps or '?'}")
    if status.seconds_left:
        parts.append(f"{duration(status.seconds_left)} left")
    return f"{status.run}: {', '.join(parts)}"


def status(run_dir: Path | str, as_json: bool = False) -> str:
    """Where a run is, as text or as one JSON object."""
    folder = _folder(run_dir)
    with _readable():
        now, lines = read_status(folder, time.time()), read_metrics(folder)
    if as_json:
        return json.dumps(asdict(now), indent=2)
    rows = [f"  {f.name:20s} {f.value}" for f in figures(now, lines)]
    return "\n".join([headline(now), *rows])


def _folder(run_dir: Path | str) -> Path:
    folder = Path(run_dir)
    if not folder.is_dir():
        raise UserError(f"{folder} is not a run's folder; runs are kept in `runs_dir`, e.g. runs/frozenlake")
    return folder


def view(status: RunStatus, lines: Sequence[Line]) -> RenderableType:
    """The live view: headline, progress bar, figures with their history."""
    table = Table.grid(padding=(0, 2))
    progress = Table.grid(expand=True)  # a bar alone ends no line
    for figure in figures(status, lines):
        spark = sparkline(figure.history, figure.low, figure.high)
        table.add_row(Text(figure.name, style="bold"), Text(figure.value), Text(spark, style="cyan"))
    progress.add_row(ProgressBar(total=max(status.total_steps, 1), completed=status.step))
    style = "red" if status.stopped else "green" if status.state == "finished" else "blue"
    return Panel(Group(progress, table), title=headline(status), border_style=style)


def watch(
    run_dir: Path | str,
    *,
    interval_s: float = 1.0,
    console: Console | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Shows a run until it ends or Ctrl-C: a live view on a terminal, one line a step elsewhere.

    Raises:
        UserError: no such folder, or no first or next step within the bounds at the head of this module.
    """
    folder, console = _folder(run_dir), console or Console()
    try:
        with _readable():
            if not console.is_terminal:
                return _follow(folder, _LinePrinter(console), interval_s, sleep)
            with Live(console=console, auto_refresh=False) as live:
                _follow(folder, lambda s, lines: live.update(view(s, lines), refresh=True), interval_s, sleep)
    except KeyboardInterrupt:
        console.print("no longer watching; the run goes on")


class _LinePrinter:
    """One line for each step that is new since the last look."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._shown = -1
        self._state = ""

    def __call__(self, status: RunStatus, lines: Sequence[Line]) -> None:
        for line in lines:
            if line["step"] > self._shown:
                self._shown = line["step"]
                self._say(step_text(line))
        if status.state != self._state:
            self._state = status.state
            self._say(headline(status))

    def _say(self, text: str) -> None:
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)


def step_text(line: Line) -> str:
    """One step as one line of text; what it does not hold is left out."""
    shown = {
        "success": "success",
        "validation": "validation/success",
        "kept mass": "kept_mass",
        "retrieval": "first_turn/retrieval_accuracy",
        "chance": "first_turn/retrieval_chance",
        "s": "seconds/step",
    }
    found = [f"{name} {line[key]:.3f}" for name, key in shown.items() if line.get(key) is not None]
    found += [text for text in [_dependence(line)] if text]
    return f"step {line['step']}: " + ", ".join(found)


def _follow(
    folder: Path,
    show: Callable[[RunStatus, Sequence[Line]], None],
    interval_s: float,
    sleep: Callable[[float], None],
) -> None:
    """Shows the run at each interval until it has ended; reads its lines only when the file has changed."""
    seen: tuple[int, int] | None = None
    lines: list[dict[str, Any]] = []
    waited = 0.0
    while True:
        stamp = _stamp(folder / METRICS)
        if stamp != seen:
            seen, lines, waited = stamp, read_metrics(folder), 0.0
        now = status_of(folder.name, lines, _summary(folder), last_event(folder), time.time())
        show(now, lines)
        if now.state in ("finished", "stopped"):
            return
        _bound(folder, now, waited)
        sleep(interval_s)
        waited += interval_s


def _stamp(path: Path) -> tuple[int, int] | None:
    """What changes when a file does: (size, modification time in ns)."""
    if not path.exists():
        return None
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def _bound(folder: Path, status: RunStatus, waited: float) -> None:
    limit = START_TIMEOUT_S if status.state == "starting" else SILENCE_TIMEOUT_S
    if waited > limit:
        what = "its first step" if status.state == "starting" else f"the step after {status.step}"
        raise UserError(
            f"{folder}: the run is late with {what}; nothing new in {METRICS} for {duration(waited)} "
            f"(last finished: {status.last_event or f'nothing in {EVENTS}'}). Is its process still there?"
        )
