"""A secret in a text is masked, and a text without one stays as it is."""

import time
from pathlib import Path

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
        ("https://h/c?sv=1&sig=a%2Fb&se=2", f"https://h/c?sv=1&sig={MASK}&se=2"),
        ("https://h/?api-key=abc#key=d", f"https://h/?api-key={MASK}#key={MASK}"),
        ("https://h/?design=1&monkey=2&author=3", "https://h/?design=1&monkey=2&author=3"),
        ("http://host/a@b", "http://host/a@b"),
        ("filter.rho=0.5; learner.tokens=3", "filter.rho=0.5; learner.tokens=3"),
    ],
)
def test_secrets_of_urls_are_masked(text: str, shown: str) -> None:
    assert masked(text) == shown


@pytest.mark.parametrize(
    "name", ["HF_TOKEN", "AWS_SECRET", "AWS_ACCESS_KEY_ID", "MY_API_KEY", "DB_PASSWORD", "PGPASSWORD"]
)
def test_values_of_secret_variables_are_masked(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setenv(name, "s3cretvalue")
    assert masked("failed with s3cretvalue!") == f"failed with {MASK}!"
    monkeypatch.setenv(name, "s3cretvalue\n")  # as a file of secrets holds it
    assert masked("failed with s3cretvalue!") == f"failed with {MASK}!"
    monkeypatch.setenv(name, "short")
    assert masked("a short text") == "a short text"


def test_a_key_that_begins_like_a_path_is_masked_and_a_path_is_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "/bPxRfiCYEXAMPLEKEY/K7MDENGwJalrXUtnFEMI")
    monkeypatch.setenv("SSL_KEY", str(tmp_path))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", "/away/key.json")
    shown = f"/bPxRfiCYEXAMPLEKEY/K7MDENGwJalrXUtnFEMI {tmp_path} /away/key.json"
    assert masked(shown) == f"{MASK} {tmp_path} /away/key.json"


@given(st.text(st.characters(exclude_characters=":?&#;"), max_size=60))
def test_a_text_without_urls_stays(text: str) -> None:
    assert masked(text) == text


@pytest.mark.parametrize("part", ["://", "://a@", "?token", "?a", "bearer "])
def test_a_long_text_takes_no_long_time(part: str) -> None:
    start = time.perf_counter()
    masked(part * (300_000 // len(part)))
    assert time.perf_counter() - start < 2
