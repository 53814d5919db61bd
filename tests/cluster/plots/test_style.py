"""Every figure is an SVG that a strict page can show and a screen reader can read; hostile names cannot break it."""

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from squelch.cluster.plots import draw
from squelch.cluster.plots.style import DARK, PALETTE, SETTINGS, dark_css, render, standalone

HOSTILE = 'a$b</text><script>alert(1)</script>"&'


def a_figure(label: str = "no filter", colour: str = PALETTE[0]) -> str:
    def drawn():
        figure, ((axes,),) = draw.grid(1, 1)
        draw.lines(axes, [draw.Line(label, [0, 1, 2], [0.1, 0.2, 0.3], colour, [0, 0.1, 0.2], [0.2, 0.3, 0.4])])
        draw.heading(axes, label, "training step")
        return draw.finish(figure)

    return render("one", "Title of it", "How it is read", drawn)


def test_a_figure_has_a_title_and_a_description_for_screen_readers() -> None:
    root = ElementTree.fromstring(a_figure())
    reported = {child.get("id"): child.text for child in root if child.tag.endswith(("title", "desc"))}
    assert reported == {"one-title": "Title of it", "one-desc": "How it is read"}
    assert root.get("role") == "img" and root.get("aria-labelledby") == " ".join(reported)


def test_a_figure_needs_no_style_script_or_network() -> None:
    svg = a_figure()
    elements = list(ElementTree.fromstring(svg).iter())
    assert not any("style" in element.attrib for element in elements)
    assert {element.tag.split("}")[-1] for element in elements}.isdisjoint({"style", "script", "image", "metadata"})
    links = re.findall(r'(?:href|src)="([^"]*)"', svg) + re.findall(r"url\(([^)]*)\)", svg)
    assert links and all(link.startswith("#one-") for link in links)


def test_every_reference_inside_a_figure_leads_to_an_id_of_it() -> None:
    svg = a_figure()
    ids = re.findall(r' id="([^"]*)"', svg)
    assert len(set(ids)) == len(ids) and all(name.startswith("one-") for name in ids)
    assert set(re.findall(r"#(one-[^)\"]*)", svg)) <= set(ids)


def test_text_of_a_label_stays_text() -> None:
    root = ElementTree.fromstring(a_figure(HOSTILE))
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert HOSTILE in texts and "<script" not in a_figure(HOSTILE)


def test_equal_content_gives_equal_text() -> None:
    assert a_figure() == a_figure() != a_figure("top_p 0.9")


def test_every_colour_of_a_figure_has_one_for_dark_pages() -> None:
    used = {colour for shade in PALETTE for colour in re.findall(r'"(#[0-9a-f]{6})"', a_figure(colour=shade))}
    assert used == {*used} & DARK.keys() and len(used) > len(PALETTE)
    assert all(f"[fill='{light}']{{fill:{dark}}}" in dark_css() for light, dark in DARK.items())


@pytest.mark.parametrize("page", ["#ffffff", "#0d1117"])
def test_every_line_stands_out_from_the_page(page: str) -> None:
    shown = PALETTE if page == "#ffffff" else [DARK[colour] for colour in PALETTE]
    assert min(contrast(colour, page) for colour in shown) >= 3


def contrast(first: str, second: str) -> float:
    """WCAG's contrast ratio of two colours; 3 is the least for graphics."""

    def luminance(colour: str) -> float:
        parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    dark, light = sorted((luminance(first), luminance(second)))
    return (light + 0.05) / (dark + 0.05)


def test_a_file_of_its_own_follows_the_readers_preference() -> None:
    text = standalone(a_figure())
    assert ElementTree.fromstring(text.encode()).tag.endswith("svg")
    assert text.startswith("<?xml") and text.count("prefers-color-scheme:dark") == 1


def test_matplotlibs_settings_are_as_before_after_a_figure() -> None:
    import matplotlib

    before = matplotlib.rcParams["svg.fonttype"]
    a_figure()
    assert matplotlib.rcParams["svg.fonttype"] == before != SETTINGS["svg.fonttype"]


def test_matplotlibs_settings_do_not_come_from_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "matplotlibrc").write_text("savefig.dpi: 9999\n")
    code = (
        "from squelch.cluster.plots.style import render; import contextlib\n"
        "with contextlib.suppress(ZeroDivisionError): render('a', 't', 'd', lambda: 1 / 0)\n"
        "import matplotlib; print(matplotlib.rcParams['savefig.dpi'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "figure\n"
