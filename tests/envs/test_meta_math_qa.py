"""MetaMathQA: attempts at halving rewards, generated and published questions, answers by value, hostile answers."""

import collections
import json
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from squelch.envs.config import EnvironmentConfig
from squelch.envs.episode import Episode
from squelch.envs.format import well_formed
from squelch.envs.meta_math_qa.answers import Judge, plain, verdict
from squelch.envs.meta_math_qa.environment import MetaMathQA, MetaMathQAOptions, answers, generated, shuffled
from squelch.envs.meta_math_qa.problems import SCHEMAS, Draw, generate
from squelch.envs.registry import make, resolved

HOSTILE_PARTS = (
    *("1", "9", "72", "0.5", "99", "x", "y", "n", "+", "-", "*", "/", "^", "^{", "}", "{", "(", ")", "[", "]", "!"),
    *("!!", "\\frac", "\\frac{", "}{", "\\sqrt{", "\\sqrt[3]{", "\\pi", "e", "i", "%", "\\%", "$", "=", "<", "\\le"),
    *(",", ";", "_", "|", "\\cdot", "\\sin", "\\log", "\\sum", "\\int", "\\lim", "\\begin{pmatrix}", "&", "\\\\"),
    *("\\infty", "\\text{", "cm", " ", "\n", "½", "²", "٣", "∞", "−", "\\boxed{", "\\left(", "\\right)", "1e9", "9^9"),
    *("99!", "\\binom", "\\operatorname{", "x^{99}", "(x+1)^{99}", "\x00", "😀", "\ud800", "\\cup", "\\mod", "\\gcd"),
    *("__import__('os')", "lambda:0", "'", '"', "\\circ", "\\{", "\\}", "±", "\\write18{", "\\input{/etc/passwd}"),
)


def published_rows(count: int) -> list[dict[str, str]]:
    """As the data set is published: several rephrasings of each original question."""
    return [
        {
            "type": "GSM_Rephrased",
            "query": f"Rephrasing {i} of question {i // 4}?",
            "original_question": f"Question {i // 4}?",
            "response": f"It is {i // 4} halves.\n#### \\frac{{{i // 4}}}{{2}}\nThe answer is: \\frac{{{i // 4}}}{{2}}",
        }
        for i in range(count)
    ]


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "MetaMathQA-395K.json"
    path.write_text(json.dumps(published_rows(400)))
    return path


def test_each_wrong_attempt_halves_the_reward_and_the_right_one_ends_the_episode():
    for wrong in range(3):
        env = make("MetaMathQA")
        env.reset(seed=5)
        truth = env.solution()[0]
        for attempt in range(wrong):
            observation, reward, terminated, _, info = env.step("-12345")
            assert (reward, terminated, info["success"], info["attempts"]) == (0.0, False, False, attempt + 1)
            assert "Try again" in observation
        _, reward, terminated, _, info = env.step(truth)
        assert (reward, terminated, info["success"]) == (0.5**wrong, True, True)
        assert env.step(truth)[1] == 0.0


def test_a_turn_without_an_answer_is_no_attempt():
    env = make("MetaMathQA")
    env.reset(seed=5)
    for text in ("", "  \n", "7" * (answers.MAX_LENGTH + 1)):
        assert env.step(text)[4] == {"success": False, "action_valid": False, "attempts": 0, "verdict": None}
    assert env.step(env.solution()[0])[1] == 1.0


def test_an_answer_that_holds_the_separator_is_one_answer():
    env = make("MetaMathQA")
    config = resolved(EnvironmentConfig(name="MetaMathQA")).format
    episode = Episode(env, 5, 0, config)
    episode.start()
    assert episode.act(well_formed("so", ["1 || 2"])).num_actions == 1


def test_there_are_at_least_twelve_schemas_and_each_is_drawn():
    assert len(SCHEMAS) >= 12
    drawn = collections.Counter(generate(str(seed), 12).schema for seed in range(2000))
    assert set(drawn) == {schema.__name__ for schema in SCHEMAS}
    assert min(drawn.values()) > 2000 / len(SCHEMAS) / 2


def test_every_step_of_a_worked_solution_holds_and_the_last_one_gives_the_answer():
    for seed in range(9):  # with the library's time a comparison, a sample is enough
        for schema in SCHEMAS:
            problem = schema(Draw(f"{schema.__name__} {seed}", 3 + 7 * seed))
            for step in problem.steps:
                left, right = step.split("=")
                assert verdict(left, right) == "equal", problem
            assert problem.steps[-1].split("=")[1] == problem.answer, problem


