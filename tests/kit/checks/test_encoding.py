"""With a tokenizer at hand: how prompts begin, what the template writes, whether ids and texts say the same, and
whether turns were encoded anew."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from squelch.kit.base.errors import UserError
from squelch.kit.checks.encoding import tokenizer_folder
from squelch.kit.checks.result import Result
from squelch.kit.checks.run import check
from squelch.kit.readers.reward_tables import read_rewards
from tests.kit.checks.bank import Rollout, art, run, slime, verifiers
from tests.kit.readers.trainer_files import jsonl

BEGIN = "<s>"
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a byte-level tokenizer and a chat template that writes the first token."""
    found, place = Tokenizer(models.BPE()), tmp_path_factory.mktemp("base")
    found.pre_tokenizer, found.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = [BEGIN, "<|im_start|>", "<|im_end|>"]
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    found.train_from_iterator(["the sum of counting is the sum found by counting"] * 4, trainer)
    found.save(str(place / "tokenizer.json"))
    settings = {"bos_token": BEGIN, "eos_token": "<|im_end|>", "chat_template": TEMPLATE}
    (place / "tokenizer_config.json").write_text(json.dumps(settings))
    return place


def encoded(folder: Path, text: str) -> list[int]:
    return Tokenizer.from_file(str(folder / "tokenizer.json")).encode(text, add_special_tokens=False).ids


def rollouts(
    folder: Path, begin: str = BEGIN, end: str = "<|im_start|>assistant\n", user: str = "user"
) -> list[Rollout]:
    """A run whose prompts are rendered with these parts of the template, and whose ids say its texts."""
    found = run()
    for one in found:
        one.prompt_ids = encoded(folder, f"{begin}<|im_start|>{user}\n{one.prompt}<|im_end|>\n{end}")
        said = encoded(folder, one.text + "<|im_end|>")
        one.parts, one.drawn = [(said, True)], [-1.0] * len(said)
    return found


def results(path: Path, folder: Path | None) -> dict[str, Result]:
    return {one.name: one for one in check(path, base=folder).results}


def test_prompts_and_texts_of_a_clean_run_are_what_the_tokenizer_writes(folder, tmp_path) -> None:
    found = results(_with_texts(verifiers(tmp_path, rollouts(folder))), folder)
    for name in ("prompt_start", "template_differs", "text_differs"):
        assert found[name].verdict == "sound" and found[name].of == 72, found[name]
    without = results(tmp_path / "stream" / "00000.jsonl", None)
    assert without["template_differs"].verdict == "unknown" and "--base" in without["template_differs"].needs


def _with_texts(path: Path) -> Path:
    """Of the records of one turn: the text is that of the message."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    texts = [one.text for one in run()]
    for record, text in zip(records, texts, strict=True):
        record["traces"][0]["nodes"][1]["message"]["content"] = text
    return jsonl(path, records)


def test_a_doubled_and_a_missing_first_token_are_named(folder, tmp_path) -> None:
    doubled = results(verifiers(tmp_path / "a", rollouts(folder, begin=2 * BEGIN)), folder)["prompt_start"]
    assert doubled.verdict == "fault" and "begin with the first token twice" in doubled.says and doubled.count == 72
    missing = results(slime(tmp_path / "b", rollouts(folder, begin="")), folder)["prompt_start"]
    assert missing.verdict == "fault" and "lack the first token" in missing.says


def test_a_missing_generation_prompt_is_a_fault_and_another_template_is_shown(folder, tmp_path) -> None:
    found = results(verifiers(tmp_path / "a", rollouts(folder, end="")), folder)["template_differs"]
    assert found.verdict == "fault" and "without the generation prompt" in found.says
    found = results(verifiers(tmp_path / "b", rollouts(folder, user="human")), folder)["template_differs"]
    assert found.verdict == "fault" and found.count == 72 and "human" in found.examples[0].text
    found = results(verifiers(tmp_path / "c", rollouts(folder, end="<|im_start|>assistant\n<think>\n")), folder)
    assert found["template_differs"].verdict == "unknown", "an answer may be begun for the policy"


THINKING = TEMPLATE.replace(
    "assistant\n{% endif %}", "assistant\n<think>\n{% if enable_thinking is false %}</think>\n{% endif %}{% endif %}"
)


@pytest.fixture(scope="module")
def thinking(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with a template that opens the policy's thoughts."""
    return with_template(folder, tmp_path_factory.mktemp("thinking"), THINKING)


def with_template(folder: Path, place: Path, template: str) -> Path:
    shutil.copyfile(folder / "tokenizer.json", place / "tokenizer.json")
    settings = json.loads((folder / "tokenizer_config.json").read_text()) | {"chat_template": template}
    (place / "tokenizer_config.json").write_text(json.dumps(settings))
    return place


def in_columns(folder: Path, made: list[Rollout]) -> Path:
    rows = [
        {
            "prompt": [{"role": "user", "content": one.prompt}],
            "prompt_ids": one.prompt_ids,
            "completion_ids": one.after,
            "prompt_id": one.group,
            "right": one.reward,
        }
        for one in made
    ]
    return jsonl(folder / "rows.jsonl", rows)


