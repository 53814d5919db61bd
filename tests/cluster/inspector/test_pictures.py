"""Pictures on the page of a group."""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from starlette.testclient import TestClient

from squelch.cluster.inspector.pictures import marked_text
from squelch.cluster.inspector.texts import Pieces
from squelch.kit.archive.writer import Archive
from squelch.kit.records.content import Picture
from squelch.kit.records.picture_files import png_of
from squelch.kit.records.pictures import Picture as Pixels
from tests.cluster.inspector.small_run import group, ids, small_run, tokenizer, trajectory, write_step

PIECES = Pieces(tokenizer().encode(), "here")


def picture(position: int, data: bytes | None, reference: str | None = None) -> Picture:
    return Picture(position, "image/png", "0" * 32, data, reference)


def png(grey: int) -> bytes:
    return png_of(Pixels(np.full((16, 24, 3), grey, np.uint8)))


def test_a_run_of_placeholders_is_one_mark_and_other_ids_are_shown_as_they_are() -> None:
    fed, shown = ids("see #### and ##, a # too"), [picture(4, None), picture(13, None)]
    assert marked_text(PIECES, fed, shown, 3) == "see \n[picture 3]\n and \n[picture 4]\n, a # too"
    assert marked_text(PIECES, fed[:8], shown[:1]) == "see \n[picture 1]\n"
    assert marked_text(PIECES, fed, ()) == "see #### and ##, a # too"


def test_each_turn_shows_its_own_pictures_as_they_were_fed_and_says_why_one_cannot_be_shown(
    tmp_path: Path, open_run: Callable[[Path], TestClient]
) -> None:
    folder, shown = small_run(tmp_path / "seen", 0), group(1, 0, (0.0, 1.0))
    one = trajectory(0, 0.0, "it is grey", prompt="look #### here")
    later = one.turns[0].sample_end
    one.pictures = (picture(5, png(90)), picture(later, png(91)), picture(later + 2, b"\x89PNG<script>"))
    other = trajectory(1, 1.0, "it is grey", prompt="look #### here")
    other.pictures = (picture(5, png(90)), picture(later, None, "pictures/1f.png"))
    archive = Archive(folder)
    write_step(archive, 1, [replace(shown, trajectories=[one, other])])
    archive.close()
    text = open_run(folder).get("/group?step=1&group=000001-000").text
    sources = re.findall(
        r'<img class="picture" src="data:image/png;base64,[A-Za-z0-9+/=]+" width="24" height="16"', text
    )
    assert len(sources) == 4 and len(set(sources)) == 2, "the prompt, each first turn, and one second turn"
    assert "look \n[picture 1]\n here" in text and "#" * 4 not in text
    assert (
        "picture 3 is not shown: picture 3: a PNG without its end" in text and "<script>" not in text.split("<body")[1]
    )
    assert "picture 2 is not shown: its bytes are stored as pictures/1f.png" in text
