import re
import subprocess
import sys
from pathlib import Path

import pytest

from cluster.cli import build_parser, main, parse
from cluster.config import recipe_names

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_overrides_may_stand_before_or_behind_flags():
    options = parse(["train", "frozenlake", "loop.steps=2", "--resume", "filter.rho=0.5"])
    assert options.resume and options.overrides == ["loop.steps=2", "filter.rho=0.5"]


@pytest.mark.parametrize("words", [["train", "frozenlake", "--resum"], ["status", "runs/x", "a=b"], ["trian"]])
def test_an_unknown_word_is_an_error_of_usage(words, capsys):
    with pytest.raises(SystemExit) as caught:
        parse(words)
    assert caught.value.code == 2 and "usage" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["train", "frozenlake", "filter.roh=1"], ["filter.roh", "rho"]),
        (["train", "frozenlak"], ["frozenlake"]),
        (["train", "frozenlake", "model.path=nowhere"], ["nowhere", "config.json"]),
        (["train", "frozenlake", "--address", "[::1]:1", "recorder.port=0"], ["address='[::1]:1'", "ray start"]),
        (["status", "nowhere"], ["nowhere", "config.yaml"]),
        (["watch", "nowhere"], ["nowhere", "config.yaml"]),
        (["eval", "nowhere"], ["nowhere", "config.yaml"]),
        (["submit", "frozenlake"], ["runs_dir", "absolute"]),
        (["tiny", "somewhere", "--env", "FrozenLak"], ["FrozenLake"]),
        (["filter", "nowhere.npz"], ["nowhere.npz"]),
        (["mi", "nowhere.npz"], ["nowhere.npz"]),
    ],
)
def test_bad_input_ends_in_one_paragraph_and_code_2_and_writes_nothing(words, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("squelch: ") and "Traceback" not in error and "\n\n" not in error.strip()
    assert all(part in error for part in says)
    assert list(tmp_path.iterdir()) == []


def commands(capsys) -> set[str]:
    with pytest.raises(SystemExit):
        build_parser().parse_args(["--help"])
    return set(re.findall(r"^    (\w+)(?:  |$)", capsys.readouterr().out, flags=re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_every_command_recipe_and_page_that_the_documents_name_exists(page, capsys):
    text = page.read_text()
    assert set(re.findall(r"(?:^|`|    )squelch (\w+)", text, flags=re.MULTILINE)) <= commands(capsys)
    named = set(re.findall(r"squelch (?:train|submit|sweep|config) ([a-z][\w.-]*)", text))
    assert named <= set(recipe_names()), named - set(recipe_names())
    for link in re.findall(r"\]\((?!https?:)([^)#]+)", text):
        assert (page.parent / link).exists(), link


def test_every_command_explains_itself(capsys):
    for command in commands(capsys):
        with pytest.raises(SystemExit) as caught:
            build_parser().parse_args([command, "--help"])
        assert caught.value.code == 0 and len(capsys.readouterr().out) > 100


@pytest.mark.parametrize("words", [["--help"], ["filter", "--help"], ["mi", "--help"], ["config", "--list"]])
def test_light_commands_import_neither_torch_nor_ray(words):
    code = (
        "import sys; from cluster.cli import main\n"
        f"try: main({words!r})\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'ray', 'vllm', 'transformers'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


def test_doctor_finds_this_machine_well(capsys):
    assert main(["doctor"]) == 0, capsys.readouterr().out
