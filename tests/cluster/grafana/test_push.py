"""A push against a stand-in of Grafana's HTTP API: idempotent, careful with what others changed, clear about errors."""

import datetime
import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from squelch.cluster.cli import main
from squelch.cluster.grafana import boards, server
from tests.cluster.grafana.stand_in import PASSWORD, TOKEN, USER, Grafana, serving

UID = "squelch-signal"
PROMETHEUS = "http://prometheus:9090"


@pytest.fixture(autouse=True)
def token(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GRAFANA_URL", "GRAFANA_USER", "GRAFANA_PASSWORD", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GRAFANA_TOKEN", TOKEN)


@pytest.fixture
def grafana() -> Grafana:
    return Grafana()


@pytest.fixture
def url(grafana: Grafana) -> Iterator[str]:
    with serving(grafana) as address:
        yield address


def push(url: str, *words: str) -> int:
    return main(["dashboards", "push", "--url", url, "--prometheus", PROMETHEUS, *words])


def rename(board: dict[str, Any]) -> None:
    board["panels"][1]["description"] = "mine"


def test_a_first_push_creates_everything_and_a_second_changes_nothing(grafana: Grafana, url: str) -> None:
    assert push(url) == 0
    assert grafana.folders == {"squelch": "Squelch"} and grafana.sources[0]["url"] == PROMETHEUS
    assert grafana.boards.keys() == {f"squelch-{name}" for name in boards.NAMES}
    stored = grafana.boards[UID][-1]
    assert stored["folder"] == "squelch" and stored["dashboard"]["panels"] == boards.trees()["signal"]["panels"]
    done = len(grafana.changes())
    assert push(url) == 0 and len(grafana.changes()) == done


def test_a_push_with_the_address_of_the_docs_leads_panels_there(grafana: Grafana, url: str) -> None:
    assert push(url, "--docs", "https://example.com/docs") == 0
    variables = {one["name"]: one for one in grafana.boards[UID][-1]["dashboard"]["templating"]["list"]}
    assert variables["docs"]["query"] == "https://example.com/docs"


@pytest.mark.parametrize("old_history", [False, True])
def test_a_server_that_rewrites_what_it_stores_is_not_taken_for_a_person(
    grafana: Grafana, url: str, old_history: bool
) -> None:
    grafana.normalise, grafana.old_history = True, old_history
    assert push(url) == push(url) == 0
    assert [len(versions) for versions in grafana.boards.values()] == [1, 1, 1, 1]


