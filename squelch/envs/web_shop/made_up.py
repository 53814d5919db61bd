"""A made-up shop, for use without the published products.

Invariants: product i of a shop is a function of (shop seed, i); only the search index is stored. A goal names no brand
and is drawn from a product, so at least one product meets it, and usually several do. Its instruction states everything
that the reward depends on.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from pydantic import TypeAdapter

from squelch.envs.retrieval import Index, Passage, open_index
from squelch.envs.web_shop.products import Goal, Product
from squelch.envs.wording import choose, draw_distinct
from squelch.kit.records.splits import MAX_DRAWS, Split, split_of, task_key_of
from squelch.kit.untrusted.text import own_yaml

SHOP_VERSION = 1
"""Increase it with every change of the products, so that indices of older shops are not used."""
MIN_PRODUCTS = 10
ATTRIBUTES_EACH = 3
PRICE_STEP = 10.0
PRICE_STEPS = 4  # a goal's limit is one of the next multiples of PRICE_STEP above the price (WebShop's goals)

_INSTRUCTIONS = ("i need a {}", "find me a {}", "i am looking for a {}", "buy a {}")
_BRAND_PARTS = (("ava", "bro", "cel", "dur", "eno", "fal", "gri", "hul"), ("ka", "mo", "nix", "ro"))
_BRANDS = ["".join(parts).capitalize() for parts in itertools.product(*_BRAND_PARTS)]


@dataclass(frozen=True)
class Department:
    """A department: kinds of products, their possible attributes, and the options that a buyer chooses."""

    name: str
    types: tuple[str, ...]
    attributes: tuple[str, ...]
    options: tuple[tuple[str, tuple[str, ...]], ...]


DEPARTMENTS = TypeAdapter(tuple[Department, ...]).validate_python(own_yaml(Path(__file__).with_suffix(".yaml")))


@dataclass(frozen=True)
class MadeUpShop:
    """The shop of a seed, with `size` products; its index is in the folder `cache`."""

    seed: int
    size: int
    cache: str | None = None

    @property
    def index(self) -> Index:
        """The index of the shop's products, built at first use."""
        name = f"{SHOP_VERSION} {self.seed} {self.size}"
        return open_index("shop", name, self._passages, self.cache)

    def product(self, row: int) -> Product:
        """The product in a row."""
        return make_product(self.seed, row)

    def goal(self, seed: int, split: Split) -> Goal:
        """The goal of `seed` in a split."""
        return draw_goal(self.seed, self.size, seed, split)

    def _passages(self) -> Iterator[Passage]:
        for row in range(self.size):
            product = self.product(row)
            yield Passage(product.id, product.title, product.text)


@lru_cache(maxsize=2**14)
def make_product(shop_seed: int, row: int) -> Product:
    """Product `row` of the shop."""
    rng = random.Random(f"WebShop {shop_seed} {row}")
    department = choose(rng, DEPARTMENTS)
    kind = choose(rng, department.types)
    chosen = draw_distinct(rng, ATTRIBUTES_EACH, len(department.attributes))
    attributes = tuple(department.attributes[i] for i in chosen)
    options = tuple((name, _offered(rng, values)) for name, values in department.options)
    return Product(
        id=f"p{row}",
        title=f"{choose(rng, _BRANDS)} {attributes[0]} {kind}",
        price=5 + int(rng.random() * 180) / 2,
        attributes=attributes,
        options=options,
        query=kind,
        category=(department.name, kind),
        description=f"This {kind} is {attributes[1]}.",
        features=attributes,
    )


def _offered(rng: random.Random, values: tuple[str, ...]) -> tuple[str, ...]:
    """More than half of the values, in their order."""
    count = len(values) // 2 + 1
    return tuple(values[i] for i in sorted(draw_distinct(rng, count, len(values))))


@lru_cache(maxsize=4096)
def draw_goal(shop_seed: int, size: int, seed: int, split: Split) -> Goal:
    """The goal of `seed`: goals are drawn until one belongs to `split`."""
    rng = random.Random(f"WebShop goal {seed}")
    for _ in range(MAX_DRAWS):
        row = int(rng.random() * size)
        goal = _goal(rng, make_product(shop_seed, row), row)
        if split_of(goal.key) == split:
            return goal
    raise ValueError(
        f"environment.options: WebShop found no {split} goal in {MAX_DRAWS} draws from {size} products; enlarge "
        "num_products"
    )


def _goal(rng: random.Random, product: Product, row: int) -> Goal:
    attributes = tuple(product.attributes[i] for i in draw_distinct(rng, 1 + int(rng.random() * 2), ATTRIBUTES_EACH))
    wanted = tuple((name, choose(rng, values)) for name, values in product.options)[: int(rng.random() * 3)]
    limit = price_limit(rng, product.price)
    parts = [f"{product.query} that is {' and '.join(attributes)}"]
    parts += [f"{name} {value}" for name, value in wanted]
    text = f"{', '.join(parts)}, below {limit:g} dollars"
    key = task_key_of("WebShop", text)
    return Goal(
        instruction=_INSTRUCTIONS[int(key[-8:], 16) % len(_INSTRUCTIONS)].format(text),
        title=product.query,
        attributes=attributes,
        options=tuple(value for _, value in wanted),
        price_limit=limit,
        query=product.query,
        category=product.category,
        product=row,
        key=key,
    )


def price_limit(rng: random.Random, price: float) -> float:
    """The larger of two of the next `PRICE_STEPS` multiples of `PRICE_STEP` above the price, as WebShop draws it."""
    first = int(price // PRICE_STEP) + 1
    steps = draw_distinct(rng, 2, PRICE_STEPS)
    return PRICE_STEP * (first + max(steps))
