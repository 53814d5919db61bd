"""The published products and instructions (github.com/princeton-nlp/WebShop, `setup.sh`).

    products      items_shuffle.json or items_shuffle_1000.json: an array of products
    attributes    items_ins_v2.json or items_ins_v2_1000.json: ASIN -> {attributes, instruction, instruction_attributes}
    instructions  items_human_ins.json: ASIN -> [{instruction, instruction_attributes, instruction_options}]

As in the released code: with `instructions` the goals are those that people wrote, else the synthetic goals of
`attributes`, each with a combination of the product's options; goals without attributes and products without a valid
ASIN are excluded; a product without a price costs 100. Unlike in the released code, a price range counts as its middle,
a goal's price limit is the same in all runs, and a goal's split is a function of its digest, not of the shuffled order.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeVar

from pydantic import BaseModel, TypeAdapter, ValidationError, model_validator

from squelch.envs.data.rows import Rows, read_rows
from squelch.envs.retrieval import Index, Passage, open_index
from squelch.envs.retrieval.index import file_identity
from squelch.envs.web_shop.made_up import price_limit
from squelch.envs.web_shop.products import NO_LIMIT, Goal, Product
from squelch.kit.records.splits import Split, split_of, task_key_of
from squelch.kit.untrusted.files import MIB, brief, read_bytes, require_regular, shortened, state
from squelch.kit.untrusted.text import parse_json

Asin = str
T = TypeVar("T")

NO_PRICE = 100.0
HIGHEST_LIMITED = 970.0
"""Largest price with a limit. Above it the released code finds fewer than two limits to draw from, and sets none."""
MAX_ASIN = 10
MAX_MAPPING = 256 * MIB
"""Bytes of the files of attributes and instructions."""

_NUMBER = re.compile(r"\d[\d,]*\.?\d*")


class OptionValue(BaseModel):
    """One value of an option."""

    value: str


class ProductRow(BaseModel):
    """The used columns of a product."""

    asin: str
    name: str
    query: str = ""
    product_category: str = ""
    full_description: str | None = None
    small_description: list[str] | str | None = None
    pricing: str | None = None
    customization_options: dict[str, list[OptionValue] | None] | Literal[""] | None = None


class Described(BaseModel):
    """A product's entry in `attributes`."""

    attributes: list[str] = []
    instruction: str | None = None
    instruction_attributes: list[str] | None = None


class Written(BaseModel):
    """One instruction that a person wrote."""

    instruction: str
    instruction_attributes: list[str] = []
    instruction_options: list[str] | dict[str, str] = []

    @model_validator(mode="after")
    def _has_text_if_used(self) -> Written:
        if self.instruction_attributes and not self.instruction.strip():
            raise ValueError("an instruction with attributes needs a text")
        return self


@dataclass(frozen=True)
class Wish:
    """An instruction whose price limit, and options if `options` is None, are not drawn yet."""

    row: int
    instruction: str
    attributes: tuple[str, ...]
    options: tuple[str, ...] | None


_PRODUCT, _WISH, _DESCRIBED = TypeAdapter(Product), TypeAdapter(Wish), TypeAdapter(dict[Asin, Described])


class PublishedShop:
    """The published products as a catalogue. The wishes of each split are stored on disk next to the index."""

    def __init__(self, products: str, attributes: str, instructions: str | None, cache: str | None) -> None:
        paths = [Path(path) for path in (products, attributes)]
        self._files = [*paths, *([Path(instructions)] if instructions else [])]
        for path in self._files:
            if state(path) is None:
                raise ValueError(f"{path}: no such file; need WebShop's published JSON files")
            require_regular(path)
        self.index: Index = open_index("products", file_identity(paths), lambda: _passages(products, attributes), cache)
        self._wishes = _written if instructions else _synthetic
        self._cache = cache
        self._goals: dict[Split, Index] = {}

    def product(self, row: int) -> Product:
        """The product in a row of the index."""
        return _unpack(self.index.passage(row).payload)

    def goal(self, seed: int, split: Split) -> Goal:
        """The goal of `seed`; consecutive seeds use each of the split's wishes once before any is repeated."""
        if split not in self._goals:
            identity = f"{split}\n{file_identity(self._files)}"
            self._goals[split] = open_index("goals", identity, lambda: self._owned(split), self._cache)
        turn, place = divmod(seed, len(self._goals[split]))
        wish = _WISH.validate_json(self._goals[split].passage(place).payload)
        product = self.product(wish.row)
        return _goal(wish, product, wish.options if wish.options is not None else _combination(product, turn))

    def _owned(self, split: Split) -> Iterator[Passage]:
        """The split's wishes for existing products. All goals made from one instruction are in the same split."""
        import pyarrow as pa  # loaded only when needed, see envs.retrieval.index
        import pyarrow.compute as pc

        source, owned = str(self._files[-1]), 0
        wishes = self._wishes(source)
        rows = pc.index_in(pa.array([asin for asin, _ in wishes], pa.string()), value_set=self.index.ids).to_pylist()
        for row, (asin, wish) in zip(rows, wishes, strict=True):
            if row is not None and split_of(task_key_of("WebShop", wish.instruction)) == split:
                owned += 1
                yield Passage(asin, wish.instruction, "", json.dumps(asdict(replace(wish, row=row))))
        if not owned:
            raise ValueError(f"{source}: no goals for split {split!r} among the products; need more of both")


