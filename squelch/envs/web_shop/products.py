"""Products, goals, and how well a purchase meets a goal.

The reward is WebShop's (Yao et al. 2022, section 3 and appendix A): with the goal's attributes U_att, options U_opt and
highest price u, and a purchase with attributes Y_att, chosen options Y_opt and price y,

    r = r_type * (|U_att & Y_att| + |U_opt & Y_opt| + 1[y <= u]) / (|U_att| + |U_opt| + 1)

    r_type = 0    if TextMatch = 0
             0.1  if TextMatch < 0.1
             0.5  if TextMatch <= 0.2, and neither the query nor two levels of the category are the same
             1    otherwise

TextMatch is the share of the words of the goal product's title that are also in the purchased product's title.
Differences from the released code: all words of a title except stop words count, not only its nouns according to spaCy;
|U_opt & Y_opt| counts goal options that were chosen, whereas the code counts chosen options that match, so that its
reward can exceed 1; colours are not mapped to basic colours first (the comparison of words accepts "dark red" for "red"
anyway).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

from rapidfuzz import fuzz, utils

from squelch.envs.retrieval import Index
from squelch.envs.retrieval.index import words_of
from squelch.kit.records.splits import Split

SAME_WORDS = 85
"""Token-set ratio above which two phrases mean the same (the released code's)."""
EXACT_OPTIONS = frozenset({"size"})
"""Options whose values must be equal: "x large" is not "large"."""
NO_LIMIT = 1_000_000.0


@dataclass(frozen=True)
class Product:
    """One article. `options`: names with the values on offer; `category`: from the widest level to the narrowest."""

    id: str
    title: str
    price: float
    attributes: tuple[str, ...] = ()
    options: tuple[tuple[str, tuple[str, ...]], ...] = ()
    query: str = ""
    category: tuple[str, ...] = ()
    description: str = ""
    features: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """The text that is searched in addition to the title."""
        values = (value for _, offered in self.options for value in offered)
        return " ".join((self.description, *self.features, *self.attributes, *values))


@dataclass(frozen=True)
class Goal:
    """One task: the requirements of an instruction. `title`, `query` and `category` are those of the goal's product."""

    instruction: str
    title: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    price_limit: float
    query: str
    category: tuple[str, ...]
    product: int
    """Row of a product that meets the goal."""
    key: str


class Catalogue(Protocol):
    """Products by row, an index with the same rows, and goals by seed."""

    @property
    def index(self) -> Index:
        """The index of the products' texts."""

    def product(self, row: int) -> Product:
        """The product in a row of the index."""

    def goal(self, seed: int, split: Split) -> Goal:
        """The goal of `seed` in a split."""


def purchase_reward(product: Product, chosen: Mapping[str, str], goal: Goal) -> float:
    """r of the module's head, in [0, 1]. `chosen`: option name -> value."""
    met = attributes_met(product, goal) + options_met(chosen, goal) + (product.price <= goal.price_limit)
    return type_reward(product, goal) * met / (len(goal.attributes) + len(goal.options) + 1)


def type_reward(product: Product, goal: Goal) -> float:
    """r_type: how well the product's kind agrees with the goal's; 0, 0.1, 0.5 or 1."""
    share = _shared_words(product.title, goal.title)
    if share == 0:
        return 0.0
    if share < 0.1:
        return 0.1
    same_category = len(set(product.category) & set(goal.category)) >= 2
    same_query = bool(goal.query) and product.query == goal.query
    return 1.0 if same_query or same_category or share > 0.2 else 0.5


def attributes_met(product: Product, goal: Goal) -> int:
    """Number of the goal's attributes that the product lists, or that occur in its text."""
    everything = " ".join((product.title, *product.features, product.description)).lower()
    return sum(
        attribute in everything or any(same_words(attribute, own) for own in product.attributes)
        for attribute in goal.attributes
    )


def options_met(chosen: Mapping[str, str], goal: Goal) -> int:
    """Number of the goal's options that were chosen."""
    return sum(any(option_meets(name, value, wanted) for name, value in chosen.items()) for wanted in goal.options)


def option_meets(name: str, value: str, wanted: str) -> bool:
    """Whether the value of that option is the wanted one."""
    return value == wanted or (name not in EXACT_OPTIONS and same_words(value, wanted))


def best_choice(product: Product, goal: Goal) -> dict[str, str]:
    """Values, by option name, that meet as many of the goal's options as possible; exact matches are preferred."""
    choice: dict[str, str] = {}
    for wanted in goal.options:
        offers = [(name, value) for name, values in product.options for value in values if name not in choice]
        fitting = [offer for offer in offers if offer[1] == wanted] or [o for o in offers if option_meets(*o, wanted)]
        choice.update(fitting[:1])
    return choice


@lru_cache(maxsize=2**16)
def same_words(one: str, other: str) -> bool:
    """Whether two phrases mean the same according to their words. Phrases mean the same if one contains all words of
    the other."""
    return fuzz.token_set_ratio(one, other, processor=utils.default_process) > SAME_WORDS


def _shared_words(title: str, goal_title: str) -> float:
    """TextMatch, in [0, 1]; 0.2 if the goal's title has no words."""
    wanted = set(words_of(goal_title))
    return len(wanted & set(words_of(title))) / len(wanted) if wanted else 0.2
