"""`squelch score`: what any trainer wrote is read as it was meant, scored, and its templates are named."""

import copy
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, Gemma2Config

from squelch.cluster.cli import main
from squelch.kit.api import answers as answers_module
from squelch.kit.api.answers import read_answers
from squelch.kit.api.completions import EMPTY, TEXT_BEFORE, UNCLOSED, UNMARKED, spans_of
from squelch.kit.api.samples import TOO_LONG, Reasonings
from squelch.kit.diagnosis.metrics import REGIMES
from squelch.kit.diagnosis.templates import gaps, ranked
from squelch.kit.scoring.linking import score_links
from squelch.kit.scoring.settings import OTHERS, REFERENCES
from squelch.kit.untrusted.files import MIB


@pytest.fixture(scope="module")
def words(tiny_policy: Path) -> list[str]:
    """Words of the tiny policy's vocabulary, with the space before them."""
    vocabulary = Tokenizer.from_file(str(tiny_policy / "tokenizer.json")).get_vocab()
    plain = sorted(piece for piece in vocabulary if piece.startswith("Ġ") and piece[1:].isalpha())
    return [" " + piece[1:] for piece in plain]


@pytest.fixture(scope="module")
def rows(words: list[str]) -> list[dict[str, object]]:
    """Seven prompts with three reasonings each; the third is the same text everywhere."""
    rng = np.random.default_rng(0)

    def text(size: int) -> str:
        return "".join(rng.choice(words, size))

    template = text(6)
    prompts = [f"<|user|>{text(9)}<|end|><|assistant|>" for _ in range(7)]
    return [
        {"prompt": each, "completion": f"<think>{reasoning}</think> <answer>{words[0]}</answer>", "step": 4}
        for each in prompts
        for reasoning in (text(5), text(8), template)
    ]


