"""WebShop: the made-up shop, the published files, pages, the reward, and what bad input gets."""

import json
import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from squelch.envs.registry import make
from squelch.envs.web_shop.made_up import MadeUpShop, draw_goal, make_product
from squelch.envs.web_shop.products import NO_LIMIT, Goal, Product, best_choice, purchase_reward, type_reward
from squelch.envs.wording import DemonstrationQuality
from tests.envs.demonstrations import PERFECT, last_reward
from tests.envs.hostile_searches import hostile_searches

SMALL = {"num_products": 1000}
IDS = {**SMALL, "result_buttons": "id"}
SHIRT = Product(
    "b1",
    "Kavo linen shirt",
    20.0,
    ("linen", "slim fit"),
    (("color", ("dark red", "blue")), ("size", ("large", "x large"))),
    "shirt",
    ("clothing", "men", "shirt"),
    "Made for summer.",
    ("Machine wash",),
)
GOAL = Goal(
    "i need a shirt",
    "Moro cotton shirt",
    ("slim fit", "linen"),
    ("red", "large"),
    30.0,
    "shirt",
    ("clothing", "men"),
    0,
    "k",
)


# --- the reward ---


@pytest.mark.parametrize(
    ("chosen", "price", "reward"),
    [
        ({"color": "dark red", "size": "large"}, 20.0, 1.0),  # (2 + 2 + 1) / (2 + 2 + 1)
        ({"color": "dark red", "size": "large"}, 31.0, 4 / 5),
        ({"color": "blue", "size": "large"}, 20.0, 4 / 5),
        ({"color": "dark red", "size": "x large"}, 20.0, 4 / 5),  # a size must be equal
        ({}, 20.0, 3 / 5),
        ({}, 31.0, 2 / 5),
    ],
)
def test_a_purchase_pays_what_the_equation_says(chosen, price, reward):
    bought = Product(SHIRT.id, SHIRT.title, price, SHIRT.attributes, SHIRT.options, SHIRT.query, SHIRT.category)
    assert purchase_reward(bought, chosen, GOAL) == pytest.approx(reward)


@pytest.mark.parametrize(
    ("title", "query", "category", "expected"),
    [
        ("Kavo shirt", "x", (), 1.0),  # one word of three is above 0.2
        ("Kavo mug", "shirt", ("clothing", "men"), 0.0),  # TextMatch = 0 comes first
        ("a b c d e f g h i shirt", "x", (), 1.0),
    ],
)
def test_the_type_of_a_product_weighs_the_whole(title, query, category, expected):
    assert type_reward(Product("b", title, 1.0, query=query, category=category), GOAL) == expected


@pytest.mark.parametrize(
    ("shared", "total", "query", "category", "expected"),
    [
        (1, 11, "shirt", ("clothing", "men"), 0.1),
        (1, 5, "x", ("clothing",), 0.5),  # 0.2 is not above 0.2, and one level of the category is not two
        (1, 5, "shirt", (), 1.0),
        (1, 5, "x", ("men", "clothing"), 1.0),
        (2, 5, "x", (), 1.0),
    ],
)
def test_a_title_that_hardly_matches_needs_its_query_or_category(shared, total, query, category, expected):
    words = [f"word{i}" for i in range(total)]
    goal = Goal("", " ".join(words), (), (), NO_LIMIT, "shirt", ("clothing", "men"), 0, "k")
    product = Product("b", " ".join(words[:shared]), 1.0, query=query, category=category)
    assert type_reward(product, goal) == expected


def test_attributes_are_found_in_the_text_too():
    bare = Product("b", "linen shirt", 1.0, description="Very SLIM fit indeed", query="shirt")
    assert purchase_reward(bare, {}, GOAL) == pytest.approx(3 / 5)


words = st.text("ab rd-é", max_size=12)


@given(
    st.lists(words, max_size=4),
    st.lists(words, max_size=4),
    st.lists(words, max_size=3),
    st.floats(0, 100),
    words,
    words,
)
@settings(max_examples=300, deadline=None)
def test_no_purchase_pays_outside_the_unit_interval(attributes, offered, wanted, price, title, goal_title):
    product = Product("b", title, price, tuple(attributes), (("color", tuple(offered)), ("size", tuple(wanted))))
    goal = Goal("", goal_title, tuple(wanted), tuple(offered), 50.0, "", (), 0, "k")
    chosen = best_choice(product, goal)
    assert 0 <= purchase_reward(product, chosen, goal) <= 1
    assert all(chosen[name] in dict(product.options)[name] for name in chosen)


# --- the made-up shop ---


