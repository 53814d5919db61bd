"""Files of every trainer are recognised and read as their trainers meant them, and refused where they are damaged."""

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from squelch.cluster.cli import main
from squelch.kit.base.errors import UserError
from squelch.kit.readers.format_rows import split_uid
from squelch.kit.readers.formats import FORMATS, format_of
from squelch.kit.readers.rows import steps_in
from squelch.kit.readers.score_files import SampleFile, notes_on_file, read_samples
from tests.kit.readers import trainer_files
from tests.kit.readers.trainer_files import PROMPTS, SAID, SAMPLES

Writer = Callable[[Path], Path]
WRITERS: dict[str, Writer] = {
    "trl": trainer_files.trl,
    "verl": trainer_files.verl,
    "nemo_rl": trainer_files.nemo_rl,
    "areal": trainer_files.areal,
    "slime": trainer_files.slime,
    "skyrl": trainer_files.skyrl,
    "verifiers": trainer_files.prime_rl,
}
PAGE = Path(__file__).parents[3] / "docs" / "guide" / "use-with-other-trainers.md"


def refused(path: Path, step: int | None = None, name: str | None = None) -> str:
    with pytest.raises(UserError) as caught:
        read_samples(path, step, name)
    return str(caught.value)


@pytest.mark.parametrize("name", WRITERS)
def test_each_trainers_file_is_recognised_by_its_columns_with_its_step(tmp_path, name) -> None:
    found = read_samples(WRITERS[name](tmp_path))
    assert (found.format.name, found.step) == (name, 100)
    assert len({str(row.get("group") or row.get("prompt") or row.get("prompt_ids")) for _, row in found.rows}) >= 2
    assert name in PAGE.read_text(), "the page has a row for each format"


def test_the_help_of_the_commands_names_every_format(capsys) -> None:
    with pytest.raises(SystemExit):
        main(["score", "--help"])
    flag = capsys.readouterr().out.rpartition("--format NAME")[2].partition("--temperature")[0]
    assert [name for name in FORMATS if name not in flag.replace("\n", " ")] == []


def texts(found: SampleFile) -> list[tuple[str, str]]:
    return [(row["prompt"], row["completion"]) for _, row in found.rows]


def test_texts_messages_and_rewards_are_those_of_the_records(tmp_path) -> None:
    trl = read_samples(trainer_files.trl(tmp_path)).rows
    assert [row["completion"][0]["content"] for _, row in trl] == [*SAID, *SAID]
    assert trl[1][1]["rewards"] == {"accuracy_reward": 0.0, "format_reward": None}
    verl = read_samples(trainer_files.verl(tmp_path))
    assert texts(verl)[3] == (f"user\n{PROMPTS[1]}\nassistant\n", SAID[1])
    assert [row["group"] for _, row in verl.rows] == ["a7", "a7", "b7", "b7"]
    areal = read_samples(trainer_files.areal(tmp_path))
    assert [said for _, said in texts(areal)] == [said + "<|end|>" for _, said, _ in SAMPLES]
    assert [row["group"] for _, row in areal.rows] == [0, 0, 1, 1]
    assert any("2 of 4 rows were sampled while the weights changed" in note for note in areal.notes)
    skyrl = read_samples(trainer_files.skyrl(tmp_path))
    assert [row["rewards"]["score"] for _, row in skyrl.rows] == [reward for *_, reward in SAMPLES]
    assert any("left out" in note and "aggregated_results.jsonl" in note for note in skyrl.notes)


def test_ids_of_nemo_rl_and_slime_are_cut_into_turns_without_padding(tmp_path) -> None:
    nemo = [row for _, row in read_samples(trainer_files.nemo_rl(tmp_path)).rows]
    assert [(row["prompt_ids"], row["completion_ids"], row["turn"]) for row in nemo[:3]] == [
        ([1, 9], [20, 21], 0),
        ([1, 9, 20, 21, 30], [31], 1),
        ([1, 9], [20, 21, 30], 0),
    ]
    slime = read_samples(trainer_files.slime(tmp_path))
    assert [(row["prompt_ids"], row["completion_ids"]) for _, row in slime.rows] == [([1, 9], [20, 21])] * 2 + [
        ([2, 9], [20, 21])
    ]
    assert slime.notes == ["left out, aborted by slime: 1"]


