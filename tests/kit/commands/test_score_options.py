"""`squelch score`: turns, tools, adapters, and a model that cannot have written the text."""

import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

import squelch
from tests.kit.commands.test_score import jsonl, output, refusal, rows, words

__all__ = ["rows", "words"]  # fixtures


def spoken(rows: list[dict[str, object]]) -> list[dict[str, Any]]:
    """The rows as messages, each with a second turn."""
    found = []
    for row in rows:
        asked = str(row["prompt"]).removeprefix("<|user|>").removesuffix("<|end|><|assistant|>")
        said = [
            {"role": "assistant", "content": row["completion"]},
            {"role": "user", "content": f" {asked.split()[0]}"},
        ]
        found.append({"prompt": [{"role": "user", "content": asked}], "completion": [*said, said[0]]})
    return found


def test_later_turns_are_counted_or_scored_under_their_own_prompts(tmp_path, tiny_policy, rows, capsys) -> None:
    file, model = jsonl(tmp_path / "r.jsonl", spoken(rows)), ("--model", str(tiny_policy), "--no-links")
    first = output(capsys, "score", file, *model)
    assert first["turns"] == {"total": 42, "later": 21} and first["num_samples"] == 21
    assert "21 of 42 turns (50%) are left out: of a rollout the first is scored" in first["notes"][0]
    every = output(capsys, "score", file, *model, "--turns", "all")
    assert (every["num_samples"], every["num_prompts"]) == (42, 7 + 21) and every["turns"] == {"total": 42}
    assert not any("left out" in note for note in every["notes"])


def test_a_conversation_is_scored_as_its_messages_are_as_prompts_and_completions(
    tmp_path, tiny_policy, rows, capsys
) -> None:
    given, model = spoken(rows), ("--model", str(tiny_policy), "--no-links")
    chats = [{"messages": [*row["prompt"], *row["completion"]]} for row in given]
    lasts = [{"prompt": one["messages"][:-1], "completion": one["messages"][-1:]} for one in chats]
    chat, turns, last = (
        jsonl(tmp_path / f"{name}.jsonl", rows) for name, rows in [("chat", chats), ("turns", given), ("last", lasts)]
    )
    alone = output(capsys, "score", chat, *model)
    assert alone["mi_est"] == output(capsys, "score", last, *model)["mi_est"]
    assert alone["turns"] == {"total": 42, "later": 21} and "of a conversation the last" in alone["notes"][0]
    every = output(capsys, "score", chat, *model, "--turns", "all")
    assert every["mi_est"] == output(capsys, "score", turns, *model, "--turns", "all")["mi_est"] != alone["mi_est"]


def test_a_job_of_harbor_is_scored_and_filtered_by_its_trials(tmp_path, tiny_policy, rows, capsys) -> None:
    trial = Path(__file__).parents[1] / "readers" / "agents_files" / "sums" / "two-and-two__0"
    result, whole = (json.loads((trial / name).read_text()) for name in ("result.json", "agent/trajectory.json"))
    messages = [{"prompt": row["prompt"], "completion": row["completion"][:1]} for row in spoken(rows)]
    for place, row in enumerate(messages):
        folder = tmp_path / "job" / f"{place:02d}"
        (folder / "agent").mkdir(parents=True)
        (folder / "trial.log").touch()
        named = {"trial_name": str(place), "task_name": row["prompt"][0]["content"]}
        (folder / "result.json").write_text(json.dumps(result | named))
        asked, said = ({"message": row[key][0]["content"]} for key in ("prompt", "completion"))
        steps = [{"step_id": 1, "source": "user", **asked}, {"step_id": 2, "source": "agent", **said}]
        (folder / "agent" / "trajectory.json").write_text(json.dumps(whole | {"steps": steps}))
    model = ("--model", str(tiny_policy), "--no-links")
    found = output(capsys, "score", str(tmp_path / "job"), *model)
    assert found["num_prompts"] == 7
    assert found["mi_est"] == output(capsys, "score", jsonl(tmp_path / "r.jsonl", messages), *model)["mi_est"]
    assert output(capsys, "filter", str(tmp_path / "job"))["num_groups"] == 7


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"messages": "a"}, "it must be a list of messages"),
        ({"schema_version": "ATIF-v1.8", "agent": {}, "steps": [{"source": "tool"}]}, "whose `source` is one of"),
    ],
)
def test_what_is_no_conversation_or_trajectory_is_refused_by_both_commands(tmp_path, capsys, row, said) -> None:
    path = jsonl(tmp_path / "rows.jsonl", [row])
    assert said in refusal(capsys, "score", path, "--model", str(tmp_path)) and said in refusal(capsys, "filter", path)


