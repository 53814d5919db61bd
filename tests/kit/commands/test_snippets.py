"""What the snippets of docs/guide/use-with-other-trainers.md give, in values that a walk of the page cannot know."""

import importlib.util
import json
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from squelch.cluster.cli import main
from squelch.kit.readers.reward_tables import read_rewards
from squelch.kit.readers.score_files import notes_on_file, read_samples
from tests.kit.readers import trainer_files

DOCUMENT = Path(__file__).parents[3] / "docs" / "guide" / "use-with-other-trainers.md"
NUM_PROMPTS, GROUP_SIZE = 6, 4


def snippet(name: str) -> str:
    """The fenced block that follows `<!-- run: NAME -->`."""
    found = re.search(rf"<!-- run: {name} -->\n```\w*\n(.*?)```", DOCUMENT.read_text(), re.DOTALL)
    assert found is not None, name
    return found[1]


def module(tmp_path: Path, *names: str) -> ModuleType:
    """The snippets, one after another, as a module."""
    path = tmp_path / "snippets.py"
    path.write_text("\n\n".join(snippet(name) for name in names))
    spec = importlib.util.spec_from_file_location("snippets", path)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


@pytest.fixture
def here(tmp_path: Path, tiny_policy: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder in which the document's model folders are the tiny policy."""
    for name in ("out/checkpoint-99", "merged/global_step_99", "ckpt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).symlink_to(tiny_policy)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def texts(tiny_policy: Path) -> list[tuple[str, str]]:
    """(prompt, reasoning) of every sample, groups side by side, in words that the tiny policy has."""
    vocabulary = Tokenizer.from_file(str(tiny_policy / "tokenizer.json")).get_vocab()
    words = [" " + piece[1:] for piece in sorted(vocabulary) if piece.startswith("Ġ") and piece[1:].isalpha()]
    rng = np.random.default_rng(1)
    prompts = ["".join(rng.choice(words, 8)) for _ in range(NUM_PROMPTS)]
    return [(prompt, "".join(rng.choice(words, 5))) for prompt in prompts for _ in range(GROUP_SIZE)]


def scored(name: str, capsys: pytest.CaptureFixture[str]) -> dict:
    """What the document's command prints as JSON."""
    program, *words = shlex.split(snippet(name))
    assert program == "squelch"
    assert main([*words, "--json"]) == 0, capsys.readouterr().err
    found = json.loads(capsys.readouterr().out)
    assert (found["num_prompts"], found["num_samples"]) == (NUM_PROMPTS, NUM_PROMPTS * GROUP_SIZE)
    assert found["interval_95"]["mi_est"][0] <= found["mi_est"] <= found["interval_95"]["mi_est"][1]
    assert len(found["templates"]) == 5
    return found


def write_trl(folder: Path, prompts: list, completions: list) -> None:
    size = len(prompts)
    columns = {"step": [100] * size, "prompt": prompts, "completion": completions}
    columns |= {"accuracy_reward": np.arange(size) % 2 * 1.0, "advantage": np.zeros(size)}
    path = folder / "out" / "completions" / "completions_00100.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def test_trl_ids_from_a_reward_function(here, texts, tiny_policy, capsys) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tiny_policy)
    prompts = [[{"role": "user", "content": x}] for x, _ in texts]
    ids = [tokenizer.encode(f"<think>{z}</think> <answer>", add_special_tokens=False) for _, z in texts]
    ids[0] = ids[0][:3]  # cut: never closed
    keep = module(here, "trl_ids").keep_ids
    given = {"prompts": prompts, "completions": [[] for _ in ids], "completion_ids": ids, "answer": [""] * len(ids)}
    state = {"trainer_state": SimpleNamespace(global_step=100), "log_extra": print, "log_metric": print}
    assert keep(**given, **state) == [None] * len(ids), "TRL passes all by keyword, and scores no row by it"
    assert main(["score", "out/ids_100.parquet", "--model", "ckpt", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["num_samples"], found["excluded"]) == (len(ids) - 1, {"reasoning never closed": 1})
    write_trl(here, [f"<|user|>{x}<|end|><|assistant|>" for x, _ in texts], [f"<think>{z}</think>" for _, z in texts])
    whole = scored("trl", capsys)
    by_text = {each["text"]: each["gap"] for each in whole["templates"]}
    same = [each for each in found["templates"] if each["text"] in by_text]
    assert same and all(each["gap"] == pytest.approx(by_text[each["text"]], abs=1e-3) for each in same)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("trl", lambda folder: trainer_files.trl(folder / "out")),
        ("verl", lambda folder: trainer_files.verl(folder / "rollouts")),
        ("prime_rl", lambda folder: trainer_files.prime_rl(folder / "outputs")),
        ("skyrl", lambda folder: trainer_files.skyrl(folder / "exports")),
    ],
)
def test_each_trainers_command_names_the_weights_that_sampled_its_file(tmp_path, monkeypatch, name, write) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path)
    program, command, file, *flags = shlex.split(snippet(name))
    given = dict(zip(flags[::2], flags[1::2], strict=True))
    found = read_samples(Path(file), int(given["--step"]) if "--step" in given else None)
    assert (program, command, found.step) == ("squelch", "score", 100)
    notes = notes_on_file(found, Path(file), Path(given["--model"]))
    assert found.format.weights is not None and found.format.weights.number_in(Path(given["--model"])) is not None
    assert not [note for note in notes if "you gave" in note]


def test_agent_lightnings_hook_writes_the_ids_of_each_call_and_the_last_ones_reward(tmp_path, monkeypatch) -> None:
    """The events are those of its release 1.0.2: `_capture_event` in `agentlightning/server/proxy.py`."""
    monkeypatch.chdir(tmp_path)
    for name in ("agentlightning", "agentlightning.hooks"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["agentlightning.hooks"].__dict__["RolloutHooks"] = object
    hook = module(tmp_path, "agent_lightning").Keep()

    def call(prompt: list[int], said: list[int], status: str = "ok") -> SimpleNamespace:
        response = {"prompt_token_ids": prompt, "choices": [{"token_ids": said}]}
        data = {"model_version": 3, "request": {}, "response": response, "status": status, "http_status": 200}
        return SimpleNamespace(event_type="model_request", data=data)

    for task in (1, 2):
        for reward in (0.5, 1.0):
            scored = SimpleNamespace(event_type="reward", data={"value": reward})
            lost = SimpleNamespace(event_type="model_request", data={"response": {"error": "x"}, "status": "error"})
            events = [call([task, 9], [20, 21]), lost, call([task, 9, 20, 21, 30], [22]), scored]
            hook.on_succeeded(SimpleNamespace(input={"task": task}), {"0": events}, None)
    rows = [row for _, row in read_samples(tmp_path / "rollouts.jsonl").rows]
    assert [(row["prompt_ids"], row["completion_ids"], row["step"], row["turn"]) for row in rows[:2]] == [
        ([1, 9], [20, 21], 3, 0),
        ([1, 9, 20, 21, 30], [22], 3, 1),
    ]
    table = read_rewards(tmp_path / "rollouts.jsonl", None, (), None)
    kept = [(group, reward) for group, reward in zip(table.groups, table.rewards, strict=True) if reward == reward]
    assert kept == [(0, 0.5), (0, 1.0), (1, 0.5), (1, 1.0)]


def test_the_filter_on_rows_with_a_uid_in_any_order_and_number(tmp_path) -> None:
    rows = module(tmp_path, "filter_verl").kept_rows
    uids = ["b", "a", "b", "c", "a", "b", "c"]
    assert rows(uids, [1.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0]).tolist() == [0, 2, 3, 5, 6]