def test_every_goal_can_be_met_in_full_by_the_product_it_was_drawn_from():
    for seed in range(500):
        goal = draw_goal(0, 1000, seed, "train")
        product = make_product(0, goal.product)
        assert purchase_reward(product, best_choice(product, goal), goal) == 1.0
        assert all(part in goal.instruction for part in (*goal.attributes, *goal.options, f"{goal.price_limit:g}"))
        assert product.price < goal.price_limit <= product.price + 40


def test_instructions_say_all_that_the_reward_depends_on():
    goals: dict[str, tuple] = {}
    for seed in range(3000):
        goal = draw_goal.__wrapped__(0, 10_000, seed, "train")
        rules = (goal.title, goal.attributes, goal.options, goal.price_limit, goal.query, goal.category, goal.key)
        assert goals.setdefault(goal.instruction, rules) == rules


@pytest.mark.slow
def test_splits_share_no_goal():
    keys = {
        split: {draw_goal.__wrapped__(0, 10_000, seed, split).key for seed in range(10_000)}
        for split in ("train", "validation")
    }
    assert not keys["train"] & keys["validation"]
    assert len(keys["train"]) > 9000 and len(keys["validation"]) > 6500


def test_shops_of_other_seeds_are_others():
    assert [MadeUpShop(0, 10).product(i) for i in range(9)] != [MadeUpShop(1, 10).product(i) for i in range(9)]


# --- playing ---


@pytest.mark.parametrize("options", [SMALL, IDS], ids=["number", "id"])
def test_the_solver_buys_what_is_asked_for_within_the_turns(options):
    env, lengths = make("WebShop", "validation", options), []
    for seed in range(100):
        env.reset(seed=seed, options={"noise_seed": 0})
        solution = env.solution()
        lengths.append(len(solution))
        *_, (_, reward, terminated, _, info) = [env.step(action) for action in solution]
        assert terminated and info["success"] and reward == 1.0 and env.solution() is None
    assert sum(length <= env.max_turns for length in lengths) > 97


@pytest.mark.parametrize("seed", range(20))
def test_the_solver_finds_its_way_from_anywhere(seed):
    env, rng = make("WebShop", options=IDS if seed % 2 else SMALL), random.Random(seed)
    env.reset(seed=seed)
    for _ in range(12):
        buttons = ["next >", "< prev", "back to search", "description", "features", "red", "s"]
        ids = list(env._listed(env._place))
        env.step(rng.choice([f"click[{rng.choice(buttons + ids + ids)}]", "search[red linen shirt]"]))
    for _ in range(40):
        if env.solution() is None:
            break
        info = env.step(env.solution()[0])[4]
    assert info["success"]


def test_pages_lead_where_their_buttons_say():
    env = make("WebShop", options={**IDS, "per_page": 3})
    start, info = env.reset(seed=0)
    assert info["page"] == "search" and start == env._goal.instruction

    def press(button: str) -> str:
        return env.step(f"click[{button}]")[0]

    first = env.step("search[red shirt]")[0]
    assert first.startswith("page 1 of 17 [next >] [back to search]\n[p") and first.count("\n") == 3
    second = press("Next >")
    assert second.startswith("page 2 of 17 [next >] [< prev] [back to search]") and second != first
    assert press("< prev") == first == press("< prev")  # there is nothing before the first page
    product = env._shop.product(env._place.shown(env.options.per_page)[1])
    item = press(product.id.upper())
    assert item.startswith("[buy now] [description] [features] [< prev] [back to search]\n" + product.title)
    (name, (value, *_)), *_ = product.options
    assert f"{name} ? : [{value}]" in item and f"{name} {value} : [{value}]" in press(value)
    assert product.description in press("description")
    assert f"{name} {value} : " in press("< prev")  # the choice is kept
    assert product.features[0] in press("features")
    assert press("buy now") == press("features")  # not on this page
    press("< prev")
    assert press("< prev") == first
    assert press("back to search") == start


def test_results_are_opened_by_their_number_on_the_page_unless_ids_are_asked_for():
    env, by_id = make("WebShop", options=SMALL), make("WebShop", options=IDS)
    env.reset(seed=0)
    env.step("search[shirt]")
    page = env.step("click[next >]")[0]
    assert [line[:4] for line in page.splitlines()[1:]] == ["[1] ", "[2] ", "[3] ", "[4] "]
    product = env._shop.product(env._place.shown(env.options.per_page)[2])
    for absent in ("click[0]", "click[5]", f"click[{product.id}]"):
        assert env.step(absent)[0] == page
    assert product.title in env.step("click[3]")[0].splitlines()[1]
    by_id.reset(seed=0)
    page = by_id.step("search[shirt]")[0]
    assert by_id.step("click[1]")[0] == page


def test_other_pages_take_no_purchase():
    env = make("WebShop", options=SMALL)
    env.reset(seed=0)
    for action in ("click[buy now]", "search[shirt]", "click[buy now]", "click[red]", "click[p1]", "click[5]"):
        assert not env.step(action)[2]


