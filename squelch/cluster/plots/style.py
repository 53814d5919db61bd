"""Colours and sizes of all figures, and the SVG that they become.

Invariants:

- The palette is Okabe and Ito's, which colour-blind readers can tell apart, darkened where a line would be faint on
  white. Lines carry their label at their end, so that colour is never the only distinction.
- An SVG has a `<title>` and a `<desc>`, `role="img"`, and text as text. It has no script, no `style` attribute and no
  reference to the network, so that a page with a strict content policy can show it.
- Without dark mode an SVG needs no CSS. `dark_css` replaces each colour where the reader prefers dark pages.
- Equal content gives equal text.
"""

from __future__ import annotations

import io
import re
import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from squelch.actors.process.imports import importing

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, MUTED, GRID, PAPER = "#1f2328", "#59636e", "#d8dee4", "#ffffff"
BLUE, VERMILLION, GREEN, PURPLE, OCHRE = "#0072b2", "#d55e00", "#008f68", "#a8488a", "#9a6a00"
PALETTE = (BLUE, VERMILLION, GREEN, PURPLE, OCHRE)
"""Colours of lines, in order. A panel has at most as many lines, besides a grey one to compare with."""
BASELINE = "#6e7781"
"""Colour of what the others are compared with."""
DARK: Mapping[str, str] = {
    INK: "#e6edf3",
    MUTED: "#9aa4ae",
    GRID: "#30363d",
    PAPER: "#0d1117",
    BLUE: "#58a6e8",
    VERMILLION: "#ff8f4a",
    GREEN: "#35c994",
    PURPLE: "#d98cc0",
    OCHRE: "#d9a441",
    BASELINE: "#8b949e",
}
"""Colour on a light page -> on a dark page."""
WIDTH = 9.6
"""Width of a figure in inches, of 72 points each: 691 points, a page's width at the font's true size."""
FONT_PT = 9.5
CLASS = "squelch-figure"
FONTS = "system-ui, -apple-system, 'Segoe UI', 'Helvetica Neue', Arial, sans-serif"
SETTINGS: Mapping[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "squelch",
    "font.family": ["DejaVu Sans"],
    "font.size": FONT_PT,
    "text.color": INK,
    "text.parse_math": False,  # a run may be called `a$b`
    "axes.labelcolor": MUTED,
    "axes.labelsize": FONT_PT,
    "axes.titlesize": FONT_PT + 0.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlecolor": INK,
    "axes.edgecolor": GRID,
    "axes.facecolor": "none",
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.unicode_minus": True,
    "grid.color": GRID,
    "grid.linewidth": 0.7,
    "xtick.color": GRID,
    "ytick.color": GRID,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "xtick.labelsize": FONT_PT - 1,
    "ytick.labelsize": FONT_PT - 1,
    "xtick.major.size": 3.0,
    "ytick.major.size": 0.0,
    "lines.linewidth": 1.8,
    "lines.solid_capstyle": "round",
    "figure.facecolor": PAPER,
    "savefig.facecolor": "auto",
    "figure.constrained_layout.w_pad": 0.08,
    "figure.constrained_layout.h_pad": 0.08,
}
SVG, XLINK = "http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"
_DRAWING = threading.Lock()
_REFERENCE = re.compile(r"url\(#([^)]+)\)")


def render(name: str, title: str, description: str, draw: Callable[[], Figure]) -> str:
    """The result of `draw`, as the text of an `<svg>` element for a page.

    Args:
        name: prefix of all ids in the figure; unique on a page.
        title: what the figure shows, read out by screen readers; `description`: how it is read.
        draw: makes the figure, with matplotlib's settings set to this module's.
    """
    with importing():
        import matplotlib

    with _DRAWING, matplotlib.rc_context(dict(SETTINGS)):
        buffer = io.StringIO()
        figure = draw()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return _tidy(buffer.getvalue(), name, title, description)


def standalone(svg: str) -> str:
    """The `<svg>` element of `render` as a file, which follows the reader's preference for dark pages itself."""
    head, rest = svg.split(">", 1)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{head}><style>{dark_css()}</style>{rest}\n'


def dark_css() -> str:
    """CSS that replaces the colours of figures where the reader prefers dark pages."""
    pairs = [(paint, *pair) for pair in DARK.items() for paint in ("fill", "stroke")]
    rules = "".join(f".{CLASS} [{paint}='{light}']{{{paint}:{dark}}}" for paint, light, dark in pairs)
    return f"@media (prefers-color-scheme:dark){{{rules}}}"


def _tidy(text: str, name: str, title: str, description: str) -> str:
    """matplotlib's SVG without what a page does not need: metadata, style attributes, ids that other figures share."""
    ElementTree.register_namespace("", SVG)
    ElementTree.register_namespace("xlink", XLINK)
    root = ElementTree.fromstring(text)
    for child in root.findall(f"{{{SVG}}}metadata"):
        root.remove(child)
    for child in root.findall(f"{{{SVG}}}defs"):
        if child.find(f"{{{SVG}}}style") is not None:
            root.remove(child)
    for element in root.iter():
        _plain(element, name)
    wide, high = root.get("viewBox", "0 0 1 1").split()[2:]
    root.attrib.update({"class": CLASS, "role": "img", "aria-labelledby": f"{name}-title {name}-desc"})
    root.attrib.update({"width": f"{float(wide):.0f}pt", "height": f"{float(high):.0f}pt"})
    root.attrib.update({"stroke-linejoin": "round", "font-family": FONTS})
    for place, (tag, words) in enumerate((("title", title), ("desc", description))):
        element = ElementTree.Element(f"{{{SVG}}}{tag}", {"id": f"{name}-{tag}"})
        element.text = words
        root.insert(place, element)
    return re.sub(r">\s+<", "><", ElementTree.tostring(root, encoding="unicode"))


def _plain(element: ElementTree.Element, name: str) -> None:
    """Turns an element's style into attributes, shortens its path, and puts the figure's name before its ids."""
    for part in element.attrib.pop("style", "").split(";"):
        key, _, value = part.partition(":")
        if key.strip() and key.strip() not in ("font-family", "font"):
            element.set(key.strip(), value.strip())
    for key, value in list(element.attrib.items()):
        if key == "id":
            element.set(key, f"{name}-{value}")
        elif key == f"{{{XLINK}}}href" and value.startswith("#"):
            element.set(key, f"#{name}-{value[1:]}")
        elif "url(#" in value:
            element.set(key, _REFERENCE.sub(rf"url(#{name}-\1)", value))
        elif key == "d":
            element.set(key, _short(value))
    if element.tag == f"{{{SVG}}}g":
        element.attrib.pop("id", None)  # matplotlib refers to paths and clips, never to groups


def _short(path: str) -> str:
    """A path's data with a tenth of a point, which no reader can see a difference to."""
    rounded = re.sub(r"-?\d+\.\d+", lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), path)
    return " ".join(rounded.split())
