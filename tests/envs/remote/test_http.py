"""Environments behind HTTP: the client against the reference server, and against servers that misbehave."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from squelch.envs.adapters.http import Http, RemoteError
from squelch.envs.config import FormatConfig
from squelch.envs.episode import Episode
from squelch.envs.format import well_formed
from squelch.envs.registry import make
from squelch.envs.remote.__main__ import server_of
from squelch.envs.remote.server import Description, EnvironmentServer
from squelch.kit.records.splits import split_of
from squelch.kit.untrusted.http import JsonClient
from tests.envs.remote.serving import served
from tests.envs.retriever_server import serving

NOISE = {"noise_seed": 5}
LAKE = {"slip_rate": 0.3}
TOKEN = "a-token-for-tests"


class Naive:
    """An environment of other people: it knows no splits and no keys; its actions say what it does."""

    def __init__(self) -> None:
        self.closed, self.seed, self.steps, self.finished, self.finished_at_close = False, -1, 0, 0, -1

    def reset(self, split: str, seed: int, noise_seed: int) -> tuple[str, str | None, str | None]:
        self.steps, self.finished, self.seed = 0, 0, seed
        return f"guess {seed % 1000}", None, None

    def step(self, action: str) -> tuple[str, float, bool, bool, bool]:
        self.steps += 1
        if action == "raise":
            raise LookupError("nothing here")
        if action == "hang":
            time.sleep(30)
        if action == "slow":
            time.sleep(0.6)
        self.finished += 1
        reward: Any = float(action) if action in ("nan", "inf") else 1.0
        return f"{self.steps} \x1b[31m\u202e", reward, action == "done", False, action == "done"

    def close(self) -> None:
        self.closed, self.finished_at_close = True, self.finished


def naive_server(made: list[Naive], **options: Any) -> EnvironmentServer:
    def make_one() -> Naive:
        made.append(Naive())
        return made[-1]

    return EnvironmentServer(Description("naive", "1", "Guess .", max_turns=4), make_one, **options)


@pytest.fixture
def made() -> list[Naive]:
    return []


@pytest.fixture
def url(made: list[Naive]) -> Iterator[str]:
    with served(naive_server(made, timeout_s=60.0)) as address:
        yield address


def post(url: str, name: str, body: Any, **headers: str) -> tuple[int, dict[str, Any]]:
    status, content = JsonClient(5.0, 0, ()).post(f"{url}/v1/{name}", body, headers)
    return status, json.loads(content)


def test_an_environment_of_squelch_plays_over_http_as_it_does_here() -> None:
    with served(server_of("FrozenLake", LAKE)) as url:
        remote, local = Http("validation", url=url), make("FrozenLake", "validation", LAKE)
        assert remote.rules() == local.rules()
        assert "FrozenLake" in remote.notes()[0]
        assert remote.stochastic == local.stochastic
        for seed in range(5):
            shown, info = remote.reset(seed=seed, options=NOISE)
            here, about = local.reset(seed=seed, options=NOISE)
            assert (shown, info["task_key"]) == (here, about["task_key"]) and split_of(info["task_key"]) == "validation"
            for action in ("Left", "Down", "Right", "Up"):
                answer, twin = remote.step(action), local.step(action)
                assert answer[:4] == twin[:4] and answer[4]["success"] == twin[4]["success"]
        assert remote.step("Fly")[:4] == ("This is not an action .", 0.0, False, False)


def test_an_environment_is_served_in_the_style_that_is_set() -> None:
    options = {"observation_format": "grid_coord"}
    with served(server_of("FrozenLake", options, prompt="natural")) as url:
        remote, local = Http(url=url), make("FrozenLake", "train", options, "natural")
        assert remote.rules() == local.rules() != make("FrozenLake").rules()
        shown = remote.reset(seed=1, options=NOISE)[0]
        assert shown == local.reset(seed=1, options=NOISE)[0] and shown.startswith("player: row")


def test_noise_behind_http_is_the_noise_here() -> None:
    options = {"slip_rate": 0.5}
    with served(server_of("FrozenLake", options)) as url:
        remote, local = Http("train", url=url), make("FrozenLake", "train", options)
        for noise_seed in range(5):
            for env in (local, remote):
                env.reset(seed=3, options={"noise_seed": noise_seed})
            for action in ("Left", "Down", "Right", "Up"):
                found = [env.step(action)[:4] for env in (local, remote)]
                assert found[0] == found[1]
                if found[0][2]:
                    break


def test_tasks_are_split_by_content_where_the_server_knows_no_splits(url: str) -> None:
    keys = {}
    for split in ("train", "validation"):
        env = Http(split, url=url)
        keys[split] = {env.reset(seed=seed, options=NOISE)[1]["task_key"] for seed in range(20)}
        assert all(split_of(key) == split for key in keys[split])
        assert env.reset(seed=3, options=NOISE) == env.reset(seed=3, options={"noise_seed": 6})
    assert not keys["train"] & keys["validation"] and len(keys["train"]) > 15


def test_a_repeated_request_gets_the_kept_answer_and_plays_nothing_again(url: str, made: list[Naive]) -> None:
    reset = {"session": "s", "request_id": "1", "split": "train", "seed": 7, "noise_seed": 0}
    assert post(url, "reset", reset) == post(url, "reset", reset)
    step = {"session": "s", "request_id": "2", "action": "go"}
    assert post(url, "step", step) == post(url, "step", step)
    slow = {"session": "s", "request_id": "3", "action": "slow"}
    answers: list[Any] = []
    threads = [threading.Thread(target=lambda: answers.append(post(url, "step", slow))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers[0][1]["observation"].startswith("2 ") and answers == [answers[0]] * 3
    assert len(made) == 1 and made[0].steps == 2
    assert post(url, "close", {"session": "s"}) == (200, {}) == post(url, "close", {"session": "s"})
    assert made[0].closed and post(url, "step", {**step, "request_id": "4"})[0] == 410


def test_a_late_copy_of_an_earlier_request_plays_nothing(url: str, made: list[Naive]) -> None:
    reset = {"session": "s", "request_id": "1", "split": "train", "seed": 7, "noise_seed": 0}
    steps = [{"session": "s", "request_id": str(i), "action": "go"} for i in (2, 3)]
    for name, body in (("reset", reset), ("step", steps[0]), ("step", steps[1])):
        assert post(url, name, body)[0] == 200
    for name, body in (("step", steps[0]), ("reset", reset)):
        status, answer = post(url, name, body)
        assert status == 409 and "was answered before a later one" in answer["error"]
    assert made[0].steps == 2
    assert post(url, "step", {**steps[0], "request_id": "4", "action": "raise"})[0] == 422
    assert post(url, "reset", reset)[0] == 409 and len(made) == 1, "also after the session is over"
    assert post(url, "reset", {**reset, "request_id": "5"})[0] == 200 and len(made) == 2
    assert post(url, "step", steps[1])[0] == 409, "also in the session that follows"


def test_an_environment_is_closed_after_its_call_and_also_if_its_session_is_dropped(
    url: str, made: list[Naive]
) -> None:
    post(url, "reset", {"session": "s", "request_id": "1", "split": "train", "seed": 7, "noise_seed": 0})
    slow = {"session": "s", "request_id": "2", "action": "slow"}
    thread = threading.Thread(target=post, args=(url, "step", slow))
    thread.start()
    wait_until(lambda: made[0].steps == 1)
    assert post(url, "close", {"session": "s"}) == (200, {}) and made[0].closed
    assert made[0].finished_at_close == 1, "the step was not interrupted"
    thread.join()
    env = Http(url=url)
    env.reset(seed=1, options=NOISE)
    with pytest.raises(RemoteError, match="422"):
        env.step("raise")
    env.reset(seed=1, options=NOISE)
    wait_until(lambda: made[1].closed)


def wait_until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 180
    while not holds():
        assert time.monotonic() < deadline, "it does not happen"
        time.sleep(0.01)


def test_an_answer_that_is_late_once_is_fetched_by_the_retry(url: str, made: list[Naive]) -> None:
    env = Http(url=url, timeout_s=0.4, retries=9)
    env.reset(seed=1, options=NOISE)
    assert env.step("slow")[0].startswith("1 ") and made[-1].steps == 1


@pytest.mark.parametrize(
    ("action", "says"),
    [
        ("raise", r"step: status 422: LookupError: nothing here$"),
        ("nan", r"step: status 422: ValueError: step\(\) returned the reward nan; a finite number is needed$"),
        ("hang", r"step: status 504: step\(\) did not return within 1 s$"),
    ],
)
def test_what_the_environment_does_wrong_is_the_reason_and_the_next_task_is_played(
    made: list[Naive], action: str, says: str
) -> None:
    with served(server := naive_server(made, timeout_s=60.0)) as url:
        env = Http(url=url, timeout_s=60)
        env.reset(seed=1, options=NOISE)
        server._timeout_s = 1.0 if action == "hang" else 60.0
        with pytest.raises(RemoteError, match=says):
            env.step(action)
        server._timeout_s = 60.0
        with pytest.raises(RemoteError, match=r"status 410: session .* is over"):
            env.step("go")
        env.reset(seed=1, options=NOISE)
        assert env.step("go")[0].startswith("1 ") and len(made) == 2


def test_control_characters_of_an_observation_are_not_shown(url: str) -> None:
    env = Http(url=url)
    env.reset(seed=1, options=NOISE)
    assert env.step("go")[0] == "1 ?[31m?"


def test_sessions_that_nobody_uses_are_closed(url: str, made: list[Naive]) -> None:
    env, other = Http(url=url), Http(url=url)
    env.reset(seed=1, options=NOISE)
    del env
    other.reset(seed=1, options=NOISE)
    assert [one.closed for one in made] == [True, False]


def test_sessions_are_bounded_in_number_and_idle_time(made: list[Naive], monkeypatch: pytest.MonkeyPatch) -> None:
    later = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + later[0])
    monkeypatch.setattr("squelch.envs.remote.server.time", clock)
    with served(naive_server(made, max_sessions=1, idle_s=100.0)) as url:
        one, two = Http(url=url, retries=0), Http(url=url, retries=0)
        one.reset(seed=1, options=NOISE)
        with pytest.raises(RemoteError, match=r"there are 1 sessions|no answer"):
            two.reset(seed=1, options=NOISE)
        later[0] = 101.0
        two.reset(seed=1, options=NOISE)
        with pytest.raises(RemoteError, match="unknown or has expired"):
            one.step("go")


def test_an_environment_that_is_made_too_late_is_closed(made: list[Naive]) -> None:
    def make_slowly() -> Naive:
        time.sleep(0.4)
        made.append(Naive())
        return made[-1]

    reset = {"session": "s", "request_id": "1", "split": "train", "seed": 1, "noise_seed": 0}
    with served(EnvironmentServer(Description("slow", "1", "Guess ."), make_slowly, timeout_s=0.1)) as url:
        status, answer = post(url, "reset", reset)
        assert status == 504 and answer["error"] == "make() did not return within 0.1 s"
        deadline = time.monotonic() + 180
        while not (made and made[0].closed):
            assert time.monotonic() < deadline, "the environment was left open"
            time.sleep(0.01)


def test_a_token_is_needed_where_the_server_has_one(made: list[Naive], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="a token is needed"):
        naive_server(made, token="").serve("0.0.0.0", 0)
    with served(naive_server(made, token=TOKEN)) as url:
        with pytest.raises(
            ValueError, match=r"environment\.options\.url: .* status 401: the token is missing or wrong"
        ):
            Http(url=url).notes()
        monkeypatch.setenv("SQUELCH_ENVIRONMENT_TOKEN", TOKEN)
        assert Http(url=url, timeout_s=30.5).rules() == "Guess ."


@pytest.mark.parametrize("ends", [(f"{TOKEN}\n", TOKEN), (TOKEN, f" {TOKEN}\n")])
def test_white_space_around_a_token_does_not_count(
    made: list[Naive], monkeypatch: pytest.MonkeyPatch, ends: tuple[str, str]
) -> None:
    monkeypatch.setenv("SQUELCH_ENVIRONMENT_TOKEN", ends[0])
    with served(naive_server(made, token=ends[1])) as url:
        assert Http(url=url, timeout_s=30.4).rules() == "Guess ."


@pytest.mark.parametrize("token", ["s3cret!one\nand-more", "s3cret!€"])
def test_a_token_that_no_header_carries_is_refused_by_its_variable(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    monkeypatch.setenv("SQUELCH_ENVIRONMENT_TOKEN", token)
    with pytest.raises(ValueError, match="token_variable: the variable SQUELCH_ENVIRONMENT_TOKEN holds a") as refused:
        Http(url="http://127.0.0.1:9")
    assert "s3cret" not in str(refused.value)


def test_sessions_that_open_at_once_are_bounded_in_number(made: list[Naive]) -> None:
    server = naive_server(made, max_sessions=2)
    slow = server._make

    def slowly() -> Any:
        time.sleep(0.3)
        return slow()

    server._make = slowly
    body = {"request_id": "1", "split": "train", "seed": 7, "noise_seed": 0}
    with served(server) as url, ThreadPoolExecutor(6) as threads:
        found = list(threads.map(lambda i: post(url, "reset", {"session": str(i), **body})[0], range(6)))
    assert sorted(found) == [200, 200, 503, 503, 503, 503]
    assert sum(not one.closed for one in made) == 2


@pytest.mark.parametrize(
    ("labels", "says"),
    [((None, 3), "task_kind 3; text or None"), ((b"ab", None), "task_key b'ab'; text"), (("a", "\ud800"), "")],
)
def test_a_label_that_is_no_text_is_the_environments_error(
    monkeypatch: pytest.MonkeyPatch, url: str, labels: tuple[Any, Any], says: str
) -> None:
    monkeypatch.setattr(Naive, "reset", lambda *_: ("guess", *labels))
    body = {"session": "s", "request_id": "1", "split": "train", "seed": 7, "noise_seed": 0}
    status, found = post(url, "reset", body)
    assert (status, says in found["error"]) == (422, True) if says else (status, found["task_kind"]) == (200, "?")


def test_an_error_whose_text_no_answer_can_hold_is_reported(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    def fail(*_: Any) -> None:
        raise ValueError("at \ud800")

    monkeypatch.setattr(Naive, "reset", fail)
    body = {"session": "s", "request_id": "1", "split": "train", "seed": 7, "noise_seed": 0}
    assert post(url, "reset", body) == (422, {"error": "ValueError: at ?"})


def test_threads_that_close_the_same_sessions_do_not_disturb_one_another(url: str) -> None:
    class Raced(list[str]):
        """Says that there is a session; by then another thread has taken it."""

        def __len__(self) -> int:
            return 1

    env = Http(url=url, timeout_s=30.3)
    env._server._abandoned = Raced()
    env.reset(seed=1, options=NOISE)


def test_beyond_loopback_both_ends_want_a_token(made: list[Naive]) -> None:
    with pytest.raises(ValueError, match=r"10\.0\.0\.9 is not this machine: a token in the variable SQUELCH_ENV"):
        Http(url="http://10.0.0.9:8801")
    with pytest.raises(ValueError, match=r"0\.0\.0\.0 can be reached from other machines: a token is needed"):
        naive_server(made).serve("0.0.0.0", 0)
    with pytest.raises(ValueError, match="is no address of a server"):
        Http(url="localhost:8801")


def test_a_page_whose_name_resolves_to_this_machine_is_refused_without_a_token(url: str) -> None:
    port = url.rpartition(":")[2]
    for name, status in (("evil.example", 421), (f"evil.example:{port}", 421), ("", 421), (f"[::1]:{port}", 200),
                         ("LOCALHOST:80", 200), ("127.0.0.9", 200), ("[", 421)):  # fmt: skip
        asked = httpx.post(f"{url}/v1/describe", json={}, headers={"Host": name})
        assert asked.status_code == status, name
    with served(server_of("FrozenLake", {}, "a token")) as behind:
        headers = {"Host": "any.example", "Authorization": "Bearer a token"}
        assert httpx.post(f"{behind}/v1/describe", json={}, headers=headers).status_code == 200


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ({"split": "test"}, "split must be train or validation"),
        ({"seed": -1}, "seed must be an integer"),
        ({"seed": True}, "seed must be an integer"),
        ({"session": 3}, "session must be text"),
        ({"request_id": "x" * 300}, "request_id must be text of at most 200"),
    ],
)
def test_a_wrong_request_is_refused_with_the_field(url: str, body: dict[str, Any], says: str) -> None:
    right = {"session": "s", "request_id": "1", "split": "train", "seed": 7, "noise_seed": 0}
    status, answer = post(url, "reset", {**right, **body})
    assert status == 400 and says in answer["error"]


def test_requests_that_are_no_json_object_or_too_large_are_refused(url: str) -> None:
    assert post(url, "describe", [1])[0] == 400
    assert "more than" in post(url, "step", {"action": "x" * 2_000_000})[1]["error"]
    assert post(url, "describe", {}, **{"Content-Type": "text/plain"})[0] == 400


DESCRIBED = {
    "contract": 1, "name": "n", "version": "1", "rules": "r", "stochastic": False, "task_key": False, "splits": True,
    "max_turns": 3,
}  # fmt: skip
RESET = {"observation": "o", "version": "1"}
STEP = {"observation": "o", "reward": 1, "terminated": True, "truncated": False, "success": True}


@pytest.mark.parametrize(
    ("answers", "says"),
    [
        ([{**DESCRIBED, "contract": 2}], r"environment server .* speaks version 2 .* version 1 is needed"),
        ([{"contract": 1}], r"describe: nonsense: name: Field required"),
        ([[1, 2]], "describe: status 200, its answer: one JSON object is needed"),
        ([DESCRIBED, {**RESET, "version": "2"}], "serves version 2, and the run began with 1; serve"),
        ([DESCRIBED, {**RESET, "task_key": "no digest"}], "reset: nonsense: task_key"),
        ([DESCRIBED, RESET, {**STEP, "reward": "much"}], "step: nonsense: reward"),
        ([DESCRIBED, RESET, {**STEP, "reward": float("nan")}], "returned the reward nan; a finite number is needed"),
        ([DESCRIBED, RESET, {**STEP, "reward": float("inf")}], "returned the reward inf; a finite number is needed"),
    ],
)
def test_nonsense_of_a_server_is_refused_with_the_call(answers: list[Any], says: str) -> None:
    def answer(request: dict[str, Any], earlier: int) -> tuple[int, bytes]:
        return 200, json.dumps(answers[min(earlier, len(answers) - 1)]).encode()

    with serving(answer) as (url, _), pytest.raises((ValueError, RemoteError), match=says):
        episode = Episode(Http(url=url, retries=0), 0, 0, FormatConfig())
        episode.start()
        episode.act(well_formed("so", ["go"]))


def test_the_version_that_a_run_began_with_is_that_of_every_process() -> None:
    """Found by a reviewer: an actor that was started later took whatever version the server had by then."""

    def answer(request: dict[str, Any], earlier: int) -> tuple[int, bytes]:
        return 200, json.dumps({**(RESET if "seed" in request else DESCRIBED), "version": "2"}).encode()

    with serving(answer) as (url, _):
        first = Http(url=url, retries=0)
        assert first.pinned() == {"version": "2"}
        with pytest.raises(RemoteError, match="serves version 2, and the run began with 1"):
            Http(url=url, retries=0, version="1").reset(seed=0, options=NOISE)
        assert Http(url=url, retries=0, version="2").reset(seed=0, options=NOISE)[0] == "o"


def test_a_kind_of_any_length_is_cut_and_costs_nothing() -> None:
    def answer(request: dict[str, Any], earlier: int) -> tuple[int, bytes]:
        return 200, json.dumps({**RESET, "task_kind": "k" * 5000} if "seed" in request else DESCRIBED).encode()

    with serving(answer) as (url, _):
        assert Http(url=url, retries=0).reset(seed=0, options=NOISE)[1]["task_kind"] == "k" * 200


def test_a_server_that_is_gone_fails_the_call_in_time(made: list[Naive]) -> None:
    with served(naive_server(made)) as url:
        env = Http(url=url, timeout_s=1800.0, retries=1)
        env.reset(seed=1, options=NOISE)
    with pytest.raises(RemoteError, match=r"step: no answer in 2 attempts"):
        env.step("go")
    with pytest.raises(ValueError, match=r"environment\.options\.url: .* describe: no answer"):
        Http(url=url, timeout_s=30.1).notes()


def test_the_server_needs_no_other_part_of_squelch() -> None:
    code = "import sys; import squelch.envs.remote.server; print([m for m in sys.modules if m.startswith('squelch')])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['squelch', 'squelch.envs', 'squelch.envs.remote', 'squelch.envs.remote.server']"


def test_the_command_refuses_unknown_environments_and_options() -> None:
    for arguments, says in (
        (["FrozenLak"], "did you mean 'FrozenLake'"),
        (["FrozenLake", "--options", "[1]"], "object"),
        (["FrozenLake", "--prompt", "loud"], "choose from"),
        (["FrozenLake", "--options", '{"observation_format": "grid_coord"}'], "needs environment.prompt=natural"),
    ):
        done = subprocess.run([sys.executable, "-m", "squelch.envs.remote", *arguments], capture_output=True, text=True)
        assert done.returncode == 2 and says in done.stderr and "Traceback" not in done.stderr


def test_a_description_is_what_describe_answers(url: str) -> None:
    described = Description("naive", "1", "Guess .", max_turns=4)
    assert post(url, "describe", {})[1] == {"contract": 1, **vars(replace(described))}


def test_a_recipe_cannot_have_another_secret_of_this_host_sent() -> None:
    for secret in ("HF_TOKEN", "SQUELCH_METRICS_TOKEN", "SQUELCH_INSPECT_TOKEN"):
        with pytest.raises(ValueError, match="token_variable"):
            make("Http", options={"url": "http://127.0.0.1:1", "token_variable": secret})


def test_trajectories_share_their_noise_where_the_server_says_so() -> None:
    """Found by a reviewer: with `shared_slip` each trajectory had noise of its own, as the server could not say so."""
    for shared in (False, True):
        with served(server_of("FrozenLake", {"shared_slip": shared})) as url:
            assert Http("train", url=url).shared_noise is shared
    with served(naive_server([])) as url:
        assert Http("train", url=url).shared_noise is False


def test_a_reset_that_ends_too_late_is_continued_where_it_was(url: str, made: list[Naive], monkeypatch) -> None:
    """Found by a reviewer: a slow server without splits lost the same validation tasks at every attempt."""
    env, asked = Http("validation", url=url), []
    call, patience = Http._call, [2]

    def hasty(self: Http, name: str, body: dict[str, Any], answer: Any) -> Any:
        asked.append(body["seed"])
        if len(asked) > patience[0]:
            raise RemoteError("out of time")
        return call(self, name, body, answer)

    fresh = Http("validation", url=url)
    seed = next(seed for seed in range(99) if len(drawn(fresh, seed)) > 4)
    wanted = drawn(fresh, seed)
    fresh._server.tried.clear()
    monkeypatch.setattr(Http, "_call", hasty)
    for _ in range(9):
        try:
            env.reset(seed=seed, options=NOISE)
            break
        except RemoteError:
            asked.pop()
            patience[0] = len(asked) + 2
    assert asked == wanted, "each seed is asked for once"
    asked.clear()
    env.reset(seed=seed, options=NOISE)
    assert asked == wanted[-1:], "the seed of the split is known"


def drawn(env: Http, seed: int) -> list[int]:
    """The seeds that a reset asks for."""
    env._server.tried.clear()
    env.reset(seed=seed, options=NOISE)
    return list(itertools.islice(env._seeds(seed), env._server.tried.get(("validation", seed), 0) + 1))


@pytest.mark.parametrize("chosen", ["picture", "both"])
def test_pictures_travel_over_http_to_the_pixel(chosen: str) -> None:
    options = {"observation_format": chosen, "cell_pixels": 8}
    with served(server_of("FrozenLake", options)) as url:
        remote, local = Http(url=url), make("FrozenLake", "train", options)
        assert remote.shows_pictures
        shown, info = remote.reset(seed=1, options=NOISE)
        here, about = local.reset(seed=1, options=NOISE)
        assert shown == here and shown.pictures == here.pictures and info["task_key"] == about["task_key"]
        assert remote.step("Left")[0] == local.step("Left")[0]


class Painter(Naive):
    """Shows what its task's number selects."""

    def __init__(self, parts: Any) -> None:
        super().__init__()
        self.parts = parts

    def reset(self, split: str, seed: int, noise_seed: int) -> tuple[Any, str | None, str | None]:
        return self.parts, None, None


@pytest.mark.parametrize(
    ("parts", "declared", "wrong"),
    [
        ([{"png": "AAAA"}], False, r'does not say "pictures": true'),
        ([{"png": "AAAA"}], True, r"observation\[0\].png: no PNG"),
        ([{"text": "see"}, {"png": "@"}], True, r"observation\[1\].png: no base64"),
        ([{"png": "A" * 2**21 + "AAAA"}], True, "more than 1 MiB"),
    ],
)
def test_a_picture_that_cannot_be_shown_costs_a_trajectory_with_its_cause(parts, declared: bool, wrong: str) -> None:
    described = Description("painter", "1", "Look .", pictures=declared)
    server = EnvironmentServer(described, lambda: Painter(parts))
    with served(server) as url, pytest.raises(RemoteError, match=wrong):
        Http(url=url).reset(seed=1, options=NOISE)


def test_a_served_part_of_another_form_is_the_environments_error() -> None:
    described = Description("painter", "1", "Look .", pictures=True)
    server = EnvironmentServer(described, lambda: Painter([{"gif": "AAAA"}]))
    with served(server) as url, pytest.raises(RemoteError, match=r"status 422.*a part of the observation is"):
        Http(url=url).reset(seed=1, options=NOISE)