@pytest.mark.slow
def test_ten_thousand_contents_a_split_and_none_in_both():
    keys = {}
    for split in ("train", "validation"):
        env = make("MetaMathQA", split)
        keys[split] = set()
        for seed in range(11_000):
            env.reset(seed=seed)
            keys[split].add(env.task_key())
        assert len(keys[split]) >= 10_000
    assert not keys["train"] & keys["validation"]


def test_demonstrations_are_sometimes_wrong_so_that_rewards_vary():
    env, mixed, rights = make("MetaMathQA"), 0, 0
    for seed in range(40):
        env.reset(seed=seed)
        rng, right = random.Random(seed), []
        for _ in range(16):
            reasoning, actions = env.demonstrate(rng)
            assert len(actions) == 1 and env.read_action(actions[0]) == actions[0]
            assert "<" not in reasoning and len(reasoning) < 100
            right.append(actions == env.solution())
        mixed += 0 < sum(right) < 16
        rights += sum(right)
    assert mixed >= 36
    assert 0.3 < rights / 640 < 0.9


@pytest.mark.parametrize("form", ["json", "jsonl", "parquet"])
def test_the_published_data_set_is_read_in_each_form(tmp_path: Path, form: str):
    path, rows = tmp_path / f"train.{form}", published_rows(60)
    if form == "parquet":
        pq.write_table(pa.Table.from_pylist(rows), path)
    else:
        path.write_text(json.dumps(rows) if form == "json" else "\n".join(map(json.dumps, rows)))
    env = make("MetaMathQA", options={"data": str(path)})
    observation, info = env.reset(seed=3)
    assert observation.startswith("Rephrasing") and info["source"].startswith(str(path))
    number = int(observation.split()[-1].rstrip("?"))
    assert env.solution() == [f"\\frac{{{number}}}{{2}}"]
    assert env.step(f"{number / 2}")[1] == 1.0


def test_consecutive_seeds_play_every_published_question_once(published: Path):
    env = MetaMathQA("train", data=str(published))
    length = len({shuffled(seed, 350) for seed in range(1000, 1350)})
    assert length == 350
    seen = collections.Counter()
    for seed in range(400):
        env.reset(seed=seed)
        seen[env.task_key()] += 1
    assert max(seen.values()) <= 2 and len(seen) > 300


def test_rephrasings_of_one_question_never_straddle_the_split(published: Path):
    originals = {}
    for split in ("train", "validation"):
        env = make("MetaMathQA", split, {"data": str(published)})
        originals[split] = {env.reset(seed=seed)[0].split()[-1] for seed in range(500)}
    assert not originals["train"] & originals["validation"]
    assert len(originals["train"] | originals["validation"]) == 100


def test_the_held_out_part_never_trains_whatever_the_seed(published: Path):
    held = make("MetaMathQA", "validation", {"data": str(published)})
    held_keys = {held.reset(seed=seed) and held.task_key() for seed in range(100)}
    trained = make("MetaMathQA", "train", {"data": str(published)})
    for seed in [*range(1_000_000_000, 1_000_000_400), 2**62]:
        trained.reset(seed=seed)
        assert trained.task_key() not in held_keys


def test_a_response_without_an_answer_names_file_row_and_column(tmp_path: Path):
    rows = [row | {"response": "no idea"} for row in published_rows(40)]
    path = tmp_path / "train.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    env = make("MetaMathQA", options={"data": str(path)})
    with pytest.raises(ValueError, match=r"train\.jsonl, line \d+, column response: it must end in 'The answer is: X'"):
        env.reset(seed=0)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"data": "/nowhere/at/all.parquet"}, "/nowhere/at/all.parquet: no such file or folder"),
        ({"largest": 2}, "environment.options.largest"),
        ({"compare": "fuzzy"}, "environment.options.compare"),
    ],
)
def test_wrong_options_and_missing_data_are_said_before_anything_starts(options: dict[str, Any], complaint: str):
    with pytest.raises(ValueError) as caught:
        make("MetaMathQA", options=options)
    assert complaint in str(caught.value)


