"""Files of ART, NeMo Gym, SWE-agent and Langfuse are recognised and read as these mean them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from squelch.cluster.cli import main
from squelch.kit.base.errors import UserError
from squelch.kit.readers import agent_rows
from squelch.kit.readers.format_rows import LeftOut, whole
from squelch.kit.readers.formats import FORMATS, format_of
from squelch.kit.readers.records import records
from squelch.kit.readers.reward_tables import read_rewards
from squelch.kit.readers.score_files import read_samples
from tests.kit.readers import agent_files
from tests.kit.readers.trainer_files import PROMPTS, SAID, SAMPLES, jsonl

SPOKEN = {"role": "assistant", "content": "4"}
ART = Path(__file__).with_name("art_files")
"""By ART's own writer (`write_art_files.py`)."""
REWARDS = [reward for *_, reward in SAMPLES]


def rows(path: Path) -> list[Any]:
    """What the file's format makes of its records."""
    found = format_of(path)
    made = (row for number, record in records(path, None, []) for row in found.rows(record, f"row {number}"))
    return [row if isinstance(row, LeftOut) else whole(row) for row in made]


def samples(path: Path) -> list[Any]:
    return [row for row in rows(path) if not isinstance(row, LeftOut) and not row.get("failed")]


WRITERS: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "art, lines": ("art", agent_files.art_jsonl),
    "art, table": ("art", lambda _: ART / "0007.parquet"),
    "art, first tables": ("art", agent_files.art_first_parquet),
    "art, captured": ("art", lambda _: ART / "0008.parquet"),
    "nemo_gym": ("nemo_gym", agent_files.nemo_gym),
    "nemo_gym, text": ("nemo_gym", lambda folder: agent_files.nemo_gym(folder, exact=False)),
    "swe_agent": ("swe_agent", agent_files.swe_agent),
    "langfuse": ("langfuse", agent_files.langfuse),
    "langfuse, store": ("langfuse", agent_files.langfuse_store),
}


@pytest.mark.parametrize("name", WRITERS)
def test_each_file_is_recognised_by_its_columns_and_read_for_scoring(tmp_path, name) -> None:
    expected, write = WRITERS[name]
    path = write(tmp_path)
    found = read_samples(path)
    assert found.format.name == expected
    assert found.step == {"art, table": 7, "art, captured": 8}.get(name, 100 if expected == "art" else None)
    assert len(found.rows) >= 3


@pytest.mark.parametrize("name", [name for name in WRITERS if name not in ("swe_agent", "langfuse, store")])
def test_rewards_are_grouped_by_prompt_for_the_filter(tmp_path, name) -> None:
    table = read_rewards(WRITERS[name][1](tmp_path), None, (), None)
    kept = [(group, reward) for group, reward in zip(table.groups, table.rewards, strict=True) if reward == reward]
    assert kept == list(zip([0, 0, 1, 1], REWARDS, strict=True))


@pytest.mark.parametrize("name", ["art, lines", "art, table", "art, first tables"])
def test_choices_among_arts_messages_are_what_the_policy_said(tmp_path, name) -> None:
    found = samples(WRITERS[name][1](tmp_path))
    assert [row["prompt"][0]["content"] for row in found] == [PROMPTS[0]] * 2 + [PROMPTS[1]] * 2
    assert [row["completion"][0]["content"] for row in found] == [*SAID, *SAID]
    assert [row["tools"][0]["function"]["name"] for row in found] == ["add"] * 4
    if "first" not in name:
        assert [row["versions"] for row in found] == [[6, 7]] * 4


@pytest.mark.parametrize("name", ["art, lines", "art, table"])
def test_a_rollout_of_art_that_raised_is_a_failure_of_its_group(tmp_path, name) -> None:
    found = [row for row in rows(WRITERS[name][1](tmp_path)) if not isinstance(row, LeftOut)]
    [lost] = [row for row in found if row.get("failed")]
    assert (lost["failed"], lost["rewards"]) == (agent_rows.RAISED, {})
    assert lost["group"] == found[-1]["group"] != found[0]["group"]


