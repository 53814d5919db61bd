"""Writes the folder `agents_files` beside this module by the programs' own writers: ATIF 1.8.0, Harbor 0.26.0.

It needs Python 3.12 and the packages `atif`, `harbor`, `pydantic`, `shortuuid`, `toml` and `pathspec`; Harbor's other
requirements are not imported: `python3.12 tests/kit/readers/write_agents_files.py`. A job has two tasks with two trials
each, and a trial whose environment did not start.
"""

import json
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import atif
from harbor.models.agent.context import AgentContext
from harbor.models.job.result import JobResult, JobStats
from harbor.models.trajectories import Agent, Metrics, Observation, ObservationResult, Step, ToolCall, Trajectory
from harbor.models.trial.config import AgentConfig, TaskConfig, TrialConfig
from harbor.models.trial.result import AgentInfo, ExceptionInfo, ModelInfo, TrialResult
from harbor.models.verifier.result import VerifierResult
from harbor.utils.traces_utils import collect_conversations_from_trial, load_run_metadata, openai_to_sharegpt
from harbor.utils.trajectory_utils import format_trajectory_json

FOLDER = Path(__file__).with_name("agents_files")
NOW = datetime(2026, 11, 29, 12, tzinfo=UTC)
TASKS = {"two-and-two": "Two and two?", "three-and-one": "Three and one?"}
SAID = (("Count up.", "4", 1.0), ("I guess.", "5", 0.0))
"""Reasoning, answer and reward of each trial of a task."""


def trajectory(task: str, reasoning: str, answer: str, ids: bool) -> Trajectory:
    """As an agent with native calls of tools records it: it adds, and then answers."""
    start = 1 + list(TASKS).index(task)
    first = Metrics(prompt_token_ids=[start, 9], completion_token_ids=[20, 21], logprobs=[-0.25, -0.5])
    second = Metrics(prompt_token_ids=[start, 9, 20, 21, 30], completion_token_ids=[22], logprobs=[-0.125])
    call = ToolCall(tool_call_id="call_0", function_name="add", arguments={"a": 2, "b": 2})
    steps = [
        Step(step_id=1, source="system", message="Be brief."),
        Step(step_id=2, source="user", message=TASKS[task]),
        Step(
            step_id=3,
            source="agent",
            message="",
            reasoning_content=reasoning,
            tool_calls=[call],
            observation=Observation(results=[ObservationResult(source_call_id="call_0", content="4")]),
            metrics=first if ids else None,
        ),
        Step(
            step_id=4,
            source="agent",
            message=answer,
            reasoning_content="It says 4.",
            metrics=second if ids else None,
        ),
    ]
    schema = {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}
    tools = [{"type": "function", "function": schema}]
    agent = Agent(name="adder", version="1", model_name="policy", tool_definitions=tools)
    return Trajectory(session_id=f"{task}-{answer}", agent=agent, steps=steps)


def result(number: int, task: str, **found: Any) -> TrialResult:
    """As `Trial` fills it."""
    name = f"{task}__{number}"
    config = TrialConfig(task=TaskConfig(path=Path("tasks") / task), trial_name=name, agent=AgentConfig(name="adder"))
    return TrialResult(
        id=UUID(int=number),
        task_name=task,
        trial_name=name,
        trial_uri=f"file:///jobs/sums/{name}",
        task_id=config.task.get_task_id(),
        task_checksum=task,
        config=config,
        agent_info=AgentInfo(name="adder", version="1", model_info=ModelInfo(name="policy")),
        started_at=NOW,
        finished_at=NOW,
        **found,
    )


def write_trial(job: Path, found: TrialResult, said: Trajectory | None) -> Path:
    """As `Trial._finalize` and the agents write their files."""
    folder = job / found.trial_name
    (folder / "agent").mkdir(parents=True)
    (folder / "result.json").write_text(found.model_dump_json(indent=4))
    (folder / "trial.log").write_text("")
    if said is not None:
        (folder / "agent" / "trajectory.json").write_text(format_trajectory_json(said.to_json_dict()))
    return folder


def write_job(job: Path) -> list[Path]:
    """The folders of the trials that ran. The first task's trajectories hold ids."""
    results, folders = list[TrialResult](), list[Path]()
    for place, task in enumerate(TASKS):
        for reasoning, answer, reward in SAID:
            rewards = VerifierResult(rewards={"reward": reward})
            results.append(result(len(results), task, agent_result=AgentContext(), verifier_result=rewards))
            said = trajectory(task, reasoning, answer, ids=place == 0)
            folders.append(write_trial(job, results[-1], said))
    raised = ExceptionInfo(
        exception_type="EnvironmentStartTimeoutError",
        exception_message="it did not start",
        exception_traceback="",
        occurred_at=NOW,
    )
    results.append(result(len(results), "two-and-two", exception_info=raised))
    write_trial(job, results[-1], None)
    stats = JobStats.from_trial_results(results, n_total_trials=len(results))
    whole = JobResult(id=UUID(int=9), started_at=NOW, n_total_trials=len(results), stats=stats)
    (job / "result.json").write_text(whole.model_dump_json(indent=4, exclude={"trial_results"}))
    return folders


def write_atif(path: Path) -> None:
    """One line: a step of each kind, and a subagent."""
    steps = [
        atif.Step(step_id=1, source="user", message="Two and two?"),
        atif.Step(step_id=2, source="agent", message="3", is_copied_context=True),
        atif.Step(step_id=3, source="user", message="No."),
        atif.Step(step_id=4, source="agent", message="looking", llm_call_count=0),
        atif.Step(step_id=5, source="agent", message="4", reasoning_content="Count up.", llm_call_count=1),
        atif.Step(step_id=6, source="agent", message="4, 4", llm_call_count=2),
    ]
    agent = atif.Agent(name="adder", version="1", model_name="policy")
    shared: dict[str, Any] = {"schema_version": "ATIF-v1.8", "agent": agent}
    said = [atif.Step(step_id=1, source="agent", message="")]
    helper = atif.Trajectory(trajectory_id="helper", steps=said, **shared)
    whole = atif.Trajectory(session_id="one", steps=steps, subagent_trajectories=[helper], **shared)
    path.write_text(json.dumps(whole.to_json_dict()) + "\n")


def main() -> None:
    """Writes the folder anew. Harbor's export is its rows before they become a data set."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    folders = write_job(FOLDER / "sums")
    write_atif(FOLDER / "atif.jsonl")
    rows = [row for one in folders for row in collect_conversations_from_trial(one, load_run_metadata(one), "last")]
    (FOLDER / "conversations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shared = [{"conversations": openai_to_sharegpt(row["conversations"])} for row in rows]
    (FOLDER / "sharegpt.jsonl").write_text("".join(json.dumps(row) + "\n" for row in shared))


if __name__ == "__main__":
    main()