def slime_of_messages(folder: Path, made: list[Rollout]) -> Path:
    """As slime writes it without `--apply-chat-template`."""
    for path in sorted(slime(folder, made).glob("*.jsonl")):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        own = [one for one in made if path.stem == f"rollout_{one.step}"]
        rows = zip(records, own, strict=True)
        jsonl(path, [record | {"prompt": [{"role": "user", "content": one.prompt}]} for record, one in rows])
    return folder / "slime"


WITH_MESSAGES = [verifiers, art, in_columns, slime_of_messages]
BEGUN = "<|im_start|>assistant\n<think>\n"


@pytest.mark.parametrize("write", WITH_MESSAGES)
def test_a_lost_think_and_another_template_are_faults_where_messages_and_ids_are_known(thinking, tmp_path, write):
    found = results(write(tmp_path / "a", rollouts(thinking, end=BEGUN)), thinking)["template_differs"]
    assert found.verdict == "sound" and found.of == 72, found
    found = results(write(tmp_path / "b", rollouts(thinking)), thinking)["template_differs"]
    assert (found.verdict, found.count) == ("fault", 72) and "'<think>\\n'" in found.says, found
    found = results(write(tmp_path / "c", rollouts(thinking, end="")), thinking)["template_differs"]
    assert found.verdict == "fault" and "without the generation prompt" in found.says
    other = f"<|im_start|>system\nThink.<|im_end|>\n{BEGUN}"
    found = results(write(tmp_path / "d", rollouts(thinking, end=other)), thinking)
    assert found["template_differs"].verdict == "fault" and "system" in found["template_differs"].examples[0].text


@pytest.mark.parametrize("write", WITH_MESSAGES)
def test_arguments_of_a_template_and_prompts_that_were_cut_are_no_fault(folder, thinking, tmp_path, write) -> None:
    off = rollouts(thinking, end=f"{BEGUN}</think>\n")
    assert results(write(tmp_path / "a", off), thinking)["template_differs"].verdict == "sound"
    cut = rollouts(thinking, end=BEGUN)
    for one in cut[::2]:
        one.prompt_ids = one.prompt_ids[4:]
    assert results(write(tmp_path / "b", cut), thinking)["template_differs"].verdict == "unknown"
    place = tmp_path / "dated"
    place.mkdir()
    dated = with_template(folder, place, TEMPLATE.replace("{{ bos_token }}", "{{ bos_token }}{{ date_string }}"))
    found = results(write(tmp_path / "c", rollouts(dated, user="2 May\nuser")), dated)
    assert found["template_differs"].verdict == "unknown"
    pieces = rollouts(thinking, end=BEGUN)
    for one in pieces:  # letter by letter, as programs that encode message by message may
        text = f"{BEGIN}<|im_start|>user\n"
        one.prompt_ids = [*encoded(thinking, text), *[n for letter in one.prompt for n in encoded(thinking, letter)]]
        one.prompt_ids += encoded(thinking, f"<|im_end|>\n{BEGUN}")
    assert results(write(tmp_path / "d", pieces), thinking)["template_differs"].verdict == "sound"


@pytest.mark.parametrize("prompt", [["x"], [{"content": "x"}], [{"role": None}], [{"role": "user", "content": 4}], []])
def test_messages_that_are_none_are_not_rendered(folder, tmp_path, prompt) -> None:
    for path in sorted(slime(tmp_path, rollouts(folder)).glob("*.jsonl")):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        jsonl(path, [record | {"prompt": prompt} for record in records])
    assert results(tmp_path / "slime", folder)["template_differs"].verdict == "unknown"


def test_ids_of_another_text_are_a_fault_and_other_pieces_of_the_same_are_none(folder, tmp_path) -> None:
    made = rollouts(folder)
    made[5].text = "what another rollout said"
    path = slime(tmp_path / "a", made)
    found = results(_prompts(path, made), folder)["text_differs"]
    assert (found.verdict, found.count) == ("fault", 1) and "another rollout" in found.examples[0].text
    for one in (made := rollouts(folder)):  # letter by letter, as a policy may sample
        one.parts = [([index for letter in one.text for index in encoded(folder, letter)], True)]
        one.drawn = [-1.0] * len(one.after)
    found = results(_prompts(slime(tmp_path / "b", made), made), folder)["text_differs"]
    assert found.verdict == "sound" and found.of == 144


def _prompts(folder: Path, made: list[Rollout]) -> Path:
    """The records with the prompts that their ids say."""
    for path in sorted(folder.glob("*.jsonl")):
        records = [json.loads(line) for line in path.read_text().splitlines()]
        own = [one for one in made if path.stem == f"rollout_{one.step}"]
        for record, one in zip(records, own, strict=True):
            record["prompt"] = f"{BEGIN}<|im_start|>user\n{one.prompt}<|im_end|>\n<|im_start|>assistant\n"
        jsonl(path, records)
    return folder