def test_calls_that_art_captured_have_the_ids_of_its_server(tmp_path) -> None:
    found = samples(WRITERS["art, captured"][1](tmp_path))
    assert [row["prompt_ids"] for row in found] == [[1, 9], [1, 9], [2, 9], [2, 9]]
    assert (found[0]["completion_ids"], found[0]["logprobs"]) == ([20, 21], [-0.25, -0.25])
    other = agent_files.trajectory("a", "b", 1.0, exchanges={"responses": [{}]}, messages_and_choices=[])
    assert rows(jsonl(tmp_path / "other.jsonl", [{"trajectories": [other]}])) == [LeftOut(agent_rows.OTHER_API)]


def test_what_was_said_without_a_prompt_is_no_row(tmp_path) -> None:
    told = agent_files.trajectory("a", "b", 1.0)
    del told["messages_and_choices"][0]
    assert rows(jsonl(tmp_path / "art.jsonl", [told])) == [LeftOut(agent_rows.NOTHING)]
    answer = {"output": [{"type": "message", "role": "assistant", "content": "b"}]}
    record = {"responses_create_params": {"input": []}, "response": answer, "reward": 1.0}
    assert rows(jsonl(tmp_path / "gym.jsonl", [record])) == [LeftOut(agent_rows.NOTHING)]


def test_a_trajectory_of_art_without_a_group_is_of_the_group_of_its_prompt(tmp_path) -> None:
    path = jsonl(tmp_path / "art.jsonl", [agent_files.trajectory(*sample) for sample in SAMPLES])
    assert read_rewards(path, None, (), None).groups == [0, 0, 1, 1]


def test_nemo_gyms_items_with_ids_are_turns_and_those_without_are_messages(tmp_path) -> None:
    exact = samples(agent_files.nemo_gym(tmp_path))
    first = len(PROMPTS[0])
    assert [(row["prompt_ids"], row["completion_ids"], row["logprobs"], row["turn"]) for row in exact[:2]] == [
        ([first, 9], [20, 21], [-0.1, -0.2], 0),
        ([first, 9, 20, 21, 30], [22], [-0.3], 1),
    ]
    spoken = samples(agent_files.nemo_gym(tmp_path, exact=False))
    assert [one["role"] for one in spoken[1]["prompt"]] == ["system", "user", "assistant", "tool"]
    assert spoken[0]["completion"][0]["reasoning_content"] == "I add."
    assert spoken[0]["completion"][0]["tool_calls"][0]["function"]["name"] == "add"
    assert spoken[1]["completion"] == [{"role": "assistant", "content": " 4", "reasoning_content": "Count up."}]
    assert spoken[0]["tools"][0]["function"]["name"] == "add"
    assert {row["rollout"] for row in spoken} == {"0-0", "0-1", "1-0", "1-1"}
    masked, lost = (row for row in rows(tmp_path / "rollouts.jsonl") if row.get("failed"))
    assert (masked["group"], masked["failed"], masked["rewards"]) == (0, "NeMo Gym: lost_session", {})
    assert (lost["group"], lost["failed"]) == (1, "NeMo Gym: agent_run_error")


def test_swe_agents_steps_are_turns_under_the_messages_that_the_model_was_asked_with(tmp_path) -> None:
    path = agent_files.swe_agent(tmp_path)
    *steps, left_out = rows(path)
    assert left_out == LeftOut(agent_rows.NOT_SAID)
    assert [row["turn"] for row in steps] == [0, 1, 2]
    assert {row["group"] for row in steps} == {"sum-1"}
    assert [len(row["prompt"]) for row in steps] == [2, 4, 4]
    assert steps[2]["prompt"][2:] == [
        {"role": "assistant", "content": "I look.", "tool_calls": [agent_files.CALL]},
        {"role": "tool", "content": "a.py", "tool_call_id": "call_0"},
    ]
    assert [row["completion"][0]["reasoning_content"] for row in steps] == [None, "Where is it?", "All is done."]
    assert [row["completion"][0]["tool_calls"] for row in steps] == [None, [agent_files.CALL], None]


def test_a_folder_of_instances_is_read_as_swe_agent_lays_it_out(tmp_path) -> None:
    for name in ("sum-1", "sum-2"):
        agent_files.swe_agent(tmp_path, name)
    found = read_samples(tmp_path)
    assert {row["group"] for _, row in found.rows} == {"sum-1", "sum-2"} and len(found.rows) == 6


def test_validation_is_left_out_of_arts_folder(tmp_path) -> None:
    agent_files.art_first_parquet(tmp_path)
    agent_files.art_first_parquet(tmp_path, split="val")
    assert len(read_samples(tmp_path, name="art").rows) == 4


