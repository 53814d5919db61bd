"""Writes the folder `inspect_logs` beside this module by the program's own writer, inspect_ai 0.3.285 with its scripted
model: `python tests/kit/readers/write_inspect_logs.py`, where that is installed.

Two problems in three epochs each. The model calls a tool and then answers, from its second epoch on wrongly; in the
third epoch of the second problem it raises an error instead, and that of the first ends at a limit of messages.
"""

import json
import tempfile
from pathlib import Path
from typing import Any

import inspect_ai
from inspect_ai.dataset import Sample
from inspect_ai.log import write_eval_log
from inspect_ai.model import ChatMessageAssistant, ContentReasoning, ContentText, ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import includes
from inspect_ai.solver import TaskState, generate, solver, use_tools
from inspect_ai.tool import ToolCall, tool

PROBLEMS = {"two-two": ("Two and two?", "4"), "three-one": ("Three and one?", "four")}
FOLDER = Path(__file__).with_name("inspect_logs")


@tool
def add():
    async def execute(a: int, b: int) -> str:
        """Adds two whole numbers of any size, with a description that is longer than what a log keeps in its place.

        Args:
            a: the first
            b: the second
        """
        return str(a + b)

    return execute


@solver
def in_epoch():
    """Tells the model its epoch, in the metadata of the question."""

    async def solve(state: TaskState, _: Any) -> TaskState:
        state.messages[0].metadata = {"epoch": state.epoch}
        if state.epoch == 3 and state.sample_id == "two-two":
            state.message_limit = 3
        return state

    return solve


def says(messages: list, *_: Any) -> ModelOutput:
    epoch = messages[0].metadata["epoch"]
    if epoch == 3 and messages[0].text.startswith("Three"):
        raise RuntimeError("no model")
    if messages[-1].role == "user":
        thought = ContentReasoning(reasoning="I add them with the tool.")
        call = ToolCall(id="call_0", function="add", arguments={"a": 2, "b": 2})
        said = ChatMessageAssistant(content=[thought], tool_calls=[call], source="generate")
    else:
        thought = ContentReasoning(reasoning=f"The tool says so, in epoch {epoch}.")
        text = "It is 4, which is four." if epoch == 1 else "I do not know."
        said = ChatMessageAssistant(content=[thought, ContentText(text=text)], source="generate")
    output = ModelOutput.from_message(said)
    output.usage = ModelUsage(input_tokens=9, output_tokens=2)  # else its tokens are counted by what needs a network
    return output


if __name__ == "__main__":
    samples = [Sample(id=key, input=asked, target=target) for key, (asked, target) in PROBLEMS.items()]
    [log] = inspect_ai.eval(
        inspect_ai.Task(
            dataset=samples,
            solver=[in_epoch(), use_tools(add()), generate()],
            scorer=includes(),
            name="sums",
        ),
        model=get_model("mockllm/model", custom_outputs=says),
        epochs=3,
        fail_on_error=False,
        log_dir=tempfile.mkdtemp(),
        log_format="eval",
        display="none",
        max_connections=1,
    )
    log.eval.revision = None
    for one in log.samples:
        one.events = [event for event in one.events if event.event == "model" and event.error is None]
        if one.error is not None:
            one.error.traceback = one.error.traceback_ansi = ""  # they name folders of the machine
    FOLDER.mkdir(exist_ok=True)
    for name in ("log.eval", "log.json"):
        write_eval_log(log, str(FOLDER / name))
    print(json.dumps([[one.id, one.epoch, one.error is not None, one.limit is not None] for one in log.samples]))
