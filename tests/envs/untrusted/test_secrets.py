"""A secret in a text is masked, and a text without one stays as it is."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squelch.envs.untrusted.secrets import MASK, masked


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("at http://user:pass@host:8000/x failed", f"at http://{MASK}@host:8000/x failed"),
        ("http://user:p@ss@host/", f"http://{MASK}@host/"),
        ("https://token@host", f"https://{MASK}@host"),
        ("url: /retrieve?k=1&api_key=abc&n=3", f"url: /retrieve?k=1&api_key={MASK}&n=3"),
        ("'http://h/?access_token=a.b-c'", f"'http://h/?access_token={MASK}'"),
        ("Authorization: Bearer abcdefgh1234", f"Authorization: Bearer {MASK}"),
        ("http://host/a@b", "http://host/a@b"),
        ("filter.rho=0.5; learner.tokens=3", "filter.rho=0.5; learner.tokens=3"),
    ],
)
def test_secrets_of_urls_are_masked(text: str, shown: str) -> None:
    assert masked(text) == shown


@pytest.mark.parametrize("name", ["HF_TOKEN", "AWS_SECRET", "AWS_ACCESS_KEY_ID", "MY_API_KEY", "DB_PASSWORD"])
def test_values_of_secret_variables_are_masked(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "s3cretvalue")
    assert masked("failed with s3cretvalue!") == f"failed with {MASK}!"
    monkeypatch.setenv(name, "s3cretvalue\n")  # as a file of secrets holds it
    assert masked("failed with s3cretvalue!") == f"failed with {MASK}!"
    monkeypatch.setenv(name, "short")
    assert masked("a short text") == "a short text"


@given(st.text(st.characters(exclude_characters=":?&#;"), max_size=60))
def test_a_text_without_urls_stays(text: str) -> None:
    assert masked(text) == text


@pytest.mark.parametrize("part", ["://", "://a@", "?token", "?a", "bearer "])
def test_a_long_text_takes_no_long_time(part: str) -> None:
    start = time.perf_counter()
    masked(part * (300_000 // len(part)))
    assert time.perf_counter() - start < 2