def test_each_message_that_the_policy_sampled_in_a_graph_is_a_row_with_its_exact_ids(tmp_path) -> None:
    found = read_samples(trainer_files.prime_rl(tmp_path))
    first, second = found.rows[0][1], found.rows[1][1]
    assert (first["prompt_ids"], first["completion_ids"], first["turn"]) == ([1, 9, 5], [20, 21], 0)
    assert (second["prompt_ids"], second["completion_ids"], second["turn"]) == ([1, 9, 5, 20, 21, 30, 5], [22], 1)
    assert (first["group"], first["rewards"]) == ("g1", {"correct": 2.0, "skipped": None})
    assert "left out, an evaluation within a training run: 1" in found.notes
    assert read_samples(trainer_files.verifiers(tmp_path)).step is None, "an evaluation of its own has no step"


def test_a_graph_without_ids_is_read_as_messages_with_its_tools(tmp_path) -> None:
    record = trainer_files.episode(*SAMPLES[0])
    for node in record["traces"][0]["nodes"]:
        del node["token_ids"], node["mask"]
    (_, first), (_, second) = read_samples(trainer_files.jsonl(tmp_path / "traces.jsonl", [record])).rows
    assert first["prompt"] == [{"role": "user", "content": PROMPTS[0]}]
    assert first["tools"][0]["function"]["name"] == "add"
    assert second["prompt"][1]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 2, "b": 2}'}


def test_a_branch_that_was_rewritten_gives_each_sampled_message_once(tmp_path) -> None:
    record = trainer_files.episode(*SAMPLES[0])
    nodes = record["traces"][0]["nodes"]
    nodes += [nodes[2] | {"parent": 0, "token_ids": [40]}, nodes[3] | {"parent": 4, "token_ids": [5, 50]}]
    rows = [row for _, row in read_samples(trainer_files.jsonl(tmp_path / "traces.jsonl", [record])).rows]
    assert [(row["completion_ids"], row["turn"]) for row in rows] == [([20, 21], 0), ([22], 1), ([50], 0)]
    assert rows[2]["prompt_ids"] == [1, 9, 40, 5]


def test_the_keys_of_verl_name_group_rollout_and_call() -> None:
    assert split_uid("7f-a_b_3_1") == ("7f-a_b", "7f-a_b_3", 1)
    assert split_uid("plain") == ("plain", None, 0) and split_uid(None) == (None, None, 0)


@pytest.mark.parametrize(
    ("name", "step", "model", "said"),
    [
        ("trl", 100, "out/checkpoint-100", "step 100 was sampled by checkpoint-99; you gave checkpoint-100"),
        ("trl", 1, "out/checkpoint-1", "step 1 was sampled by the initial model; you gave checkpoint-1"),
        ("verl", 100, "ckpt/global_step_100/actor", "was sampled by global_step_99; you gave global_step_100"),
        ("nemo_rl", 100, "results/step_100/policy", "was sampled by step_99; you gave step_100"),
        ("areal", 100, "epoch1epochstep3globalstep100", "was sampled by globalstep99; you gave globalstep100"),
        ("slime", 100, "hf/iter_0000100", "was sampled by iter_0000099; you gave iter_0000100"),
        ("skyrl", 100, "exports/global_step_99/policy", "was sampled by global_step_100; you gave global_step_99"),
        ("verifiers", 100, "weights/step_99", "was sampled by step_100; you gave step_99"),
    ],
)
def test_a_checkpoint_that_did_not_sample_the_step_is_named(tmp_path, name, step, model, said) -> None:
    path = WRITERS[name](tmp_path) if step == 100 else trainer_files.trl(tmp_path, step)
    found = read_samples(path)
    notes = notes_on_file(found, path, Path(model))
    assert any(said in note for note in notes), notes
    rule = found.format.rule_for(path)
    assert rule is not None
    right = rule.sampled_by(step)
    fitting = rule.folder.format(right) if name != "areal" else f"epoch0epochstep0globalstep{right}"
    assert not any("you gave" in note for note in notes_on_file(found, path, Path("out") / fitting))
    assert not any("you gave" in note for note in notes_on_file(found, path, Path("merged"))), "no number, no word"


def test_an_evaluation_of_verl_and_nemo_rl_is_of_the_checkpoint_of_its_own_step(tmp_path) -> None:
    path = trainer_files.verl(tmp_path)
    found = read_samples(path, None, "verl_validation")
    assert not [note for note in notes_on_file(found, path, Path("global_step_100")) if "you gave" in note]
    rows = [{"content": [["a", "b"]], "rewards": [1.0], "idx": 0}]
    path = trainer_files.jsonl(tmp_path / "val_data_step7.jsonl", rows)
    found = read_samples(path)
    assert (found.format.name, found.step) == ("nemo_rl", 7)
    assert notes_on_file(found, path, Path("step_7")) == []


