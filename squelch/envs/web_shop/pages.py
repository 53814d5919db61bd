"""The shop's pages as text, and the effect of their buttons.

    results   `page 1 of 4 [next >] [back to search]`, then one product per line: `[1] title $9.50`, or with its id
              instead of its number on the page (`Limits.numbered`)
    item      `[buy now] [description] [features] [< prev] [back to search]`, title, price, then one option per line:
              `color red : [red] [blue]`, with the chosen value, or `?`, before the colon
    text      `[< prev] [back to search]`, then the description or the features

Buttons are compared without regard to case. A button that is not on the page does nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from squelch.envs.text import printable
from squelch.envs.web_shop.products import Product

NEXT, PREVIOUS, BACK, BUY = "next >", "< prev", "back to search", "buy now"
TEXTS = ("description", "features")
BOUGHT = "bought"
NOTHING = "nothing found"

Kind = Literal["search", "results", "item", "description", "features", "bought"]


@dataclass(frozen=True)
class Limits:
    """Limits of the size of a page."""

    per_page: int
    title_length: int
    text_length: int
    values: int
    numbered: bool
    """Results are opened by their number on the page, not by the product's id."""


@dataclass(frozen=True)
class Place:
    """The present page. `hits`: rows that the last search found; `page` counts from 0; `row`: the shown product."""

    kind: Kind = "search"
    hits: tuple[int, ...] = ()
    page: int = 0
    row: int = -1
    chosen: dict[str, str] = field(default_factory=dict)

    def shown(self, per_page: int) -> tuple[int, ...]:
        """Rows on the page of results."""
        return self.hits[self.page * per_page : (self.page + 1) * per_page]

    def pages(self, per_page: int) -> int:
        """Pages of results, at least one."""
        return max(1, -(-len(self.hits) // per_page))


def result_button(product: Product, position: int, limits: Limits) -> str:
    """The button that opens the product at `position` (from 0) on a page of results."""
    return str(position + 1) if limits.numbered else product.id


def press(place: Place, button: str, product: Product | None, listed: dict[str, int], limits: Limits) -> Place:
    """The place to which a button leads; the same place if the button is not on the page. `product`: the shown product;
    `listed`: rows by button."""
    if button == BACK:
        return Place()
    if place.kind == "results":
        if button in listed:
            return replace(place, kind="item", row=listed[button], chosen={})
        step = {NEXT: 1, PREVIOUS: -1}.get(button, 0)
        inside = 0 <= place.page + step < place.pages(limits.per_page)
        return replace(place, page=place.page + step) if inside else place
    if place.kind == "item" and product is not None:
        return _press_item(place, button, product)
    if place.kind in TEXTS and button == PREVIOUS:
        return replace(place, kind="item")
    return place


def _press_item(place: Place, button: str, product: Product) -> Place:
    if button == PREVIOUS:
        return replace(place, kind="results")
    if button == BUY:
        return replace(place, kind="bought")
    if button in TEXTS:
        return replace(place, kind=button)
    offering = [name for name, values in product.options if button in values]
    unchosen = [name for name in offering if name not in place.chosen]
    names = unchosen or offering  # if two options offer the same value, prefer one without a choice
    return replace(place, chosen={**place.chosen, names[0]: button}) if names else place


def results_page(place: Place, products: list[Product], limits: Limits) -> str:
    """The page of results; `products`: the products of `place.shown`."""
    count = place.pages(limits.per_page)
    buttons = [f"[{NEXT}]"] if place.page + 1 < count else []
    buttons += [f"[{PREVIOUS}]"] if place.page else []
    head = " ".join((f"page {place.page + 1} of {count}", *buttons, f"[{BACK}]"))
    lines = [
        f"[{printable(result_button(product, position, limits), limits.title_length)}] "
        f"{shown_title(product, limits)} ${product.price:.2f}"
        for position, product in enumerate(products)
    ]
    return "\n".join((head, *(lines or [NOTHING])))


def item_page(place: Place, product: Product, limits: Limits) -> str:
    """The product with its options."""
    head = " ".join(f"[{button}]" for button in (BUY, *TEXTS, PREVIOUS, BACK))
    options = [_option_line(name, values, place.chosen.get(name, "?"), limits) for name, values in product.options]
    return "\n".join((head, f"{shown_title(product, limits)} ${product.price:.2f}", *options))


def text_page(kind: Kind, product: Product, limits: Limits) -> str:
    """The description, or the features."""
    text = product.description if kind == "description" else " , ".join(product.features)
    return f"[{PREVIOUS}] [{BACK}]\n{printable(' '.join(text.split()), limits.text_length) or 'none'}"


def _option_line(name: str, values: tuple[str, ...], chosen: str, limits: Limits) -> str:
    shown = [f"[{printable(value, limits.title_length)}]" for value in values[: limits.values]]
    return f"{printable(name, limits.title_length)} {printable(chosen, limits.title_length)} : {' '.join(shown)}"


def shown_title(product: Product, limits: Limits) -> str:
    """The title as pages show it."""
    return printable(" ".join(product.title.split()), limits.title_length)
