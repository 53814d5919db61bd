"""The picture of the page on pictures, over a run that is made here."""

from pathlib import Path

import numpy as np
import pytest

from docs.writers import modality_picture
from docs.writers.modality_picture import figure, points


def lines() -> list[dict]:
    found = []
    for at, key in ((0, modality_picture.READ), (20, modality_picture.READ), (0, modality_picture.SOLVED)):
        low_high = {f"{key}_low": 0.1, f"{key}_high": 0.9}
        found.append({"step": at + 3, f"{key.partition('/')[0]}/step": at, key: 0.5, **low_high})
    return [*found, {"step": 9, modality_picture.READ: None}, {"step": 10, modality_picture.READ: 0.5}]


def test_points_stand_at_the_step_that_they_describe_and_need_their_interval() -> None:
    steps, values, low, high = points(lines(), modality_picture.READ)
    assert steps.tolist() == [0, 20] and values.tolist() == [0.5, 0.5]
    assert low.tolist() == [0.1, 0.1] and high.tolist() == [0.9, 0.9]


def test_the_figure_has_the_board_and_both_curves() -> None:
    drawn = figure(np.zeros((32, 32, 3), np.uint8), lines())
    assert "data:image/png;base64" in drawn and "Dependence on the picture, nats" in drawn
    assert "Validation success" in drawn


def test_a_run_without_pictures_is_refused_in_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(modality_picture, "read_groups", lambda *_: None)
    monkeypatch.setattr(modality_picture, "from_table", lambda _: [])
    with pytest.raises(ValueError, match="no picture was shown in step 1"):
        modality_picture.board(tmp_path)