def test_messages_of_nemo_rls_validation_are_turns_of_rendered_text(tmp_path) -> None:
    said = [("user", "<u>2+2?<a>"), ("assistant", "4"), ("environment", "<e>right<a>"), ("assistant", "done")]
    messages = [{"role": role, "content": text} for role, text in said]
    rows = [{"content": [own], "rewards": [1.0], "idx": 0} for own in (messages, messages[:1])]
    found = read_samples(trainer_files.jsonl(tmp_path / "val_data_step7.jsonl", rows))
    assert [(row["prompt"], row["completion"], row["turn"]) for _, row in found.rows] == [
        ("<u>2+2?<a>", "4", 0),
        ("<u>2+2?<a>4<e>right<a>", "done", 1),
    ]
    assert found.notes == ["left out, nothing was sampled: 1"]
    for content in ([messages[0], 3], [{"role": "user"}], ["a", "b", "c"], [], None):
        path = trainer_files.jsonl(tmp_path / "bad.jsonl", [{"content": [content], "rewards": [1.0], "idx": 0}])
        assert "row 1: `content` is" in refused(path)


def test_an_evaluation_under_the_name_of_trls_step_is_noted(tmp_path) -> None:
    path, model = trainer_files.trl(tmp_path), tmp_path / "checkpoint-99"
    (tmp_path / "checkpoint-100").mkdir()
    state = {"log_history": [{"step": 100, "loss": 0.0}, {"step": 90, "eval_runtime": 1.0}]}
    (tmp_path / "checkpoint-100" / "trainer_state.json").write_text(json.dumps(state))
    assert notes_on_file(read_samples(path), path, model) == []
    state["log_history"].append({"step": 100, "eval_runtime": 1.0})
    (tmp_path / "checkpoint-100" / "trainer_state.json").write_text(json.dumps(state))
    assert any("step 100 was evaluated" in note for note in notes_on_file(read_samples(path), path, model))


def test_a_name_and_rows_that_state_different_steps_are_noted(tmp_path) -> None:
    path = trainer_files.verl(tmp_path).rename(tmp_path / "90.jsonl")
    notes = notes_on_file(read_samples(path), path, Path("merged"))
    assert "the file's name says step 90, and its rows say step 100" in notes


def test_unknown_and_ambiguous_columns_are_refused_with_what_is_there_and_what_is_known(tmp_path) -> None:
    unknown = refused(trainer_files.jsonl(tmp_path / "a.jsonl", [{"question": "a", "reply": "b"}]))
    assert "row 1: holds `question`, `reply`; it needs `prompt` with" in unknown and "verl, " in unknown
    both = {"step": 1, "prompt": "a", "completion": "b", "advantage": 0.0, "input": "a", "output": "b", "score": 1.0}
    path = trainer_files.jsonl(tmp_path / "b.jsonl", [both])
    assert "fit the formats trl and verl; say which with --format" in refused(path)
    assert read_samples(path, None, "verl").format.name == "verl"
    assert "did you mean 'verl'" in refused(path, None, "verll").lower()


@pytest.mark.parametrize(
    ("name", "damage", "said"),
    [
        ("verl", {"output": 3}, "row 2: `output` must be text or a list of messages"),
        ("verl", {"step": "soon"}, "row 2: `step` is 'soon'"),
        ("nemo_rl", {"token_loss_mask": [[0, 1]]}, "row 2: `token_ids` and `token_loss_mask` must be two lists"),
        ("nemo_rl", {"input_lengths": ["4"]}, "row 2: `input_lengths` is '4'; it must be a number of `token_ids`"),
        ("areal", {"tail_version": [1]}, "row 2: `tail_version` is [1]; it must be a whole number"),
        ("slime", {"response_length": 9}, "row 2: `response_length` is 9; it must be the number of `tokens`"),
        ("slime", {"tokens": [1, -2, 3, 4]}, "row 2: its prompt ids must be a list of token ids"),
        ("verifiers", {"traces": 3}, "row 2: `traces` must be a list of traces"),
        ("verifiers", {"traces": [{"nodes": [{"message": {}, "parent": 0, "sampled": True}]}]}, "earlier node"),
        ("verifiers", {"traces": [{"nodes": [{"message": {}, "token_ids": 3}]}]}, "row 2: `nodes` must be a list"),
        ("verifiers", {"run": {"work": {"policy": {"start": [1]}}}}, "row 2: its step is [1]"),
        ("verifiers", {"traces": [{"nodes": [3]}]}, "row 2: `nodes` must be a list of nodes with a `message` each"),
    ],
)
def test_a_damaged_record_is_refused_by_file_and_row(tmp_path, name, damage, said) -> None:
    path = WRITERS[name](tmp_path)
    file = path if path.is_file() else min(path.iterdir())
    lines = file.read_text().splitlines()
    lines[1] = json.dumps(json.loads(lines[1]) | damage)
    file.write_text("\n".join(lines) + "\n")
    message = refused(path)
    assert message.startswith(f"{file}, row 2") and said in message


