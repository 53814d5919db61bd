"""A secret in a text is masked, and a text without one stays as it is."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from squelch.kit.untrusted.secrets import MASK, know_secrets, masked, masked_settings, stand_for_secrets


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
    start = time.process_time()
    masked(part * (300_000 // len(part)))
    assert time.process_time() - start < 10


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (["agent", "--api-key", "sk-1", "--fast"], ["agent", "--api-key", MASK, "--fast"]),
        (["agent", "--api-key=sk-1"], ["agent", f"--api-key={MASK}"]),
        (["env", "OPENAI_API_KEY=sk-1", "agent"], ["env", f"OPENAI_API_KEY={MASK}", "agent"]),
        (["sh", "-c", "agent --token abc --steps 3"], ["sh", "-c", f"agent --token {MASK} --steps 3"]),
        (["curl", "-H", "X-Api-Key: sk-1"], ["curl", "-H", f"X-Api-Key: {MASK}"]),
        (["agent", "--db", "me:pw@host:5432/x"], ["agent", "--db", f"{MASK}@host:5432/x"]),
        (["agent", "--db=postgres://me:pw@host/x"], ["agent", f"--db=postgres://{MASK}@host/x"]),
        (["agent", "https://h/x?token=abc&n=1"], ["agent", f"https://h/x?token={MASK}&n=1"]),
        (["agent", '{"api_key": "sk-1", "n": 1}'], ["agent", f'{{"api_key": "{MASK}", "n": 1}}']),
        ({"kwargs": {"password": "pw", "n": 1}}, {"kwargs": {"password": MASK, "n": 1}}),
    ],
)
def test_settings_are_kept_without_secrets_and_a_mask_is_known_as_one(given: object, kept: object) -> None:
    assert masked_settings(given) == kept == masked_settings(kept)
    assert stand_for_secrets(kept) and not stand_for_secrets(given)


@pytest.mark.parametrize(
    "given",
    [
        ["agent", "--max-tokens", "300", "--use-token", "--fast", "git@host:me/x", "a=b"],
        ["agent", "--max-token", "300", "**", "***bold***", "squelch.envs.prompt_file:example.jsonl"],
        {"data": "/a/b.jsonl", "reward": {"/a/rewards.py:right": 1.0}, "tokens": 5, "n": None, "many": (1, "x")},
        {"token_variable": "SQUELCH_ENVIRONMENT_TOKEN", "tools_column": "tools", "url": "http://host:80/x"},
    ],
)
def test_settings_without_secrets_stay(given: object) -> None:
    kept = masked_settings(given)
    assert kept == ({**given, "many": [1, "x"]} if isinstance(given, dict) and "many" in given else given)
    assert not stand_for_secrets(given)


def test_a_secret_of_the_settings_is_masked_wherever_it_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("squelch.kit.untrusted.secrets._known", set())
    know_secrets(["agent", "--api-key", "sk-12345678", "--url=https://h/?token=tt-12345678&a=1"])
    assert masked("usage: agent sk-12345678 or tt-12345678; agent") == f"usage: agent {MASK} or {MASK}; agent"
