"""The files of score matrices: what is written is read, within the bound, and damaged files are refused by name."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from squelch.kit.archive.score_matrices import (
    MAX_BYTES,
    ScoreMatrix,
    TurnPlace,
    encoded,
    read_scores,
    scored_steps,
    scores_table,
)
from squelch.kit.archive.store import ArchiveError, LocalStore
from squelch.kit.archive.writer import Archive
from tests.kit.archive.small_groups import archive_step


def matrix(num_prompts: int = 3, per_prompt: int = 2, seed: int = 0) -> ScoreMatrix:
    values = -np.random.default_rng(seed).exponential(40.0, (num_prompts * per_prompt, num_prompts))
    source = np.repeat(np.arange(num_prompts), per_prompt)
    samples = [TurnPlace(f"000001-{prompt:03d}", k, 0) for prompt in range(num_prompts) for k in range(per_prompt)]
    return ScoreMatrix(values, source, np.arange(len(source)) + 5, samples, samples[::per_prompt])


def written(folder: Path, step: int, **matrices: ScoreMatrix) -> Path:
    Archive(folder).write_scores(step, scores_table(matrices, 7))
    return folder


def test_a_matrix_is_read_as_it_was_written(tmp_path: Path) -> None:
    first, second = matrix(), matrix(4, 1, seed=1)
    found = read_scores(written(tmp_path, 12, first_turn=first, trajectory=second), 12)
    assert list(found) == ["first_turn", "trajectory"]
    for scope, given in (("first_turn", first), ("trajectory", second)):
        np.testing.assert_allclose(found[scope].values, given.values, rtol=1e-6)
        np.testing.assert_array_equal(found[scope].source, given.source)
        np.testing.assert_array_equal(found[scope].lengths, given.lengths)
        assert (found[scope].samples, found[scope].prompts) == (given.samples, given.prompts)
    assert (tmp_path / "scores/step-000012.parquet").exists()


def test_pairs_without_a_likelihood_and_reasonings_without_their_own_are_left_out(tmp_path: Path) -> None:
    given = matrix()
    given.values[0, 2] = np.nan  # not scored: the budget of pairs
    given.values[3, given.source[3]] = np.nan  # the model gives no number
    found = read_scores(written(tmp_path, 1, first_turn=given), 1)["first_turn"]
    assert np.isnan(found.values[0, 2]) and found.values.shape == (5, 3)
    assert found.samples == [place for row, place in enumerate(given.samples) if row != 3]


def test_the_largest_matrix_stays_within_a_mebibyte_with_whole_rows(tmp_path: Path) -> None:
    large = matrix(256, 16)
    found = read_scores(written(tmp_path, 1, first_turn=large, trajectory=matrix(300, 1)), 1)
    assert (tmp_path / "scores/step-000001.parquet").stat().st_size <= MAX_BYTES
    assert found["first_turn"].values.shape == (390, 256) and np.isfinite(found["first_turn"].values).all()
    assert found["trajectory"].values.shape == (300, 300)


def test_a_scorer_step_without_a_matrix_writes_none(tmp_path: Path) -> None:
    assert read_scores(written(tmp_path, 3), 3) == {}


def test_scores_after_the_step_of_a_resume_are_deleted(tmp_path: Path) -> None:
    archive = Archive(tmp_path)
    for step in (1, 6):
        archive_step(archive, step, 1)
        archive.write_scores(step, scores_table({"first_turn": matrix()}, 0))
    archive.truncate_after(5)
    assert scored_steps(LocalStore(tmp_path)) == [1]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda table: table.drop_columns(["own"]), "own"),
        (lambda table: table.set_column(2, "prompt", pa.compute.multiply(table["prompt"], 2)), "gaps"),
        (lambda table: table.filter(pa.compute.invert(table["own"])), "its own prompt"),
        (lambda table: table.set_column(1, "sample", pa.array([2**30] * len(table), pa.int32())), "go from"),
        (lambda table: table.set_column(3, "log_likelihood", pa.array([np.nan] * len(table), pa.float32())), "finite"),
        (lambda table: table.replace_schema_metadata({"squelch.schema": "99"}), "99"),
    ],
)
def test_a_file_that_is_no_matrix_is_refused_by_name(tmp_path: Path, damage: object, message: str) -> None:
    path = tmp_path / "scores" / "step-000001.parquet"
    path.parent.mkdir()
    pq.write_table(damage(scores_table({"first_turn": matrix()}, 0)), path)
    with pytest.raises(ArchiveError, match=message) as refused:
        read_scores(tmp_path, 1)
    assert str(path) in str(refused.value)


def test_half_a_file_and_no_file_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "scores" / "step-000001.parquet"
    path.parent.mkdir()
    path.write_bytes(encoded(scores_table({"first_turn": matrix()}, 0))[:200])
    for step in (1, 2):
        with pytest.raises(ArchiveError, match=f"step-00000{step}"):
            read_scores(tmp_path, step)
