"""WebShop: find, configure and buy the product that an instruction describes (paper, appendix B.1; Yao et al. 2022).

    observation  the instruction; then the pages of `envs.web_shop.pages`, which do not repeat it
    action       `search[words]` or `click[button]`
    reward       of the purchase: `dense` (`envs.web_shop.products`), or `binary`: 1 for a purchase that meets all of it
                 (the authors' code); nothing else pays
    end          the purchase, or the turns

Differences from the published shop: `search` works from every page, not from the first one only, which saves a turn;
there are no reviews; buttons stand in brackets and pages are short, so that a small context holds an episode. Results
of the made-up shop are opened by their number on the page: its products' ids mean nothing, and copying them is no part
of the task (`result_buttons: id` asks for it).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import lru_cache
from typing import Annotated, Any, Literal

from gymnasium.spaces import Text
from pydantic import Field

from squelch.envs.base import TextEnv
from squelch.envs.bracketed import MAX_ARGUMENT, read_bracketed, split_bracketed
from squelch.envs.contract import Demonstrator
from squelch.envs.text import PRINTABLE, printable
from squelch.envs.web_shop.made_up import MIN_PRODUCTS, MadeUpShop
from squelch.envs.web_shop.pages import (
    BACK,
    BOUGHT,
    BUY,
    NEXT,
    PREVIOUS,
    TEXTS,
    Limits,
    Place,
    item_page,
    press,
    result_button,
    results_page,
    shown_title,
    text_page,
)
from squelch.envs.web_shop.products import Catalogue, Goal, Product, best_choice, purchase_reward
from squelch.envs.web_shop.published import PublishedShop
from squelch.envs.wording import DEFAULT_QUALITY, DemonstrationQuality, Rng, choose, generic_reasoning, wordings_beside
from squelch.kit.base.settings import Settings
from squelch.kit.base.user_files import NAMES_FILES
from squelch.kit.records.splits import Split

MAX_INSTRUCTION = 800


class WebShopOptions(Settings):
    """The products, the reward of a purchase, and the size of pages."""

    reward: Literal["dense", "binary"] = "dense"
    """`dense` (WebShop's equation), or `binary`: 1 if that is 1, else 0."""
    num_products: int = Field(10_000, ge=MIN_PRODUCTS, le=2_000_000)
    """Size of the made-up shop."""
    shop_seed: int = Field(0, ge=0, lt=2**63)
    """Seed of the made-up shop."""
    products: Annotated[str | None, NAMES_FILES] = None
    """The published products instead of made-up ones: items_shuffle.json or items_shuffle_1000.json."""
    attributes: Annotated[str | None, NAMES_FILES] = None
    """The attributes of `products`: items_ins_v2.json or items_ins_v2_1000.json."""
    instructions: Annotated[str | None, NAMES_FILES] = None
    """Goals that people wrote for `products`: items_human_ins.json. Unset: the synthetic goals of `attributes`."""
    max_results: int = Field(50, ge=1, le=1000)
    """Products that a search finds (50 in the published shop)."""
    per_page: int = Field(4, ge=1, le=50)
    """Products on a page of results (10 in the published shop)."""
    result_buttons: Literal["number", "id"] | None = None
    """The button that opens a result: its `number` on the page, or the product's `id`, as in the published shop. By
    default `number` in a made-up shop, `id` with `products`."""
    max_title_length: int = Field(60, ge=10, le=1000)
    """Characters shown of a title or a value."""
    max_text_length: int = Field(300, ge=10, le=20_000)
    """Characters shown of a description, or of the features."""
    max_values: int = Field(12, ge=1, le=1000)
    """Values shown of one option; the others can be clicked, too."""
    max_page_length: int = Field(1200, ge=100, le=100_000)
    """Characters of a page."""
    cache: str | None = None
    """Folder of the index; by default that in the variable SQUELCH_CACHE, else the user's cache folder."""

    def _faults(self) -> Iterator[str]:
        if (self.products is None) != (self.attributes is None):
            yield "products and attributes belong together: name both of WebShop's files, or neither"
        if self.instructions is not None and self.products is None:
            yield "instructions without products; name the files of the products too"


class WebShop(TextEnv, Demonstrator):
    """Search the shop, choose a product and its options, and buy it."""

    name = "WebShop"
    Options = WebShopOptions
    options: WebShopOptions
    wordings = wordings_beside(__file__)
    max_turns = 8
    max_action_length = MAX_ARGUMENT + len("search[]")

    def __init__(self, split: Split = "train", render_mode: str | None = None, **options: Any) -> None:
        super().__init__(split, render_mode, **options)
        o = self.options
        numbered = (o.result_buttons or ("number" if o.products is None else "id")) == "number"
        self._limits = Limits(o.per_page, o.max_title_length, o.max_text_length, o.max_values, numbered)
        self._shop = _open_shop(o.products, o.attributes, o.instructions, o.num_products, o.shop_seed, o.cache)
        self._index = self._shop.index
        self._shop.goal(0, self.split)  # raises errors in the goals before actors start

    def read_action(self, text: str) -> str | None:
        """As `read_bracketed`; names of buttons become lower case."""
        action = read_bracketed(text, ("search", "click"))
        if action is None or not action.startswith("click"):
            return action
        return read_bracketed(action.lower(), ("click",))  # read again, because lower case may be longer ("İ")

    def observation(self) -> str:
        """The current state as text."""
        place = self._place
        if place.kind == "search":
            instruction = printable(" ".join(self._goal.instruction.split()), MAX_INSTRUCTION)
            return self.wording.shown["instruction"].format(instruction=instruction)
        if place.kind == "bought":
            return BOUGHT
        if place.kind == "results":
            page = results_page(place, list(map(self._shop.product, place.shown(self.options.per_page))), self._limits)
        elif place.kind == "item":
            page = item_page(place, self._product(), self._limits)
        else:
            page = text_page(place.kind, self._product(), self._limits)
        return page[: self.options.max_page_length]

    def task_key(self) -> str:
        """Digest of the task's content."""
        return self._goal.key

    def task_kind(self) -> str:
        """The number of options that the instruction asks for."""
        return f"{len(self._goal.options)} options"

    def solution(self) -> list[str] | None:
        """Searches and clicks to the best purchase that the solver finds from here, which need not be perfect."""
        if self._terminated():
            return None
        return self._way(self._place)

    def demonstrate(self, rng: Rng, quality: DemonstrationQuality = DEFAULT_QUALITY) -> tuple[str, list[str]]:
        """The solver's next step in templated words; `wrong_coordinates` talks of another one."""
        grounded = rng.random() < quality.grounded
        wrong = rng.random() < (quality.random_plan if grounded else quality.generic_random_plan)
        action = self._blunder(rng) if wrong else (self.solution() or [_click(BACK)])[0]
        if not grounded:
            return generic_reasoning(rng, self.wording), [action]
        said = self._blunder(rng) if rng.random() < quality.wrong_coordinates else action
        return self._reasoning(rng, said), [action]

    def _blunder(self, rng: Rng) -> str:
        """A possible action that is probably not the best: half a query, any product, or a purchase too early."""
        place = self._place
        if place.kind == "results" and place.hits:
            return _click(choose(rng, tuple(self._listed(place))))
        if place.kind == "item":
            values = [value for _, offered in self._product().options for value in offered]
            return _click(choose(rng, [BUY, BUY, *values[:8]]))
        return f"search[{choose(rng, (*self._goal.attributes, self._goal.query or self._goal.title))[:MAX_ARGUMENT]}]"

    def _reasoning(self, rng: Rng, action: str) -> str:
        verb, argument = split_bracketed(action)
        goal, listed = self._goal, self._listed(self._place) if self._place.kind == "results" else {}
        if verb == "search":
            kind = "search"
        elif argument == BUY:
            kind = "purchase"
        else:
            kind = "result" if argument in listed else "page" if self._place.kind == "results" else "option"
        return choose(rng, self.wording.said[kind]).format(
            argument=argument,
            attributes=" ".join(goal.attributes),
            wanted=" ".join((*goal.attributes, goal.query or goal.title, *goal.options)),
            title=shown_title(self._shop.product(listed[argument]), self._limits) if argument in listed else "",
        )

    def _way(self, place: Place) -> list[str]:
        """The actions from `place` on; searches again only if no found product is perfect."""
        if place.kind in TEXTS:
            return [_click(PREVIOUS), *self._way(replace(place, kind="item"))]
        worth = self._worth(place.row) if place.kind == "item" else -1.0
        found = self._best(place.hits)[1]
        if max(worth, found) < 1.0:
            query, hits = self._query()
            if hits != place.hits:
                return [f"search[{query}]", *self._from_results(Place("results", hits))]
        if worth >= found:
            return self._from_item(place) if place.kind == "item" else []
        return [*([_click(PREVIOUS)] if place.kind == "item" else []), *self._from_results(place)]

    def _from_item(self, place: Place) -> list[str]:
        """Choose the wanted options that are not chosen yet, then buy."""
        wanted = best_choice(self._shop.product(place.row), self._goal)
        return [*(_click(v) for name, v in wanted.items() if place.chosen.get(name) != v), _click(BUY)]

    def _from_results(self, place: Place) -> list[str]:
        """Go to the page of the best found product, open it, and buy; no actions if none was found."""
        if not place.hits:
            return []
        rank, _ = self._best(place.hits)
        turns = rank // self.options.per_page - place.page
        row = place.hits[rank]
        turning = [_click(NEXT if turns > 0 else PREVIOUS)] * abs(turns)
        button = result_button(self._shop.product(row), rank % self.options.per_page, self._limits)
        return [*turning, _click(button), *self._from_item(Place("item", place.hits, row=row))]

    def _best(self, hits: tuple[int, ...]) -> tuple[int, float]:
        """(rank, reward) of the first found product with the largest reward; (0, -1) if none was found."""
        best = (0, -1.0)
        for rank, row in enumerate(hits):
            worth = self._worth(row)
            if worth > best[1]:
                best = rank, worth
            if worth == 1.0:
                break
        return best

    def _worth(self, row: int) -> float:
        """Dense reward of a purchase of that product with its best options."""
        product = self._shop.product(row)
        return purchase_reward(product, best_choice(product, self._goal), self._goal)

    def _query(self) -> tuple[str, tuple[int, ...]]:
        """The first of a few queries that finds a perfect purchase on its first page, else the last: the title."""
        goal = self._goal
        wanted = " ".join((*goal.attributes, goal.query, *goal.options))
        for query in (wanted, self._shop.product(goal.product).title):
            text = split_bracketed(read_bracketed(f"search[{query}]", ("search",)) or "search[?]")[1]
            hits = self._search(text)
            rank, worth = self._best(hits)
            if worth == 1.0 and rank < self.options.per_page:
                break
        return text, hits

    def _search(self, query: str) -> tuple[int, ...]:
        return tuple(row for row, _ in self._index.search(query, self.options.max_results))

    def _listed(self, place: Place) -> dict[str, int]:
        """Rows on the page of results by the button that opens them."""
        rows = enumerate(place.shown(self.options.per_page))
        return {result_button(self._shop.product(row), at, self._limits).lower(): row for at, row in rows}

    def _product(self) -> Product:
        return self._shop.product(self._place.row)

    def _observation_space(self) -> Text:
        longest = MAX_INSTRUCTION + len(self.wording.shown["instruction"]) - len("{instruction}")
        return Text(max(longest, self.options.max_page_length), charset=PRINTABLE)

    def _load(self, seed: int) -> dict[str, Any]:
        self._goal: Goal = self._shop.goal(seed, self.split)
        self._place = Place()
        self._paid = 0.0
        return {"page": "search", "options_wanted": len(self._goal.options)}

    def _details(self) -> dict[str, Any]:
        return {"page": self._place.kind}

    def _move(self, action: str) -> float:
        verb, argument = split_bracketed(action)
        if verb == "search":
            self._place = Place("results", self._search(argument))
            return 0.0
        product = self._product() if self._place.row >= 0 else None
        self._place = press(self._place, argument, product, self._listed(self._place), self._limits)
        if self._place.kind != "bought":
            return 0.0
        self._paid = purchase_reward(self._product(), self._place.chosen, self._goal)
        return self._paid if self.options.reward == "dense" else float(self._paid == 1.0)

    def _terminated(self) -> bool:
        return self._place.kind == "bought"

    def _succeeded(self) -> bool:
        return self._terminated() and self._paid == 1.0


def _click(button: str) -> str:
    """An action as `read_action` returns it."""
    return read_bracketed(f"click[{button}]".lower(), ("click",)) or "click[?]"


@lru_cache(maxsize=8)
def _open_shop(
    products: str | None, attributes: str | None, instructions: str | None, size: int, seed: int, cache: str | None
) -> Catalogue:
    """One shop for all environments of a process."""
    if products is None or attributes is None:
        return MadeUpShop(seed, size, cache)
    return PublishedShop(products, attributes, instructions, cache)