EQUAL = [
    *(("3/4", "0.75"), ("3/4", "\\frac{3}{4}"), ("\\frac{3}{4}", "\\dfrac34"), ("3/4", "75%"), ("75", "75\\%")),
    *(("0.5", "50 percent"), ("1,234", "1234"), ("1234", "1 234"), ("12", "$12"), ("\\$12", "12"), ("12", "12.")),
    *(("12", "12 dollars"), ("12", "12\\text{ cm}"), ("30", "30 miles per hour"), ("12", "12.0"), ("3.5", "$3.50")),
    *(("x^2+1", "1+x^2"), ("2\\sqrt{3}", "\\sqrt{12}"), ("Monday", "\\text{monday}"), ("1500", "1.5e3")),
    *(("1/3", "0.333333"), ("11/2", "5 1/2"), ("11/2", "5½"), ("5", "x=5"), ("-3", "−3"), ("60", "60^\\circ")),
    *(
        ("12", "The answer is: 12"),
        ("12", "$12$"),
        ("12", "١٢"),
        ("\\pi", "pi"),
        ("(1,2)", "(1, 2)"),
        ("x<3", "3>x"),
        ("2\\pi", "2π"),
        ("\\sqrt{5}", "√{5}"),
        ("6", "12÷2"),
    ),
    *(("5", answer) for answer in ("\\boxed{5}", "\\[5\\]", "**5**", "**x = 5**", "5 = x", "5.0", "$5$", "**5.**.")),
    *(("5", answer) for answer in ("**\\boxed{5}**", "$\\boxed{x=5}$", "\\[5 = x\\]", "\\(5 = x\\)", "**Answer: 5**")),
    *(("0.5", "\\frac{1}{2} = x"), ("\\frac{1}{\\sqrt{2}}", "\\boxed{\\frac{1}{\\sqrt{2}}}"), ("Monday", "**monday**")),
    *(("y=2x+3", "2x+3 = y"), ("x<3", "\\boxed{3>x}")),
]
DIFFERENT = [
    *(("12", "13"), ("12", "12 or 13"), ("god", "dog"), ("3", "3 million"), ("3/4", "0.74"), ("-3", "3")),
    *(("x+1", "x+2"), ("(1,2)", "(2,1)"), ("72", "7 2"), ("5", "y"), ("1/3", "0.33"), ("12", "no idea")),
    *(("5", hedged) for hedged in ("**4 or 5**", "\\boxed{4 or 5}", "**4** or **5**", "\\[4\\] \\[5\\]", "4, 5 = x")),
    *(("5", hedged) for hedged in ("5 = x or 4 = x", "$4$ or $5$", "\\boxed{4, 5}", "4; 5 = x", "5 = y = x", "5 = e")),
]


@pytest.mark.parametrize(("truth", "answer"), EQUAL)
def test_equal_values_are_right_however_they_are_written(truth: str, answer: str):
    assert verdict(answer, truth) == "equal"


@pytest.mark.parametrize(("truth", "answer"), DIFFERENT)
def test_different_values_are_wrong(truth: str, answer: str):
    assert verdict(answer, truth) == "different"


@pytest.mark.parametrize(
    "answer", ["\\boxed{4}, \\boxed{5}", "\\boxed{\\boxed{5}}", "\\boxed{9^{9^9}}", "**9999!**", "\\boxed{}"]
)
def test_what_a_wrapper_holds_is_bounded_as_any_answer_is(answer: str) -> None:
    assert verdict(answer, "5") == "refused"


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        *(("3/4", "0.75", True), ("12 dollars", "$12", True), ("x = 5", "5", True), ("Monday", "monday", True)),
        *(("12", "13", False), ("no idea", "12", False), ("9999!", "9999!!", False)),
        ("4.40", "4.40 cents", False),  # a price in dollars; the reverse alone would be right
    ],
)
def test_actions_are_the_same_as_the_rewards_comparison_judges_in_either_direction(
    one: str, other: str, same: bool
) -> None:
    by_value, by_text = make("MetaMathQA"), make("MetaMathQA", options={"compare": "exact"})
    assert by_value.same_action(one, other) is by_value.same_action(other, one) is same
    assert by_text.same_action(one, one) and not by_text.same_action(one, other)


def test_the_papers_exact_match_takes_the_same_text_only():
    env = make("MetaMathQA", options={"compare": "exact"})
    seed = next(seed for seed in range(200) if env.reset(seed=seed) and env.solution() == ["12"])
    env.reset(seed=seed)
    assert env.step("12.0")[1] == 0.0 and env.step("$12")[1] == 0.0
    assert env.step(" 12 ")[1] == 0.25


@pytest.mark.parametrize(
    ("answer", "expected"),
    [("x+1", "equal"), ("X\t+ 1 ", "equal"), ("x + 1.", "different"), ("1 + x", "different"), ("$x + 1$", "different")],
)
def test_the_authors_comparison_ignores_case_and_white_space_and_nothing_else(answer: str, expected: str) -> None:
    assert verdict(answer, " x + 1", "text") == expected