def test_tools_of_a_file_or_a_column_are_shown_by_the_template(tmp_path, tiny_policy, rows, capsys) -> None:
    folder = shutil.copytree(tiny_policy, tmp_path / "model")
    template = PreTrainedTokenizerFast.from_pretrained(tiny_policy).chat_template
    shows = "{% for t in tools or [] %}<|user|>{{ t.name }}<|end|>{% endfor %}" + template
    (folder / "chat_template.jinja").write_text(shows)
    word = str(rows[0]["prompt"]).removeprefix("<|user|>").split()[0]
    tools = [{"name": f" {word}", "parameters": None}]
    (tmp_path / "tools.json").write_text(json.dumps({"tools": tools}))
    given, model = spoken(rows), ("--model", str(folder), "--no-links")
    file = jsonl(tmp_path / "r.jsonl", given)
    pq.write_table(pa.Table.from_pylist([{**row, "tools": tools} for row in given]), tmp_path / "r.parquet")
    plain = output(capsys, "score", file, *model)
    shown = output(capsys, "score", file, *model, "--tools", str(tmp_path / "tools.json"))
    column = output(capsys, "score", str(tmp_path / "r.parquet"), *model)
    assert shown["mi_est"] == column["mi_est"] != plain["mi_est"]
    (tmp_path / "none.json").write_text("[1]")
    assert "a list of JSON schemas is needed" in refusal(
        capsys, "score", file, *model, "--tools", str(tmp_path / "none.json")
    )
    text = jsonl(tmp_path / "t.jsonl", rows)
    said = refusal(capsys, "score", text, *model, "--tools", str(tmp_path / "tools.json"))
    assert "`tools` are shown by the chat template" in said


@pytest.fixture
def stranger(tiny_policy: Path, tmp_path: Path) -> Path:
    """A model that is sure of other words."""
    folder = shutil.copytree(tiny_policy, tmp_path / "stranger")
    weights = load_file(folder / "model.safetensors")
    name = "lm_head.weight" if "lm_head.weight" in weights else "model.embed_tokens.weight"
    weights[name] = weights[name] * 60
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_a_model_that_cannot_have_written_the_text_is_refused_unless_forced(stranger, rows, tmp_path, capsys) -> None:
    file, model = jsonl(tmp_path / "r.jsonl", rows), ("--model", str(stranger), "--no-links")
    said = refusal(capsys, "score", file, *model)
    assert "less likely than random tokens" in said and said.rstrip().endswith("give its model, or --force")
    assert "less likely than random tokens" in output(capsys, "score", file, *model, "--force")["notes"][-1]
    live = AutoModelForCausalLM.from_pretrained(stranger, dtype=torch.float32)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(stranger)
    given = [row["prompt"] for row in rows], [row["completion"] for row in rows]
    with pytest.raises(ValueError, match="less likely than random tokens"):
        squelch.score(live, tokenizer, *given, links=False)
    assert squelch.score(live, tokenizer, *given, links=False, force=True).notes
    squelch.Monitor(tokenizer, links=False).observe(1, live, *given)  # a run must not end for it


def test_an_adapter_is_scored_with_its_base(tiny_policy, rows, tmp_path, capsys) -> None:
    torch.manual_seed(3)
    base = AutoModelForCausalLM.from_pretrained(tiny_policy, dtype=torch.float32)
    model: Any = get_peft_model(base, LoraConfig(r=4, init_lora_weights=False, target_modules="all-linear"))
    model.save_pretrained(tmp_path / "checkpoint-9")
    file, adapter = jsonl(tmp_path / "r.jsonl", rows), ("--model", str(tmp_path / "checkpoint-9"), "--force")
    found = output(capsys, "score", file, *adapter, "--no-links")
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tiny_policy)
    given = [row["prompt"] for row in rows], [row["completion"] for row in rows]
    live = squelch.score(model, tokenizer, *given, links=False, force=True)
    assert found["mi_est"] == pytest.approx(live.proxies.mi_est, abs=1e-4)
    config = tmp_path / "checkpoint-9" / "adapter_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"base_model_name_or_path": "nobody/has-this"}))
    assert "give the folder of its base model with --base" in refusal(capsys, "score", file, *adapter)
    given_base = output(capsys, "score", file, *adapter, "--no-links", "--base", str(tiny_policy))
    assert given_base["mi_est"] == found["mi_est"]
    assert "is no LoRA adapter" in refusal(capsys, "score", file, "--model", str(tiny_policy), "--base", str(tmp_path))