def _passages(products: str, attributes: str) -> Iterator[Passage]:
    described = _read_mapping(attributes, _DESCRIBED)
    rows = read_rows(products, "train", ProductRow)
    seen: set[Asin] = set()
    for number, row in enumerate(rows):
        if row.asin == "nan" or len(row.asin) > MAX_ASIN or row.asin in seen:
            continue
        seen.add(row.asin)
        product = _product(row, described.get(row.asin, Described()), rows, number)
        yield Passage(product.id, product.title, product.text, json.dumps(asdict(product)))


def _product(row: ProductRow, described: Described, rows: Rows[ProductRow], number: int) -> Product:
    options = {
        name.lower(): tuple(_spaced(value.value.replace("/", " | ")) for value in values)
        for name, values in (row.customization_options or {}).items()
        if values
    }
    features = row.small_description or []
    return Product(
        id=row.asin,
        title=row.name,
        price=_price(row.pricing, rows, number),
        attributes=tuple(described.attributes),
        options=tuple(options.items()),
        query=row.query.lower().strip(),
        category=tuple(level.strip() for level in row.product_category.split("›") if level.strip()),
        description=row.full_description or "",
        features=(features,) if isinstance(features, str) else tuple(features),
    )


def _price(text: str | None, rows: Rows[ProductRow], number: int) -> float:
    """The price in dollars; of a range, its middle."""
    if not text:
        return NO_PRICE
    found = [float(price.replace(",", "")) for price in _NUMBER.findall(text)][:2]
    if not found:
        raise ValueError(f"{rows.location(number)}, column pricing: need dollars such as '$9.99' (got {brief(text)})")
    return sum(found) / len(found)


@lru_cache(maxsize=2**14)
def _unpack(payload: str) -> Product:
    return _PRODUCT.validate_json(payload)


def _written(path: str) -> list[tuple[Asin, Wish]]:
    return [
        (
            asin,
            Wish(-1, one.instruction.strip("."), tuple(one.instruction_attributes), _values(one.instruction_options)),
        )
        for asin, several in _read_mapping(path, TypeAdapter(dict[Asin, list[Written]])).items()
        for one in several
        if one.instruction_attributes
    ]


def _values(options: list[str] | dict[str, str]) -> tuple[str, ...]:
    return tuple(_spaced(value) for value in (options.values() if isinstance(options, dict) else options))


def _spaced(value: str) -> str:
    """A value as an action names it: in lower case, every run of white space one space (`envs.bracketed`)."""
    return " ".join(value.split()).lower()


def _synthetic(path: str) -> list[tuple[Asin, Wish]]:
    return [
        (asin, Wish(-1, one.instruction, tuple(one.instruction_attributes), None))
        for asin, one in _read_mapping(path, _DESCRIBED).items()
        if one.instruction and one.instruction_attributes
    ]


def _read_mapping(path: str, entries: TypeAdapter[dict[Asin, T]]) -> dict[Asin, T]:
    """A JSON object with an entry for each ASIN; ValueError names file, ASIN and column."""
    content = parse_json(read_bytes(Path(path), MAX_MAPPING), path)
    if not isinstance(content, dict):
        raise ValueError(f"{path}: an object with an entry for each ASIN is needed (got {brief(content)})")
    try:
        return entries.validate_python(content)
    except ValidationError as error:
        first = error.errors()[0]
        asin, *column = map(str, first["loc"])
        named = f"{path}, ASIN {shortened(asin, 80)}, column {'.'.join(column) or 'the entry'}"
        raise ValueError(f"{named}: {first['msg']} (got {brief(first['input'])})") from error


def _combination(product: Product, number: int) -> tuple[str, ...]:
    """One value per option: combination `number` of all combinations, modulo their count."""
    chosen = []
    for _, values in product.options:
        number, place = divmod(number, len(values))
        chosen.append(values[place])
    return tuple(chosen)


def _goal(wish: Wish, product: Product, options: tuple[str, ...]) -> Goal:
    limited = product.price < HIGHEST_LIMITED
    limit = price_limit(random.Random(f"{product.id} {wish.instruction}"), product.price) if limited else NO_LIMIT
    text = wish.instruction
    if wish.options is None and options:
        named = zip((name for name, _ in product.options), options, strict=True)
        text += " with " + ", and ".join(f"{name}: {value}" for name, value in named)
    text += f", and price lower than {limit:.2f} dollars" if limited else ""
    return Goal(
        instruction=text,
        title=product.title,
        attributes=wish.attributes,
        options=options,
        price_limit=limit,
        query=product.query,
        category=product.category,
        product=wish.row,
        key=task_key_of("WebShop", f"{product.id}\n{text}"),
    )