@pytest.mark.parametrize(
    ("status", "truncated", "failed"),
    [
        ("submitted", False, False),
        ("submitted (exit_cost)", True, False),
        ("exit_context", True, False),
        ("submitted (exit_error)", False, False),
        ("exit_api", False, True),
        ("exit_error", False, True),
    ],
)
def test_how_swe_agent_ended_is_a_limit_or_a_failure(tmp_path, status, truncated, failed) -> None:
    row, *_ = rows(agent_files.swe_agent(tmp_path, status=status))
    assert (row["truncated"], bool(row.get("failed"))) == (truncated, failed)


def test_langfuses_calls_are_rows_and_its_spans_are_left_out(tmp_path) -> None:
    *calls, span, lost = rows(agent_files.langfuse(tmp_path))
    assert [row["completion"]["content"] for row in calls] == [*SAID, *SAID]
    assert [row["rewards"] for row in calls] == [{"correct": reward} for reward in REWARDS]
    assert calls[0]["prompt"] == [{"role": "user", "content": PROMPTS[0]}]
    assert calls[0]["tools"][0]["function"]["name"] == "add"
    assert span == LeftOut(agent_rows.NO_CALL) and lost["failed"] == agent_rows.CALL_FAILED
    stored = rows(agent_files.langfuse_store(tmp_path))
    assert [row["prompt"][0]["content"] for row in stored] == [row["prompt"][0]["content"] for row in calls]
    assert [row["completion"] for row in stored] == [*SAID, *SAID]


@pytest.mark.parametrize(
    ("given", "answer", "prompt", "completion"),
    [
        ("Two and two?", "4", "Two and two?", "4"),
        ({"prompt": "Two?"}, "[4]", "Two?", "[4]"),
        ({"role": "user", "content": "a"}, "4", [{"role": "user", "content": "a"}], "4"),
        ('[{"role": "user", "content": "a"}]', '{"a": 1}', [{"role": "user", "content": "a"}], '{"a": 1}'),
        ("a", {"choices": [{"message": SPOKEN}]}, "a", SPOKEN),
        ("a", None, None, None),
        ({"input": [{"type": "x"}]}, "4", None, None),
    ],
)
def test_what_langfuse_was_given_is_text_or_messages_or_left_out(given, answer, prompt, completion) -> None:
    record = {"traceId": "t", "type": "GENERATION", "input": given, "output": answer}
    [row] = agent_rows.langfuse(record, "it")
    if prompt is None:
        assert row == LeftOut(agent_rows.OTHER_FORM)
    else:
        assert not isinstance(row, LeftOut) and (row["prompt"], row["completion"]) == (prompt, completion)


ODD: dict[str, list[dict[str, Any]]] = {
    "art": [{"trajectories": 3}, {"trajectories": [{"messages_and_choices": [3]}]}, {"trajectories": [{"tools": "["}]}],
    "art table": [{"trajectory_json": "{", "group_json": "{}"}, {"trajectory_json": "{}", "group_json": "["}],
    "nemo_gym": [{"responses_create_params": 3, "response": {"output": [3]}, "reward": 1}],
    "nemo_gym ids": [
        {"responses_create_params": {}, "reward": 1, "response": {"output": [{"generation_token_ids": "no"}]}}
    ],
    "swe_agent": [{"trajectory": [3], "history": [], "info": {}}, {"attempts": [3]}],
    "swe_agent query": [{"trajectory": [{"query": [{"role": 3}]}], "history": [], "info": {}}],
    "swe_agent config": [{"trajectory": [], "history": [], "info": {}, "replay_config": "{"}],
}


@pytest.mark.parametrize(("name", "number"), [(name, k) for name, odd in ODD.items() for k in range(len(odd))])
def test_an_odd_record_is_refused_in_one_paragraph(tmp_path, capsys, name, number) -> None:
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(ODD[name][number]))
    with pytest.raises(UserError) as caught:
        read_samples(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)
    assert main(["filter", str(path)]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_no_format_has_the_columns_of_another() -> None:
    for one in FORMATS.values():
        for columns in one.needs:
            alike = (other for other in FORMATS.values() if other is not one and not other.is_general)
            others = [other.name for other in alike if other.matches(tuple(columns))]
            assert one.is_general or not others, (one.name, others)