def test_files_that_are_still_being_written_are_noted_or_refused(tmp_path) -> None:
    path = trainer_files.verl(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:-40])
    found = read_samples(path)
    assert len(found.rows) == 3 and "its last line, 4, is not complete and is left out" in found.notes[0]
    path.write_bytes(whole[:-40] + b"\n" + whole)
    assert "row 4: not JSON" in refused(path), "in the middle it is damage"
    table = trainer_files.trl(tmp_path)
    table.write_bytes(table.read_bytes()[:-20])
    assert "Parquet ends with its footer: if it is still being written" in refused(table)
    packed = tmp_path / "100.jsonl.gz"
    packed.write_bytes(gzip.compress(whole)[:-20])
    assert "cannot be decompressed" in refused(packed)


@pytest.mark.parametrize("suffix", [".jsonl", ".JSONL.GZ", ".jsonl.zst", ".Json", ".parquet"])
def test_the_same_records_are_read_from_every_type_of_file(tmp_path, suffix) -> None:
    plain = trainer_files.verl(tmp_path)
    rows = [json.loads(line) for line in plain.read_text().splitlines()]
    path = tmp_path / f"200{suffix}"
    match suffix.lower():
        case ".parquet":
            pq.write_table(pa.Table.from_pylist(rows), path)
        case ".jsonl.gz":
            path.write_bytes(gzip.compress(plain.read_bytes()))
        case ".jsonl.zst":
            parts = [pa.compress(plain.read_bytes()[:99], "zstd", asbytes=True)]
            parts += [pa.compress(plain.read_bytes()[99:], "zstd", asbytes=True)]
            path.write_bytes(b"".join(parts))
        case ".json":
            path.write_text(json.dumps(rows, indent=1))
        case _:
            path.write_bytes(plain.read_bytes())
    assert read_samples(path).rows == read_samples(plain).rows


def test_steps_of_a_folder_are_found_with_their_files_and_checkpoints(tmp_path) -> None:
    for step in (9, 10, 100):
        trainer_files.trl(tmp_path / "trl", step)
    assert list(steps_in(tmp_path / "trl", FORMATS["trl"])) == [9, 10, 100]
    found = read_samples(tmp_path / "trl" / "completions", 10)
    assert (found.step, len(found.rows)) == (10, len(SAMPLES))
    assert "holds the steps 9, 10, 100" in refused(tmp_path / "trl" / "completions")
    trainer_files.areal(tmp_path / "areal", 3)
    (files,) = steps_in(tmp_path / "areal" / "rollout", FORMATS["areal"]).values()
    assert [file.name for file in files] == ["0.jsonl", "1.jsonl"]
    assert list(steps_in(trainer_files.prime_rl(tmp_path, 7), FORMATS["verifiers"])) == [7]
    rule = FORMATS["trl"].weights
    assert rule is not None and rule.checkpoints(tmp_path).get(9) is None
    (tmp_path / "out" / "checkpoint-9").mkdir(parents=True)
    assert rule.checkpoints(tmp_path)[9] == tmp_path / "out" / "checkpoint-9"
    assert format_of(next((tmp_path / "trl").glob("**/*.parquet"))).name == "trl"


def test_prompts_under_other_ids_and_several_steps_are_said(tmp_path) -> None:
    rows = [{"prompt": "a", "completion": "b", "prompt_id": i, "step": 1} for i in range(3)]
    path = trainer_files.jsonl(tmp_path / "a.jsonl", rows)
    assert "1 prompts stand under more than one id; equal prompts count as one" in read_samples(path).notes
    path = trainer_files.jsonl(tmp_path / "b.jsonl", [*rows, rows[0] | {"step": 2}])
    assert "holds the steps 1, 2, which different policies sampled; select one with --step" in refused(path)
    assert len(read_samples(path, 2).rows) == 1