def test_an_older_push_is_updated_in_the_folder_to_which_somebody_moved_it(
    grafana: Grafana, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(url)
    grafana.folders["ours"] = "Our folder"
    grafana.boards[UID][-1]["folder"] = "ours"
    newer = boards.trees()
    newer["signal"] = {**newer["signal"], "description": "new"}
    monkeypatch.setattr(boards, "trees", lambda *_: newer)
    assert push(url) == 0
    assert [version["dashboard"]["description"] for version in grafana.boards[UID]][1:] == ["new"]
    assert grafana.boards[UID][-1]["folder"] == "ours" and len(grafana.boards["squelch-system"]) == 1


def test_what_was_changed_by_hand_is_kept_and_shown_until_it_is_to_be_overwritten(
    grafana: Grafana, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    push(url)
    grafana.edit(UID, rename, message="my own words")
    capsys.readouterr()
    assert push(url) == 1
    said = capsys.readouterr().out
    assert "Squelch: Signal: kept: it was changed by hand" in said
    assert 'panels["Groups by reward variance"].description' in said and "'mine' on the server" in said
    assert len(grafana.boards[UID]) == 2
    assert push(url, "--overwrite", "--dry-run") == 0 and len(grafana.boards[UID]) == 2
    assert push(url, "--overwrite") == 0
    assert grafana.boards[UID][-1]["dashboard"]["panels"] == boards.trees()["signal"]["panels"]
    assert "Squelch: Signal: overwritten" in capsys.readouterr().out


def test_a_version_restored_by_hand_is_kept_too(grafana: Grafana, url: str) -> None:
    push(url)
    grafana.edit(UID, rename)
    grafana.edit(UID, lambda board: board["panels"][1].update(title="Back"), message="Restored from version 1")
    assert push(url) == 1 and len(grafana.boards[UID]) == 3


def test_somebody_who_saves_during_the_push_wins(
    grafana: Grafana, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    push(url)
    grafana.edit(UID, rename)

    def save(method: str, path: str) -> None:
        if (method, path) == ("POST", "/dashboards/db"):
            grafana.edit(UID, lambda board: board.update(description="quick"))

    grafana.before = save
    assert push(url, "--overwrite") == 1
    assert grafana.boards[UID][-1]["dashboard"]["description"] == "quick"
    assert "somebody changed it during this push" in capsys.readouterr().out


def test_a_dashboard_from_a_provisioned_file_is_left_alone(
    grafana: Grafana, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    push(url)
    grafana.edit(UID, rename)
    grafana.provisioned.add(UID)
    assert push(url, "--overwrite") == 1 and "provisioned file" in capsys.readouterr().out


def test_settings_of_the_data_source_are_kept_and_added_to(
    grafana: Grafana, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    push(url)
    grafana.sources[0]["jsonData"]["httpMethod"] = "POST"
    done = len(grafana.changes())
    assert push(url) == 0 and len(grafana.changes()) == done
    grafana.sources[0]["url"] = "http://other:9090"
    assert push(url) == 1 and "http://other:9090" in capsys.readouterr().out
    assert push(url, "--overwrite") == 0
    assert (grafana.sources[0]["url"], grafana.sources[0]["jsonData"]["httpMethod"]) == (PROMETHEUS, "POST")


def test_without_an_address_of_prometheus_an_existing_data_source_is_used(
    grafana: Grafana, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["dashboards", "push", "--url", url]
    assert main(words) == 2 and "--prometheus" in capsys.readouterr().err and not grafana.changes()
    grafana.sources.append({"uid": "p", "name": "Prom", "type": "prometheus"})
    assert main(words) == 0 and "uses Prom" in capsys.readouterr().out


def test_an_editor_may_push_dashboards_but_no_data_source(
    grafana: Grafana, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    grafana.editor = True
    assert push(url) == 2 and not grafana.boards
    refused(capsys, "needs the role Editor, and Admin for data sources")
    assert main(["dashboards", "push", "--url", url]) == 0 and len(grafana.boards) == 4


def test_another_data_source_of_that_name_is_refused(
    grafana: Grafana, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    grafana.sources.append({"uid": "other", "name": "Squelch", "type": "loki"})
    assert push(url) == 2
    refused(capsys, "another data source named Squelch", "--prometheus")


def test_basic_credentials_and_a_path_before_the_api_work(grafana: Grafana, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRAFANA_TOKEN")
    monkeypatch.setenv("GRAFANA_USER", USER)
    monkeypatch.setenv("GRAFANA_PASSWORD", PASSWORD)
    with serving(grafana, prefix="/grafana") as address:
        assert push(address + "/") == 0 and len(grafana.boards) == 4


def test_another_folder_of_that_name_and_a_folder_that_is_missing_are_refused(
    grafana: Grafana, url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    grafana.folders["other"] = "Squelch"
    assert push(url) == 2 and "--folder" in capsys.readouterr().err
    assert push(url, "--folder", "nowhere") == 2 and "nowhere" in capsys.readouterr().err
    assert push(url, "--folder", "other") == 0 and grafana.boards[UID][-1]["folder"] == "other"


def refused(capsys: pytest.CaptureFixture[str], *parts: str) -> None:
    error = capsys.readouterr().err
    assert error.startswith("squelch: ") and "Traceback" not in error, error
    assert all(part in error for part in parts), error
    assert TOKEN not in error and PASSWORD not in error


def test_wrong_credentials_are_named_and_never_shown(
    grafana: Grafana, url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GRAFANA_TOKEN", "glsa_wrong")
    assert push(url) == 2 and not grafana.boards
    error = capsys.readouterr().err
    assert "does not accept the credentials" in error and "GRAFANA_TOKEN" in error and "glsa_wrong" not in error
    monkeypatch.setenv("GRAFANA_TOKEN", f"{TOKEN}\n{TOKEN}")
    assert push(url) == 2
    refused(capsys, "the variable GRAFANA_TOKEN holds a character that no HTTP header carries")
    monkeypatch.setenv("GRAFANA_TOKEN", f"{TOKEN}\n")  # as a file of secrets holds it
    assert push(url) == 0
    capsys.readouterr()
    monkeypatch.delenv("GRAFANA_TOKEN")
    assert push(url) == 2
    refused(capsys, "no credentials", "GRAFANA_TOKEN", "GRAFANA_USER")


@pytest.mark.parametrize(
    ("broken", "says"),
    [
        ({"page": "<html><form>login</form></html>"}, "login page of a proxy"),
        ({"redirect": "https://login.example.com/"}, "redirects to https://login.example.com/"),
        ({"pause_s": 5.0}, "did not answer within 0.3 s"),
    ],
)
def test_a_server_that_is_not_grafana_or_does_not_answer_is_named(
    grafana: Grafana,
    url: str,
    broken: dict[str, Any],
    says: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(server.Server.__init__, "__defaults__", (False, 0.3))
    vars(grafana).update(broken)
    assert push(url) == 2
    refused(capsys, url, says)


def test_no_grafana_at_the_address_is_said_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert push("http://127.0.0.1:9") == 2
    refused(capsys, "http://127.0.0.1:9", "cannot be reached", "is it running")


@pytest.mark.parametrize(
    ("address", "says"),
    [
        ("grafana.example.com", "is not an address"),
        ("ftp://grafana.example.com", "is not an address"),
        ("https://admin:admin@grafana.example.com", "must not hold credentials"),
        ("https://grafana.example.com/?verify=false", "is not an address"),
        ("http://grafana.example.com", "unencrypted"),
        ("http://[::1", "is not an address"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_before_anything_is_sent(
    address: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert push(address) == 2
    refused(capsys, says)


def self_signed(folder: Path) -> Path:
    """A PEM file with a key and a certificate for 127.0.0.1 that nobody else has signed."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "stand-in")])
    now = datetime.datetime.now(datetime.UTC)
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), True)
        .sign(key, hashes.SHA256())
    )
    plain = serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    path = folder / "grafana.pem"
    path.write_bytes(pem + built.public_bytes(serialization.Encoding.PEM))
    return path


def test_a_certificate_is_verified_against_the_authorities_that_the_user_trusts(
    grafana: Grafana, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = self_signed(tmp_path)
    with serving(grafana, certificate=certificate) as address:
        assert push(address) == 2
        refused(capsys, address, "not trusted", "REQUESTS_CA_BUNDLE")
        assert not grafana.requests, "nothing is sent to a server that is not trusted"
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(certificate))
        assert push(address) == 0 and len(grafana.boards) == 4
