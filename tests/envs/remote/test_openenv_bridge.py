"""An environment of OpenEnv, played through the bridge.

`SQUELCH_OPENENV_PYTHON` names the interpreter of a virtual environment that has `openenv`; without it, classes of the
same form stand in for OpenEnv's.
"""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from squelch.envs.adapters.http import Http
from squelch.envs.config import FormatConfig
from squelch.envs.episode import Episode
from squelch.envs.format import well_formed
from squelch.envs.remote.openenv_bridge import Bridged, bridge, found
from squelch.kit.records.splits import split_of
from tests.envs.remote.serving import served

NOISE = {"noise_seed": 5}
RULES = "Say the word backwards . The action is the word ."
INTERPRETER = os.environ.get("SQUELCH_OPENENV_PYTHON")


class Said(BaseModel):
    model_config = ConfigDict(extra="forbid")

    text: str


class Shown(BaseModel):
    word: str
    done: bool = False
    reward: float | None = None
    metadata: dict[str, Any] = {}


class Backwards:
    """As `docs.examples.openenv_words.ReversedWord`, without OpenEnv's base class."""

    def reset(self, seed: int | None = None, episode_id: str | None = None) -> Shown:
        self.word = f"word{seed}"
        return Shown(word=self.word)

    def step(self, action: Said) -> Shown:
        solved = action.text == self.word[::-1]
        return Shown(word=self.word, done=solved, reward=1.0 if solved else None)

    def get_metadata(self) -> Any:
        return SimpleNamespace(name="Backwards", version="1")


@contextmanager
def real() -> Iterator[str]:
    """The address of the bridge in OpenEnv's own environment."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    example = "docs.examples.openenv_words"
    words = [f"{example}:ReversedWord", f"{example}:Say", "--field", "text", "--rules", RULES, "--port", str(port)]
    root = Path(__file__).parents[3]
    command = [str(INTERPRETER), "-m", "squelch.envs.remote.openenv_bridge", *words]
    process = subprocess.Popen(command, cwd=root, env={**os.environ, "PYTHONPATH": str(root)})
    try:
        deadline = time.monotonic() + 240
        while socket.socket().connect_ex(("127.0.0.1", port)):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with real() if INTERPRETER else served(bridge(Bridged(Backwards, Said, "text"), RULES, 3)) as address:
        yield address


def word_of(shown: str) -> str:
    return shown.partition("word: ")[2].partition("\n")[0]


def test_an_episode_is_played_and_paid_through_the_bridge(url: str) -> None:
    episode = Episode(Http("train", url=url), 4, 0, FormatConfig())
    system, user = episode.start()
    word = word_of(user["content"])
    assert RULES in system["content"] and "done" not in user["content"]
    wrong = episode.act(well_formed("so", [word]))
    assert (wrong.reward, wrong.done) == (0.0, False)
    right = episode.act(well_formed("so", [word[::-1]]))
    assert (right.reward, right.success, right.done) == (1.0, True, True)


def test_splits_are_kept_apart_by_content_and_a_seed_is_a_task(url: str) -> None:
    keys = {}
    for split in ("train", "validation"):
        env = Http(split, url=url)
        keys[split] = {env.reset(seed=seed, options=NOISE)[1]["task_key"] for seed in range(15)}
        assert all(split_of(key) == split for key in keys[split])
        assert env.reset(seed=3, options=NOISE) == env.reset(seed=3, options=NOISE)
    assert not keys["train"] & keys["validation"]


def test_an_action_is_json_where_no_field_is_named_and_a_field_alone_may_be_shown() -> None:
    with served(bridge(Bridged(Backwards, Said, observation="word"), RULES, 3)) as address:
        env = Http("train", url=address)
        shown, _ = env.reset(seed=1, options=NOISE)
        assert shown.startswith("word") and ":" not in shown
        for text in ("backwards", '{"words": 1}', "[1]", "[" * 20_000, '{"text": ' * 2_000):
            assert env.step(text)[0].startswith("This is not an action :") and env.step(text)[1] == 0.0
        assert env.step(f'{{"text": "{shown[::-1]}"}}')[1:3] == (1.0, True)


def test_a_class_that_cannot_be_found_is_named() -> None:
    for path in ("no.such:Thing", "squelch.envs.remote.server:Thing", "nothing"):
        with pytest.raises(ValueError, match=r"is not of the form package\.module:Class, or cannot be imported"):
            found(path)