def conversation(folder: Path, second: list[int], number: int) -> dict[str, Any]:
    """A rollout of NeMo Gym with two calls; the second begins with these ids."""
    first = encoded(folder, f"{BEGIN}<|im_start|>user\nproblem {number}<|im_end|>\n<|im_start|>assistant\n")
    calls = [(first, encoded(folder, "the sum")), (second, encoded(folder, "the end"))]
    output = [
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "x"}],
            "prompt_token_ids": prompt,
            "generation_token_ids": said,
            "generation_log_probs": [-1.0] * len(said),
        }
        for prompt, said in calls
    ]
    return {
        "_ng_task_index": number,
        "_ng_rollout_index": 0,
        "responses_create_params": {"input": "problem"},
        "response": {"id": "r", "status": "completed", "output": output},
        "reward": 1.0,
    }


def turns(folder: Path, tmp_path: Path, said: list[int]) -> Result:
    """The check of a rollout whose second turn shows the first one's answer as these ids."""
    begin = f"{BEGIN}<|im_start|>user\nproblem 1<|im_end|>\n<|im_start|>assistant\n"
    then = encoded(folder, "<|im_end|>\n<|im_start|>user\nand now?<|im_end|>\n<|im_start|>assistant\n")
    record = conversation(folder, [*encoded(folder, begin), *said, *then], 1)
    return results(jsonl(tmp_path / f"{len(said)}.jsonl", [record]), folder)["turns_encoded_anew"]


def test_turns_that_were_encoded_anew_are_found_and_a_rewritten_history_is_none(folder, tmp_path) -> None:
    same, letters = encoded(folder, "the sum"), [index for letter in "the sum" for index in encoded(folder, letter)]
    assert turns(folder, tmp_path, same).verdict == "sound" and letters != same
    found = turns(folder, tmp_path, letters)
    assert (found.verdict, found.count) == ("fault", 1) and "as other ids" in found.says
    found = turns(folder, tmp_path, encoded(folder, "a summary in other words"))
    assert found.verdict == "sound" and "1 rewrite their history" in found.says


def test_turns_in_a_table_of_anybody_are_those_of_their_rollout(folder, tmp_path) -> None:
    """The calls of two rollouts; with the same numbers in two groups."""
    begin = encoded(folder, f"{BEGIN}<|im_start|>user\nproblem<|im_end|>\n<|im_start|>assistant\n")
    same, letters = encoded(folder, "the sum"), [index for letter in "the sum" for index in encoded(folder, letter)]
    for name, shown in (("sound", same), ("fault", letters)):
        rows = [
            {
                "prompt_ids": ids,
                "completion_ids": same,
                "prompt_id": group,
                "rollout": member,
                "turn": turn,
                "reward": 1.0,
            }
            for group in (0, 1)
            for member in (0, 1)
            for turn, ids in enumerate((begin, [*begin, *shown, 3]))
        ]
        path = jsonl(tmp_path / f"{name}.jsonl", rows)
        found = results(path, folder)["turns_encoded_anew"]
        assert (found.verdict, found.of) == (name, 4), found
        table = read_rewards(path, None, (), None)
        assert len(table.rewards) == 4 and len(set(table.groups)) == 2, "a rollout counts once"


def test_control_tokens_that_a_template_leaves_out_of_the_history_are_no_fault(folder, tmp_path) -> None:
    begin = f"{BEGIN}<|im_start|>user\nproblem 1<|im_end|>\n<|im_start|>assistant\n"
    record = conversation(folder, encoded(folder, f"{begin}the sum<|im_end|>\n"), 1)
    said = record["response"]["output"][0]
    said["generation_token_ids"] = encoded(folder, f"<|im_start|><|im_end|>{BEGIN}the sum")  # e.g. an empty thinking
    said["generation_log_probs"] = [-1.0] * len(said["generation_token_ids"])
    found = results(jsonl(tmp_path / "rows.jsonl", [record]), folder)["turns_encoded_anew"]
    assert found.verdict == "sound" and "1 rewrite their history" in found.says


def test_a_folder_without_a_tokenizer_is_refused_and_a_checkpoints_is_found(folder, tmp_path) -> None:
    with pytest.raises(UserError, match=r"holds no tokenizer\.json"):
        tokenizer_folder(tmp_path, None)
    place = tmp_path / "checkpoint-1"
    place.mkdir()
    (place / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    assert tokenizer_folder(None, tmp_path) == place and tokenizer_folder(None, None) is None


@pytest.mark.parametrize("write", [verifiers, slime])
def test_prompts_that_are_ids_are_found_in_a_file_of_prompts_by_their_text(folder, tmp_path, write) -> None:
    made = rollouts(folder)
    data = jsonl(tmp_path / "prompts.jsonl", [{"prompt": text} for text in dict.fromkeys(one.prompt for one in made)])
    path = write(tmp_path / "rows", made)
    for base, verdict in ((folder, "sound"), (None, "unknown")):
        found = {one.name: one for one in check(path, base=base, data=data).results}["prompts_lost"]
        assert found.verdict == verdict, found
    assert "--base DIR" in found.needs