def jsonl(path: Path, rows: list[dict[str, object]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def output(capsys: pytest.CaptureFixture[str], *argv: str) -> dict:
    assert main([*argv, "--json"]) == 0, capsys.readouterr().err
    return json.loads(capsys.readouterr().out)


def refusal(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """The paragraph of an error with exit code 2."""
    assert main(list(argv)) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and captured.err.strip().count("\n") == 0
    return captured.err


def test_the_matrix_is_the_models_and_squelch_mi_reads_it_to_the_same_metrics(tmp_path, tiny_policy, rows, capsys):
    out = tmp_path / "scores.npz"
    file = jsonl(tmp_path / "r.jsonl", rows[:-1])  # the last prompt has one reasoning less
    found = output(capsys, "score", file, "--model", str(tiny_policy), "--out", str(out), "--temperature", "0.8")
    read = output(capsys, "mi", str(out))
    for key in ("mi_est", "mi_seq_est", "retrieval_accuracy", "conditional_entropy", "interval_95", "null", "recall"):
        assert found[key] == read[key], key
    assert (found["num_samples"], found["num_prompts"], found["num_excluded"]) == (20, 7, 0)
    data = np.load(out)
    assert data["rows"].tolist()[-1] == [19, 20, 0] and data["lengths"][-1, 2] == 0

    tokenizer = Tokenizer.from_file(str(tiny_policy / "tokenizer.json"))
    model = AutoModelForCausalLM.from_pretrained(tiny_policy)
    x = tokenizer.encode(rows[6]["prompt"] + "<think>", add_special_tokens=False).ids
    z = tokenizer.encode(rows[1]["completion"].split("<think>")[1].split("</think>")[0], add_special_tokens=False).ids
    with torch.inference_mode():
        log_probs = (model(torch.tensor([x + z])).logits[0].float() / 0.8).log_softmax(-1)
    expected = sum(float(log_probs[len(x) - 1 + i, token]) for i, token in enumerate(z))
    assert data["log_likelihood"][0, 1, 2] == pytest.approx(expected, abs=1e-4 * len(z))


def test_the_template_is_named_first_with_its_text_and_its_rows(tmp_path, tiny_policy, rows, capsys):
    """Under a model that reads its input little, the shared text fits every prompt; it is one entry, not seven."""
    file = jsonl(tmp_path / "r.jsonl", rows)
    found = output(capsys, "score", file, "--model", str(tiny_policy), "--templates", "100")["templates"]
    assert [each["gap"] for each in found] == sorted(each["gap"] for each in found)
    (shared,) = [each for each in found if each["count"] == 7]
    assert (shared["num_prompts"], shared["rows"]) == (7, [3, 6, 9, 12, 15, 18, 21])
    assert f"<think>{shared['text']}</think>" in rows[2]["completion"]
    assert main(["score", file, "--model", str(tiny_policy)]) == 0
    table = capsys.readouterr().out
    assert "MI-Est" in table and "fit the other prompts" in table and " ".join(found[0]["text"].split()) in table


def test_text_in_either_form_and_ids_score_the_same(tmp_path, tiny_policy, rows, capsys):
    tokenizer = Tokenizer.from_file(str(tiny_policy / "tokenizer.json"))

    def ids(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids

    parts = [(row["prompt"], row["completion"].split("<think>")[1].split("</think>")[0]) for row in rows]
    opened = [{"input": f"{x}<think>", "output": f"{z}</think> rest", "group_id": x} for x, z in parts]
    plain = [{"prompt": f"{x}<think>", "reasoning": z} for x, z in parts]
    exact = {"prompt_ids": [ids(f"{x}<think>") for x, _ in parts], "reasoning_ids": [ids(z) for _, z in parts]}
    pq.write_table(pa.table(exact), tmp_path / "ids.parquet")
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "text.parquet")
    files = [jsonl(tmp_path / "a.jsonl", rows), jsonl(tmp_path / "b.jsonl", opened), jsonl(tmp_path / "c.jsonl", plain)]
    files += [str(tmp_path / "text.parquet"), str(tmp_path / "ids.parquet")]
    found = [output(capsys, "score", file, "--model", str(tiny_policy), "--templates", "3") for file in files]
    for one in found:
        assert one["mi_est"] == pytest.approx(found[0]["mi_est"], abs=1e-6)  # reasonings are batched with answers
        assert [t["rows"] for t in one["templates"]] == [t["rows"] for t in found[0]["templates"]]


def test_answers_are_linked_to_their_reasonings_from_text_and_from_ids(tmp_path, tiny_policy, rows, words, capsys):
    tokenizer = Tokenizer.from_file(str(tiny_policy / "tokenizer.json"))

    def ids(text: str) -> list[int]:
        return tokenizer.encode(text, add_special_tokens=False).ids

    said = [{**row, "completion": str(row["completion"]) + words[i % 5]} for i, row in enumerate(rows)]
    parts = [(row["prompt"], row["completion"].split("<think>")[1].partition("</think>")) for row in rows]
    exact = {
        "prompt_ids": [ids(f"{x}<think>") for x, _ in parts],
        "reasoning_ids": [ids(z) for _, (z, _, _) in parts],
        "answer_ids": [ids(close + answer) for _, (_, close, answer) in parts],
    }
    pq.write_table(pa.table(exact), tmp_path / "ids.parquet")
    model = ("--model", str(tiny_policy))
    text = output(capsys, "score", jsonl(tmp_path / "a.jsonl", said), *model)
    plain = output(capsys, "score", str(tmp_path / "ids.parquet"), *model)
    assert text["links"]["answers"] == 21 and text["links"].keys() == plain["links"].keys()
    for key, value in text["links"].items():
        assert plain["links"][key] == pytest.approx(value, abs=1e-3), f"{key}: what follows the answer is no part of it"
    assert text["links"]["information"] <= text["links"]["ceiling"] and text["regime"] in REGIMES
    assert main(["score", str(tmp_path / "a.jsonl"), *model]) == 0
    table = capsys.readouterr().out
    assert "answers: 21\n" in table and "X to A past Z" in table
    assert re.search(rf"^D / surprise +{text['links']['dependence_share']:.4f} ", table, re.MULTILINE)
    assert f"regime without a judge: {text['regime']}: {text['regime_reason']} (docs/" in table


def test_answers_that_cannot_be_scored_are_counted_under_their_reason(tmp_path, tiny_policy, rows, words, capsys):
    long, without = words[0] * 2000, str(rows[0]["completion"]).partition(" <answer>")[0]
    bad = [rows[0] | {"completion": without}, rows[1] | {"completion": str(rows[1]["completion"]) + "x"}]
    path, model = jsonl(tmp_path / "r.jsonl", [*rows, *bad]), ("--model", str(tiny_policy))
    found = output(capsys, "score", path, *model)
    assert found["links"]["answers"] == 22 and found["answers_excluded"] == {"no_answer": 1}
    assert main(["score", path, *model]) == 0
    assert "answers left out: no answer: 1\n" in capsys.readouterr().out
    wordy = [{**row, "completion": f"<think>{words[1]}</think> <answer>{long}</answer>"} for row in rows[:2]]
    found = output(capsys, "score", jsonl(tmp_path / "l.jsonl", [*wordy, *rows[3:9]]), *model)
    assert found["links"]["answers"] == 6 and found["answers_excluded"] == {"too_long": 2}


def test_an_answer_is_scored_under_as_many_others_as_the_probes_under_a_budget(monkeypatch):
    class EvenEngine:
        """An engine for which all tokens are equally likely."""

        def path_sums(self, prompts, rows, pictures=None):
            return [[np.array([-0.1 * len(path.ids[path.start :]) for path in row]) for row in each] for each in rows]

    def spied(engine, prompts, pairs, wanted, past, references, pictures):
        seen.append((past.sum(axis=1), [references[:, pairs.source == j].sum(axis=1) for j in range(len(prompts))]))
        return score_links(engine, prompts, pairs, wanted, past, references, pictures)

    seen, num, each = [], OTHERS + 5, REFERENCES + 1
    monkeypatch.setattr(answers_module, "score_links", spied)
    source = np.repeat(np.arange(num), each)
    ids, answers = [np.array([k, k + 1]) for k in range(num * each)], [np.array([k]) for k in range(num * each)]
    prompts = [np.array([j]) for j in range(num)]
    found = Reasonings(prompts, ids, [""] * num * each, source, np.arange(num * each), answers)
    assert read_answers(EvenEngine(), 64, found, 0)[0].links is not None
    ((past, references),) = seen
    assert set(past) == {1 + OTHERS}, "the own prompt and OTHERS others"
    for j, of_prompt in enumerate(references):
        assert set(np.delete(of_prompt, j)) == {REFERENCES}, "reasonings of each other prompt"


def test_an_answer_without_a_finite_likelihood_costs_only_itself():
    class OneImpossibleAnswer:
        """An engine for which the answer 7 is impossible, and others are as likely as their length says."""

        def path_sums(self, prompts, rows, pictures=None):
            return [[np.array([self.of(path.ids[path.start :]) for path in row]) for row in each] for each in rows]

        def of(self, ids):
            return -np.inf if 7 in ids else -0.1 * len(ids)

    ids, answers = [np.array([k, k + 1]) for k in range(9)], [np.array([k]) for k in range(9)]
    prompts, source = [np.array([9 + j]) for j in range(3)], np.arange(9) // 3
    found = Reasonings(prompts, ids, [""] * 9, source, np.arange(9), answers)
    scored, _ = read_answers(OneImpossibleAnswer(), 64, found, 0)
    assert scored.links is not None and scored.links.metrics()["answers"] == 8
    assert +scored.excluded == {"non_finite": 1}


def test_the_share_of_rows_with_reasoning_is_that_of_the_whole_file(tmp_path, tiny_policy, rows, capsys):
    empty = [{"prompt": row["prompt"], "completion": "<think> </think> <answer>a</answer>"} for row in rows[:14]]
    path = jsonl(tmp_path / "r.jsonl", [*rows, *empty])
    found = output(capsys, "score", path, "--model", str(tiny_policy), "--max-prompts", "4", "--no-links")
    assert found["num_samples"] == 12 < found["excluded"][EMPTY] == 14
    assert found["regime"] != "mute", "21 of 35 rows of the file have reasoning"
    mute = [{**row, "prompt": f"{row['prompt']} "} for row in empty]
    path = jsonl(tmp_path / "m.jsonl", [*rows, *empty, *mute])
    assert main(["score", path, "--model", str(tiny_policy), "--max-prompts", "4", "--no-links"]) == 0
    text = capsys.readouterr().out
    judged = "regime without a judge: mute: 43% of the turns have reasoning, less than 50%"
    assert f"{judged} (docs/guide/reasoning.md)\n" in text
    assert "reasoning_mute (notice)\n  The policy writes no reasoning: 43% of the first turns have any" in text
    assert "usual causes: " in text and "reasoning_mute" not in [one["name"] for one in found["findings"]]


def test_without_answers_or_unasked_no_answer_is_scored(tmp_path, tiny_policy, rows, capsys):
    model = ("--model", str(tiny_policy))
    bare = [
        {"prompt": r["prompt"], "reasoning": r["completion"].split("<think>")[1].split("</think>")[0]} for r in rows
    ]
    for file, flags in (("b", ()), ("a", ("--no-links",))):
        path = jsonl(tmp_path / f"{file}.jsonl", bare if file == "b" else rows)
        found = output(capsys, "score", path, *model, *flags)
        assert found["links"] is None and found["regime"] in ("template", "unknown")
        assert main(["score", path, *model, *flags]) == 0
        assert f"regime without a judge: {found['regime']}: {found['regime_reason']} " in capsys.readouterr().out, (
            "it needs no answers"
        )
    one = [row if i < 3 else bare[i] | {"step": 4} for i, row in enumerate(rows)]
    one = [{**row, "prompt": str(row["prompt"]) + ("<think>" if "reasoning" in row else "")} for row in one]
    assert output(capsys, "score", jsonl(tmp_path / "c.jsonl", one), *model)["links"] is None


def test_messages_are_rendered_by_the_models_template(tmp_path, tiny_policy, rows, capsys):
    text = [row["prompt"].removeprefix("<|user|>").removesuffix("<|end|><|assistant|>") for row in rows]
    spoken = [
        {
            "prompt": [{"role": "user", "content": x}],
            "completion": [{"role": "assistant", "content": row["completion"]}],
        }
        for x, row in zip(text, rows, strict=True)
    ]
    parsed = copy.deepcopy(spoken)
    for row in parsed:
        reasoning, rest = row["completion"][0]["content"].removeprefix("<think>").split("</think>")
        row["completion"][0] |= {"reasoning_content": reasoning, "content": rest}
    files = [jsonl(tmp_path / f"{i}.jsonl", each) for i, each in enumerate((rows, spoken, parsed))]
    found = [output(capsys, "score", file, "--model", str(tiny_policy)) for file in files]
    assert found[0]["mi_est"] == found[1]["mi_est"] == found[2]["mi_est"]


def test_what_cannot_be_scored_is_left_out_under_its_reason(tmp_path, tiny_policy, rows, words, capsys):
    x = rows[0]["prompt"]
    bad = [
        {"prompt": x, "completion": "<think>   </think> <answer></answer>"},
        {"prompt": x, "completion": f"<think>{words[0]}"},
        {"prompt": x, "completion": f"{words[0]} <think>{words[1]}</think>"},
        {"prompt": x, "reasoning": ""},
        {"prompt": words[0] * 2000, "completion": f"<think>{words[1]}</think>"},
    ]
    found = output(capsys, "score", jsonl(tmp_path / "r.jsonl", rows + bad), "--model", str(tiny_policy))
    assert found["excluded"] == {EMPTY: 2, UNCLOSED: 1, TEXT_BEFORE: 1, TOO_LONG: 1}
    assert (found["num_samples"], found["num_excluded"]) == (21, 5)
    alone = output(capsys, "score", jsonl(tmp_path / "r.jsonl", rows), "--model", str(tiny_policy))
    assert alone["mi_est"] == found["mi_est"]


def test_a_choice_of_prompts_is_seeded_and_counted(tmp_path, tiny_policy, rows, capsys):
    file, flags = jsonl(tmp_path / "r.jsonl", rows), ("--model", str(tiny_policy), "--max-prompts", "4")
    found = [output(capsys, "score", file, *flags, "--seed", seed) for seed in ("0", "0", "1")]
    assert found[0] == found[1] != found[2]
    assert (found[0]["num_prompts"], found[0]["num_samples"], found[0]["num_excluded"]) == (4, 12, 9)


WHOLE = ("--reasoning", "completion")
ROW = {"prompt": "a", "completion": "<think>b</think>"}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (['{"prompt": '], "row 1: not JSON"),
        (["[1, 2]"], "row 1: an object of columns is needed"),
        ([json.dumps({"prompt": "a"})], "row 1: holds `prompt`; it needs `prompt` with `reasoning`"),
        ([json.dumps(ROW | {"completion": 3})], "row 1: `completion` must be text or a list of messages"),
        ([json.dumps(ROW | {"reasoning": [1]})], "row 1: `reasoning` is a list; it must be text"),
        ([json.dumps({"prompt_ids": [1, -2], "reasoning_ids": [1]})], "row 1: `prompt_ids` must be a list of token"),
        (["", json.dumps(ROW | {"prompt": [{"role": "user"}, 3]})], "row 2: `prompt` must be text or a list of"),
        ([""], "holds no rows"),
        ([json.dumps(ROW | {"step": 1}), json.dumps(ROW | {"step": 2})], "holds the steps 1, 2, which different"),
    ],
)
def test_a_malformed_file_is_refused_with_its_row(tmp_path, tiny_policy, capsys, lines, said):
    path = tmp_path / "bad.jsonl"
    path.write_text("\n".join(lines))
    message = refusal(capsys, "score", str(path), "--model", str(tiny_policy))
    assert said in message and str(path) in message


def test_a_step_may_be_text_or_a_float_and_never_two_steps_at_once(tmp_path, tiny_policy, rows, capsys):
    for write in (str, float):
        both = [{**row, "step": write(4 + i % 2)} for i, row in enumerate(rows)]
        path, model = jsonl(tmp_path / "r.jsonl", both), ("--model", str(tiny_policy))
        assert "holds the steps 4, 5, which different" in refusal(capsys, "score", path, *model)
        assert output(capsys, "score", path, *model, "--step", "5")["num_samples"] == 10
    odd = jsonl(tmp_path / "o.jsonl", [rows[0] | {"step": 4.5}])
    assert "row 1: `step` is 4.5; it must be a whole number" in refusal(capsys, "score", odd, *model)


UNDER_A_BOUND = """
import sys
from pathlib import Path
from squelch.kit.readers import score_files
from squelch.kit.base.errors import UserError

from squelch.kit.untrusted import decoder_process
bounded, most = decoder_process.memory_of_at_most, int(sys.argv[1]) << 20
decoder_process.memory_of_at_most = lambda where: bounded(where, most)
print([number for number, _ in score_files.read_rows(Path(sys.argv[2]), 7)])
for path in sys.argv[2:]:
    try:
        score_files.read_rows(Path(path), None)
    except UserError as error:
        print(error)
"""


def under_a_bound(most_mib: int, *files: Path) -> list[str]:
    """Reads step 7, and then each file whole, in a process of its own: the bound is on what the system gives, and this
    one's heap may have room to spare."""
    words = [sys.executable, "-c", UNDER_A_BOUND, str(most_mib), *map(str, files)]
    return subprocess.run(words, capture_output=True, text=True, timeout=180, check=True).stdout.splitlines()


def long_rows(count: int) -> list[dict[str, object]]:
    return [{"prompt": f"{step:08d}" * (MIB // 2), "reasoning": "a", "step": step} for step in range(count)]


def test_the_steps_that_are_not_wanted_take_no_memory(tmp_path):
    file, one_step = tmp_path / "run.jsonl", tmp_path / "one.jsonl"
    jsonl(file, long_rows(30))
    jsonl(one_step, [row | {"step": 7} for row in long_rows(30)])
    wanted, several, refused = under_a_bound(48, file, one_step)
    assert wanted == "[8]" and "holds the steps 0, 1, 2, 3, 4, 5, … (30 in all)" in several
    assert "more than 48 MiB of memory" in refused


def test_a_table_of_one_row_group_is_read_in_parts(tmp_path):
    """In a process of its own, as above: the table has 360 MiB, and reading it in parts takes about 130."""
    file = tmp_path / "run.parquet"
    pq.write_table(pa.Table.from_pylist(long_rows(90)), file, use_dictionary=False, write_batch_size=1)
    wanted, several = under_a_bound(240, file)
    assert wanted == "[8]" and "… (90 in all)" in several


def test_a_step_is_picked(tmp_path, tiny_policy, rows, capsys):
    file = jsonl(tmp_path / "r.jsonl", [*rows, *({**row, "step": 5} for row in rows[:-3])])
    assert output(capsys, "score", file, "--model", str(tiny_policy), "--step", "5")["num_samples"] == 18
    assert "no rows of step 9; it has 4, 5" in refusal(
        capsys, "score", file, "--model", str(tiny_policy), "--step", "9"
    )


def test_a_file_that_marks_no_reasoning_is_refused_with_the_flags_of_its_prompts_answer(
    tmp_path, tiny_policy, rows, capsys
):
    bare = [row["completion"].replace("<think>", "").replace("</think>", "") for row in rows]
    asking = [
        {**row, "prompt": f"{row['prompt']} <answer>", "completion": said} for row, said in zip(rows, bare, strict=True)
    ]
    file, model = jsonl(tmp_path / "r.jsonl", asking), ("--model", str(tiny_policy))
    message = refusal(capsys, "score", file, *model)
    assert f"{UNMARKED}: {len(rows)}" in message and "(regime unmarked): prompts ask for <answer>: " in message
    assert "--reasoning before_answer and --answer '<answer>' take what stands before it" in message
    found = output(capsys, "score", file, *model, "--reasoning", "before_answer", "--answer", "<answer>")
    assert found["num_samples"] == len(rows) and found["links"]["answers"] == len(rows)
    assert "before_answer needs the text" in refusal(capsys, "score", file, *model, "--reasoning", "before_answer")


def test_a_completion_that_is_not_divided_is_no_reasoning_in_any_line(tmp_path, tiny_policy, rows, capsys):
    file = jsonl(tmp_path / "r.jsonl", rows)
    found = [output(capsys, "score", file, "--model", str(tiny_policy), *way) for way in (WHOLE, ("--whole",))]
    assert found[0] == found[1] and found[0]["regime"] is None and "mi_est" not in found[0]
    assert found[0]["completion"]["dependence@100"] == found[0]["completion"]["dependence"] and not found[0]["links"]
    assert main(["score", file, "--model", str(tiny_policy), *WHOLE]) == 0
    said = capsys.readouterr().out
    assert "prompt dependence" in said and "no regime: the completions are not divided" in said
    assert "MI-" not in said and "of its first 25%" in said and " completion\n" in said


def test_one_prompt_only_is_refused_with_what_was_left_out(tmp_path, tiny_policy, rows, capsys):
    rows = [*rows[:3], {"prompt": "x", "completion": "never closed"}]
    message = refusal(capsys, "score", jsonl(tmp_path / "r.jsonl", rows), "--model", str(tiny_policy))
    assert "3 reasonings of 1 distinct prompts" in message and f"{UNMARKED}: 1" in message


def test_another_models_tokens_are_refused(tmp_path, tiny_policy, rows, capsys):
    pq.write_table(pa.table({"prompt_ids": [[1], [2]], "reasoning_ids": [[3], [150_000]]}), tmp_path / "ids.parquet")
    message = refusal(capsys, "score", str(tmp_path / "ids.parquet"), "--model", str(tiny_policy))
    assert "row 2: token id 150000 is outside the vocabulary" in message
    foreign = jsonl(tmp_path / "r.jsonl", [*rows, {"prompt": "x", "reasoning": " Schrödinger"}])
    message = refusal(capsys, "score", foreign, "--model", str(tiny_policy))
    assert "row 22" in message and "cannot express" in message


def test_one_prompt_id_with_two_prompts_is_refused(tmp_path, tiny_policy, rows, capsys):
    file = jsonl(tmp_path / "r.jsonl", [{**row, "prompt_id": 7} for row in rows])
    assert "row 4: the prompt's id 7 is that of row 1" in refusal(capsys, "score", file, "--model", str(tiny_policy))


def test_folders_that_hold_no_model_are_refused(tmp_path, tiny_policy, rows, capsys):
    file = jsonl(tmp_path / "r.jsonl", rows)
    assert "no config.json" in refusal(capsys, "score", file, "--model", str(tmp_path))
    assert "does not exist" in refusal(capsys, "score", str(tmp_path / "none"), "--model", str(tiny_policy))
    out = str(tmp_path / "none" / "m.npz")
    assert "its folder does not" in refusal(capsys, "score", file, "--model", str(tiny_policy), "--out", out)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--markers", "", "</think>"), "--markers: both need text"),
        (("--markers", "<think>", ""), "--markers: both need text"),
        (("--device", "cuda:99"), "--device cuda:99: "),
    ],
)
def test_flags_that_cannot_work_are_refused_by_name(tmp_path, tiny_policy, rows, capsys, flags, says):
    file = jsonl(tmp_path / "r.jsonl", rows)
    assert says in refusal(capsys, "score", file, "--model", str(tiny_policy), *flags)


def test_a_negative_number_of_templates_is_refused(tmp_path, tiny_policy, rows, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["score", jsonl(tmp_path / "r.jsonl", rows), "--model", str(tiny_policy), "--templates", "-1"])
    assert "argument --templates: '-1'" in capsys.readouterr().err


def test_the_scores_never_replace_the_file_that_is_read(tmp_path, tiny_policy, rows, capsys):
    file = tmp_path / "r.jsonl"
    jsonl(file, rows)
    before = file.read_bytes()
    (tmp_path / "link").symlink_to(tmp_path)
    out = str(tmp_path / "link" / "r.jsonl")
    assert "is the file that is read" in refusal(capsys, "score", str(file), "--model", str(tiny_policy), "--out", out)
    assert file.read_bytes() == before


def test_a_context_that_config_json_leaves_to_its_default_is_known(tmp_path, tiny_policy, rows, capsys):
    shutil.copytree(tiny_policy, tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    del config["max_position_embeddings"]
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    assert output(capsys, "score", jsonl(tmp_path / "r.jsonl", rows), "--model", str(tmp_path / "model"))["mi_est"]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("<think> a b</think> c", (" a b", "</think> c")),
        ("\n<think>a</think>", ("a", None)),
        (" a </think><answer>", (" a ", "</think><answer>")),
        ("<think>a</think> b <think>c</think>", ("a", "</think> b <think>c</think>")),
        ("a</think> b <think>c</think>", ("a", "</think> b <think>c</think>")),
        ("<think>a</think> b <answer>c</answer> d", ("a", "</think> b <answer>c</answer>")),
        ("<think>a</think> b\n<tool_call>c</tool_call>", ("a", "</think> b")),
        ("<think>a</think><tool_call>c</tool_call>", ("a", None)),
        ("<think>a</think> </answer>", ("a", None)),
        ("<think>a", UNCLOSED),
        ("a", UNMARKED),
        ("</think>a", EMPTY),
        ("so <think>a</think>", TEXT_BEFORE),
    ],
)
def test_a_reasoning_stands_between_the_markers_and_an_answer_after_them(text, found):
    spans = spans_of(text, ("<think>", "</think>"))
    if not isinstance(spans, str):
        start, end, last = spans
        spans = text[start:end], None if last is None else text[end:last]
    assert spans == found


def test_gap_is_own_less_the_mean_likelihood_of_the_others_that_were_scored():
    matrix = np.log([[0.4, 0.1, 0.3], [0.2, 0.2, 0.2], [0.1, 0.5, np.nan]])
    found = gaps(matrix, np.array([0, 1, 1]))
    assert found == pytest.approx([np.log(0.4 / 0.2), 0.0, np.log(0.5 / 0.1)])
    alone, unknown = np.log([[0.4, np.nan, np.nan], [0.2, np.nan, 0.2]]), np.array([[1.0, np.inf], [-np.inf, 0.0]])
    assert np.isnan([*gaps(alone, np.array([0, 1])), *gaps(unknown, np.array([0, 1]))]).all()
    found[2] = np.nan
    named = ranked(found, np.array([0, 1, 1]), ["a", "b", "c"], np.array([2, 3, 4]), np.array([5, 6, 7]))
    assert [(each.text, each.rows, each.num_tokens) for each in named] == [("b", (6,), 3), ("a", (5,), 2)]


def test_a_model_without_all_of_its_weights_is_refused_by_name(tmp_path, tiny_policy, rows, capsys):
    model = shutil.copytree(tiny_policy, tmp_path / "model")
    weights = load_file(model / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    error = refusal(capsys, "score", jsonl(tmp_path / "r.jsonl", rows), "--model", str(model))
    assert str(model) in error and "lacks weights of the model, which would be random: 'model.norm.weight'" in error


def test_an_architecture_that_cannot_be_scored_is_refused_by_name_before_its_weights_are_loaded(
    tmp_path, tiny_policy, rows, capsys, monkeypatch
):
    folder = shutil.copytree(tiny_policy, tmp_path / "model")
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    small = {"vocab_size": size, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "head_dim": 8}
    config = Gemma2Config(**small, num_attention_heads=4, num_key_value_heads=2, pad_token_id=0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    monkeypatch.setattr(
        "squelch.kit.models.adapter_folder.load_checkpoint", lambda *_: pytest.fail("weights were loaded")
    )
    assert main(["score", jsonl(tmp_path / "rows.jsonl", rows), "--model", str(folder)]) == 2
    assert "model_type=gemma2 cannot be cross-scored" in capsys.readouterr().err
