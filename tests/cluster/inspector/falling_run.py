"""A run whose success rises while its answers stop to follow from the reasoning, and its reasoning to depend on its
prompt: regimes, matrices, an alarm and checkpoints."""

from pathlib import Path

import numpy as np

from squelch.cluster.config import dump, load
from squelch.kit.archive.score_matrices import ScoreMatrix, TurnPlace, scores_table
from squelch.kit.archive.writer import Archive
from squelch.kit.diagnosis.metrics import REGIMES
from tests.cluster.inspector.small_run import group, matrix, tokenizer, write_step

FALLS = 15
"""The last step before the fall."""


def faded(step: int, strength: float, num_prompts: int = 12, per_prompt: int = 4) -> ScoreMatrix:
    """A matrix whose diagonal is `strength` nats above the rest."""
    rng = np.random.default_rng(step)
    plain = matrix(step, num_prompts, per_prompt)
    own = plain.source[:, None] == np.arange(num_prompts)
    values = rng.normal(-14.0, 0.5, own.shape) + strength * own
    samples = [TurnPlace(f"{step:06d}-{one % 2:03d}", one // 2 % 2, 0) for one in range(len(own))]
    return ScoreMatrix(values, plain.source, plain.lengths, samples, samples[::per_prompt])


def falling_run(folder: Path, num_steps: int = 40, every: int = 5) -> Path:
    """Success rises from 0.04 to 0.16; MI and D fall after `FALLS`; the alarm is raised two scorer steps later."""
    folder.mkdir(parents=True)
    (folder / "config.yaml").write_text(dump(load("frozenlake", ["name=falling"])))
    (folder / "tokenizer.json").write_text(tokenizer())
    archive = Archive(folder)
    for step in range(1, num_steps + 1):
        write_step(archive, step, [group(step, number, (0.0, float(number % 2))) for number in range(2)])
        share, began = step / num_steps, 1000.0 + 10 * step
        metrics = {
            "success": 0.04 + 0.12 * share,
            "total_steps": float(num_steps),
            "num_groups": 2.0,
            "seconds/step": 9.0,
        }
        fallen = step > FALLS + every
        if step % every == 0:
            metrics |= scored(step, 0.3 if step <= FALLS else 0.02, "unused" if fallen else "used")
            metrics |= {"alarm/raised": float(fallen), "alarm/since": float(FALLS), "alarm/reward_trend": 1.0}
            strength = 6.0 if step <= FALLS else max(0.0, 5.0 - (step - FALLS) / 4)
            archive.write_scores(step, scores_table({"first_turn": faded(step, strength)}, step))
        elif fallen:
            metrics |= {"alarm/raised": 1.0, "alarm/since": float(FALLS), "alarm/reward_trend": 1.0}
        if step == FALLS + 2 * every:
            text = f"input dependence falling since step {FALLS}, reward still rising; checkpoints/step-{FALLS} is kept"
            archive.event("scorer", "input_dependence_falling", began, began, step=step, text=text)
        archive.event("rollout-0", "work", began, began + 4, step=step)
        archive.metrics(step, metrics, at=began + 9)
    for step in range(FALLS, num_steps + 1, 10):
        place = folder / "checkpoints" / f"step-{step}"
        place.mkdir(parents=True)
        (place / "loop.json").write_text("{}")
    archive.close()
    return folder


def scored(step: int, mi: float, regime: str) -> dict[str, float]:
    """A scorer step and an evaluation of the fixed probe."""
    found = {"scorer/step": float(step), "probe/step": float(step), "first_turn/mi_est": mi, "first_turn/reasoned": 1.0}
    found |= {
        "first_turn/mi_seq_est": 10 * mi,
        "first_turn/mi_seq_est_p_value": 0.001,
        "first_turn/mi_est_null_95": 0.04,
    }
    found |= {"first_turn/retrieval_accuracy": 0.85, "first_turn/retrieval_chance": 0.08}
    found |= {f"first_turn/regime/{name}": float(name == regime) for name in REGIMES}
    share = 2 * mi
    found |= {"probe/link/dependence": share, "probe/link/dependence_low": share - 0.1}
    return found | {"probe/link/dependence_high": share + 0.1, "probe/link/dependence_share": share}