def test_choosing_again_replaces_and_an_opened_product_starts_without_choices():
    env = make("WebShop", options=IDS)
    env.reset(seed=0)
    env.step("search[shirt]")
    product = env._shop.product(env._place.shown(env.options.per_page)[0])
    one, other = product.options[0][1][:2]
    for action in (product.id, one, other):
        page = env.step(f"click[{action}]")[0]
    assert f"color {other} : " in page
    env.step("click[< prev]")
    assert "color ? : " in env.step(f"click[{product.id}]")[0]


def test_binary_pays_full_purchases_only():
    paid = {}
    for reward in ("dense", "binary"):
        env = make("WebShop", options={**SMALL, "reward": reward})
        seed = next(s for s in range(99) if env.reset(seed=s) and env._goal.options)
        for early in (True, False):
            env.reset(seed=seed)
            solution = env.solution()
            actions = [a for a in solution if not (early and a[6:-1] in env._goal.options)]
            paid[reward, early] = [env.step(action)[1] for action in actions][-1]
    assert 0 < paid["dense", True] < 1 == paid["dense", False] == paid["binary", False]
    assert paid["binary", True] == 0.0


def test_observations_keep_to_their_bounds():
    options = {**SMALL, "per_page": 50, "max_page_length": 200, "max_title_length": 10, "max_text_length": 10}
    env = make("WebShop", options=options)
    env.reset(seed=0)
    assert len(env.step("search[shirt]")[0]) == 200
    assert len(env.step("click[1]")[0]) <= 200
    assert env.step("click[features]")[0].endswith("\n" + ", ".join(env._product().features).replace(", ", " , ")[:10])


def test_an_action_is_read_as_itself_also_where_lower_case_is_longer():
    env = make("WebShop", options=SMALL)
    read = env.read_action(f"CLICK[{'İ' * 200}]")
    assert read is not None and env.read_action(read) == read and len(read) <= env.max_action_length


def test_two_thousand_hostile_actions_raise_nothing():
    env = make("WebShop", options=SMALL)
    env.reset(seed=0)
    for count, text in enumerate(hostile_searches(random.Random(0), 2000, ("search", "click"))):
        observation, reward, terminated, _, _ = env.step(text)
        assert env.observation_space.contains(observation) and 0 <= reward <= 1
        if terminated:
            env.reset(seed=count)
        elif count % 7 == 0:
            env.step(env.solution()[0])


def test_perfect_demonstrations_solve_and_usual_ones_differ_within_a_group():
    env, rng = make("WebShop", options=SMALL), random.Random(0)
    assert all(last_reward(env, seed, rng, PERFECT) == 1.0 for seed in range(30))
    groups = [[last_reward(env, seed, rng, DemonstrationQuality()) for _ in range(16)] for seed in range(20)]
    assert sum(len(set(group)) > 1 for group in groups) > 12


# --- the published files ---

COLORS = ("red", "blue")


def product_row(number: int) -> dict:
    return {
        "asin": f"B{number:09d}",
        "name": f"Brand{number} Cotton Shirt/Top",
        "query": "Men's Shirts ",
        "product_category": "Clothing › Men › Shirts",
        "full_description": f"Shirt number{number}.",
        "small_description": ["Machine wash", f"Feature {number}"],
        "pricing": ("$10.50", "$1,010.00 $1,030.00", "", None)[number % 4],
        "customization_options": {"Color": [{"value": " Red / Pink "}, {"value": "Blue"}], "Fit": None},
        "images": ["x"],
    }


@pytest.fixture
def files(tmp_path):
    rows = [product_row(i) for i in range(40)] + [{**product_row(0), "asin": "nan"}, product_row(3)]
    asins = [f"B{i:09d}" for i in range(41)]  # one of them is not on sale
    described = {
        asin: {"attributes": ["slim fit"], "instruction": f"Find shirt {asin}", "instruction_attributes": ["slim fit"]}
        for asin in asins
    }
    described[asins[1]]["instruction"] = None
    written = {
        asin: [
            {"asin": asin, "instruction": f"I want shirt {asin}.", "instruction_attributes": ["slim fit"]}
            | {"instruction_options": ["Blue"]},
            {"asin": asin, "instruction": "nothing", "instruction_attributes": [], "instruction_options": []},
        ]
        for asin in asins
    }
    named = {"products": "items_shuffle_1000.json", "attributes": "items_ins_v2_1000.json"}
    for name, content in zip((*named.values(), "items_human_ins.json"), (rows, described, written), strict=True):
        (tmp_path / name).write_text(json.dumps(content))
    return {**{k: str(tmp_path / v) for k, v in named.items()}, "cache": str(tmp_path / "cache")}


