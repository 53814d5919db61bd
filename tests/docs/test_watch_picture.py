"""The docs' picture is what `squelch watch` shows, in an SVG that needs nothing from the network."""

import re
import sys
from html import unescape
from pathlib import Path
from xml.etree import ElementTree

from rich.panel import Panel

from docs.writers import watch_picture
from docs.writers.watch_picture import picture
from squelch.kit.archive.writer import Archive

COMMITTED = Path(__file__).parents[2] / "docs/watch.svg"


def texts(svg: str) -> str:
    """What the picture says, its lines joined by spaces."""
    ElementTree.fromstring(svg)
    return unescape(" ".join(re.findall(r"<text[^>]*>([^<]*)</text>", svg))).replace("\xa0", " ")


def test_a_picture_shows_the_view_and_fetches_nothing() -> None:
    drawn = picture(Panel("kept mass  0.96"), "squelch watch runs/demo")
    assert "kept mass  0.96" in texts(drawn) and "squelch watch runs/demo" in texts(drawn)
    assert "url(http" not in drawn and "@font-face" not in drawn
    assert drawn == picture(Panel("kept mass  0.96"), "squelch watch runs/demo")


def test_the_tool_draws_a_run_folder(tmp_path: Path, monkeypatch) -> None:
    Archive(tmp_path / "demo").metrics(3, {"total_steps": 10, "success": 0.625}, at=0.0)
    monkeypatch.setattr(sys, "argv", ["watch_picture", str(tmp_path / "demo"), str(tmp_path / "out.svg")])
    watch_picture.main()
    drawn = texts((tmp_path / "out.svg").read_text(encoding="utf-8"))
    assert "demo: running, step 3/10" in drawn and "0.625" in drawn


def test_the_committed_picture_is_of_a_run_and_fetches_nothing() -> None:
    svg = COMMITTED.read_text(encoding="utf-8")
    assert "retrieval accuracy" in texts(svg) and "url(http" not in svg