@pytest.mark.parametrize(
    ("answer", "truth", "expected"),
    [
        *((answer, "2", "different") for answer in ("2 trillion", "2 squared", "2 factorial", "2 thirds", "2 halves")),
        *((answer, "2", "equal") for answer in ("2 whole apples", "2 square inches", "2 degrees", "2 cents")),
        *(
            (answer, "2", "equal")
            for answer in ("2 meters squared", "2 third graders", "2 quarters", "2 apples or pears")
        ),
        ("4.40 cents", "4.40", "different"),
        ("4.40 cents", "4.40 cents", "equal"),
        ("12.5 cents", "12.5", "equal"),
        ("12.5", "12.5 cents", "equal"),
        ("4.40 dollars", "4.40", "equal"),
        ("440 cents", "440", "equal"),
    ],
)
def test_a_word_that_changes_a_value_is_no_unit(answer: str, truth: str, expected: str) -> None:
    """Found by a reviewer: "5 squared" was 5, and "4.40 cents" the price in dollars."""
    assert verdict(answer, truth) == expected


@pytest.mark.parametrize(
    ("answer", "truth", "expected"),
    [
        *(("3²", "32", "different"), ("3²", "9", "equal"), ("√144", "12", "equal"), ("√144", "44", "different")),
        *(("x²+1", "x^2+1", "equal"), ("x⁻¹", "1/x", "equal"), ("2ⁿ", "2^n", "equal"), ("(x+1)²", "(x+1)^2", "equal")),
        *(("√2.25", "1.5", "equal"), ("2√3", "\\sqrt{12}", "equal"), ("√(144)", "12", "equal")),
        *(("¹/₂", "0.5", "equal"), ("5¹⁄₂", "5.5", "equal"), ("5¹⁄₂", "51/2", "different")),
        *(("12₈", "128", "different"), ("12₈", "12_8", "equal")),
        *((answer, "108", "equal") for answer in ("108 m²", "108 m^2", "108cm^{2}", "108\\text{ m}^2", "108 m/s²")),
        *(("x + 5 m²", "x + 5", "different"), ("5x²", "5", "different")),
    ],
)
def test_a_raised_or_lowered_digit_is_no_plain_digit(answer: str, truth: str, expected: str) -> None:
    assert verdict(answer, truth) == expected


@pytest.mark.parametrize(
    ("tail", "expected"),
    [
        *(
            (tail, "different")
            for tail in (
                *("minus one", "plus one", "times ten", "times itself", "half", "score", "to thirteen", "not"),
                *("is wrong", "apples minus one", "cm is wrong", "degrees below zero", "over two", "or thirteen"),
            )
        ),
        *((tail, "equal") for tail in ("miles/hour", "km/h", "m/s", "kg/person/day", "times", "times as many")),
        *((tail, "equal") for tail in ("ways to choose", "squares", "square inches", "apples or pears")),
    ],
)
def test_each_word_after_a_number_can_change_it_and_units_may_be_compound(tail: str, expected: str) -> None:
    assert verdict(f"12 {tail}", "12") == expected


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        ("5\\frac{3}{4}?", "3/4"),
        ("1-\\frac{3}{4}?", "-3/4"),
        ("not \\frac{1}{2}, but 3?", "1/2"),
        ("7 @ $12$", "12"),
        ("5 @@ \\frac{3}{4}", "3/4"),
        ("\\boxed{12} is wrong", "12"),
        ("\\boxed{12} + 1", "12"),
        ("\\fbox{12} + 1", "12"),
    ],
)
def test_a_part_of_an_answer_is_not_judged_for_the_whole(answer: str, truth: str) -> None:
    assert verdict(answer, truth) in ("different", "refused")


def test_long_tails_are_read_in_little_time() -> None:
    for text in ("1" + " ab" * 60 + "!", "1 " + "ab/cd" * 39 + "!", "√(" * 99, "1" + "²" * 199, "1 " + "m^2" * 60):
        started = time.process_time()
        plain(text)
        assert time.process_time() - started < 5


@pytest.mark.parametrize(
    "answer",
    [
        "9^9^9^9",
        "9^{9^{9^9}}",
        "(99!)!",
        "9" * 31,
        "2^{1000}",
        "(" * 40 + "1" + ")" * 40,
        "\\sum_{n=1}^{9}",
        "1)(",
        "$",
    ],
)
def test_what_no_question_asks_for_is_refused_without_being_computed(answer: str):
    assert plain(answer) is None and verdict(answer, "72") == "refused"


@pytest.fixture
def judge() -> Iterator[Judge]:
    judge = Judge()
    yield judge
    judge.close()