def test_the_published_files_are_read_as_their_own_code_reads_them(files):
    env = make("WebShop", options=files)
    assert len(env._shop.index) == 40
    env.reset(seed=0)
    assert "[B0000000" in env.step("search[shirt]")[0]  # opened by their ids, as published
    product = env._shop.product(1)
    assert product.title == "Brand1 Cotton Shirt/Top" and product.query == "men's shirts"
    assert product.options == (("color", ("red | pink", "blue")),)
    assert product.category == ("Clothing", "Men", "Shirts") and product.attributes == ("slim fit",)
    assert [env._shop.product(i).price for i in range(4)] == [10.5, 1020.0, 100.0, 100.0]


def test_synthetic_goals_name_options_and_price_and_can_be_met(files):
    seen = {}
    for split in ("train", "validation"):
        env = make("WebShop", split, files)
        texts = [env.reset(seed=seed)[0] for seed in range(90)]
        seen[split] = {text.split()[2] for text in texts}
        assert all(" with color: " in text for text in texts)
        assert any("price lower than" in text for text in texts)
        for seed in range(5):
            env.reset(seed=seed)
            assert [env.step(action) for action in env.solution()][-1][4]["success"]
    assert not seen["train"] & seen["validation"] and len(seen["train"] | seen["validation"]) == 39


def test_goals_that_people_wrote_are_preferred(files, tmp_path):
    env = make("WebShop", options={**files, "instructions": str(tmp_path / "items_human_ins.json")})
    texts = {env.reset(seed=seed)[0] for seed in range(90)}
    assert all(text.startswith("I want shirt B") and text != "nothing" for text in texts)
    assert env._goal.options == ("blue",)
    assert [env.step(action) for action in env.solution()][-1][4]["success"]


# --- bad input ---


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"reward": "best"}, r"environment\.options\.reward: .*'dense' or 'binary'"),
        ({"num_products": 0}, r"environment\.options\.num_products: .*greater than or equal to 10"),
        ({"per_page": 0}, r"environment\.options\.per_page"),
        ({"max_results": 0}, r"environment\.options\.max_results"),
        ({"result_buttons": "name"}, r"environment\.options\.result_buttons: .*'number' or 'id'"),
        ({"products": "x"}, "products and attributes belong together"),
        ({"instructions": "x"}, "instructions without products"),
        ({"products": "/nowhere/p.json", "attributes": "/nowhere/a.json"}, r"/nowhere/p\.json: no such file"),
    ],
)
def test_a_wrong_option_is_refused_with_what_would_be_right(options, message):
    with pytest.raises(ValueError, match=message):
        make("WebShop", options=options)


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("products", "[]", r"items_shuffle_1000\.json: no rows"),
        ("products", "{}", r"items_shuffle_1000\.json"),
        ("products", '[{"asin": "nan", "name": "x"}]', "there is nothing to search"),
        ("products", '[{"asin": "b"}]', r"items_shuffle_1000\.json, row 1, column name: missing"),
        (
            "products",
            '[{"asin": "b", "name": "x", "pricing": "cheap"}]',
            r"row 1, column pricing: need dollars .*'cheap'",
        ),
        (
            "products",
            '[{"asin": "b", "name": "x", "customization_options": {"a": [{}]}}]',
            r"row 1, column customization_options",
        ),
        ("attributes", "nonsense", r"items_ins_v2_1000\.json: not JSON"),
        ("attributes", "[1]", r"items_ins_v2_1000\.json: an object with an entry for each ASIN"),
        (
            "attributes",
            '{"B1": {"attributes": 3}}',
            r"items_ins_v2_1000\.json, ASIN B1, column attributes: .*valid list",
        ),
        ("attributes", "{}", "no goals for split 'train'"),
        (
            "instructions",
            '{"B1": [{"instruction": "", "instruction_attributes": ["x"]}]}',
            r"human_ins\.json, ASIN B1, column 0: .*needs a text",
        ),
    ],
)
def test_a_bad_file_is_named_with_row_and_column(files, tmp_path, file, content, message):
    options = {**files, "instructions": str(tmp_path / "items_human_ins.json")} if file == "instructions" else files
    with open(options[file], "w") as out:
        out.write(content)
    with pytest.raises(ValueError, match=message):
        make("WebShop", options=options).reset(seed=0)


def test_a_file_that_cannot_be_read_is_named(files, monkeypatch):
    opened = os.open

    def refused(path, *others):
        if str(path).endswith(".json"):
            raise PermissionError(13, "Permission denied")
        return opened(path, *others)

    monkeypatch.setattr("os.open", refused)
    with pytest.raises(ValueError, match=r"items_ins_v2_1000\.json cannot be opened: Permission denied"):
        make("WebShop", options=files)