@pytest.mark.slow
def test_a_comparison_that_runs_away_is_given_up_and_the_next_one_works(judge: Judge, monkeypatch: pytest.MonkeyPatch):
    started = time.process_time()
    for monster in ("9^{9^{9^{9}}}", "(((9!)!)!)!"):
        assert judge.compare("72", monster) == "given_up"
        assert judge.compare("3/4", "0.75") == "equal"
    assert time.process_time() - started < 5  # the work is done, and ended, in the other process


@pytest.mark.slow
def test_a_judge_that_died_is_replaced(judge: Judge):
    assert judge.compare("1", "2") == "different"
    process = judge._process
    assert process is not None
    process.kill()
    process.wait()
    assert judge.compare("1", "1.0") == "equal"


def test_a_verdict_that_was_no_longer_waited_for_is_not_the_next_answers(judge: Judge, monkeypatch: pytest.MonkeyPatch):
    assert judge.compare("1", "2") == "different"
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(answers.select, "poll", interrupt)
        judge.compare("1", "1.0")
    assert [judge.compare("1", said) for said in ("3", "1.00", "4")] == ["different", "equal", "different"]


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_a_child_that_dies_with_a_request_that_it_has_not_read_whole_loses_none(judge: Judge):
    assert judge.compare("1", "2") == "different"
    process = judge._process
    assert process is not None and process.stdin is not None
    for text in (b"", b'[99, "7", "7.0", 0.'):  # killed while idle; killed in the middle of a line
        process.stdin.write(text)
        time.sleep(0.05)
        (child,) = psutil.Process(process.pid).children()
        child.kill()
        assert [judge.compare("1", said) for said in ("3", "1.00", "4")] == ["different", "equal", "different"]
    assert judge._process is process


def test_a_judge_that_ended_while_it_was_asked_is_named(judge: Judge, monkeypatch: pytest.MonkeyPatch):
    assert judge.compare("1", "2") == "different"
    process = judge._process
    assert process is not None
    (child,) = psutil.Process(process.pid).children()
    process.kill()
    child.kill()
    monkeypatch.setattr(judge, "_started", lambda: process)
    with pytest.raises(RuntimeError, match="answer judge ended"):
        judge.compare("1", "3")


def test_a_judge_is_started_before_the_first_answer_and_once(judge: Judge):
    judge.prepare()
    process = judge._process
    judge.prepare()
    assert process is not None and judge._process is process
    assert judge.compare("1", "1.0") == "equal" and judge._process is process


def test_a_judge_that_is_late_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(answers, "WAIT_S", 0.0)
    judge = Judge()
    with pytest.raises(TimeoutError, match="answer judge did not answer within"):
        judge.compare("1", "2")
    assert judge._process is None


def test_answers_are_compared_from_many_threads_at_once():
    found: list[tuple[int, str]] = []

    def work(k: int) -> None:
        found.append((k, verdict(f"{k}.00", f"{k % 5}")))

    threads = [threading.Thread(target=work, args=(k,)) for k in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(180)
    assert sorted(found) == [(k, "equal" if k < 5 else "different") for k in range(10)]


@pytest.mark.slow
@settings(max_examples=500, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.one_of(st.lists(st.sampled_from(HOSTILE_PARTS), max_size=24).map("".join), st.text(max_size=60)))
@example("1" + "a" * 190 + "!")
@example("(" * 100 + ")" * 100)
@example("1" + " cm." * 49 + "!")
@example("\\sin" * 3 + " " * 180 + "^")
def test_no_answer_raises_or_earns_anything_by_accident(answer: str):
    env = hostile_env()
    env.reset(seed=0)
    taken = env.read_action(answer)
    assert taken is None or (env.read_action(taken) == taken and len(taken) <= env.action_space.max_length)
    observation, reward, _, _, info = env.step(answer)
    assert info["action_valid"] == (taken is not None)
    assert env.observation_space.contains(observation)
    assert reward == (1.0 if info["verdict"] == "equal" else 0.0)
    assert info["verdict"] in (None, "equal", "different", "refused", "given_up")


_ENVS: list[MetaMathQA] = []


def hostile_env() -> MetaMathQA:
    """One environment for all examples."""
    if not _ENVS:
        _ENVS.append(MetaMathQA(**MetaMathQAOptions().model_dump()))
    return _ENVS[0]


@pytest.mark.parametrize("largest", [12, 100])
def test_no_validation_problem_is_a_training_problem_about_other_people(largest: int) -> None:
    """Found by a reviewer: the split was decided by the text, so that 43% had the arithmetic of a training problem."""
    made = {
        split: {
            (question.source, question.worked)
            for question in (generated(seed, split, MetaMathQAOptions(largest=largest)) for seed in range(600))
        }
        for split in ("train", "validation")
    }
    assert len(made["validation"]) > 100 and not made["train"] & made["validation"]
