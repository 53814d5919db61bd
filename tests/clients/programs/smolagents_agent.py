"""An agent of smolagents with a tool. It prints each reply that its model object got as a line of JSON."""

import json
import sys

from smolagents import LogLevel, OpenAIModel, ToolCallingAgent, tool


@tool
def add(a: int, b: int) -> int:
    """Adds two numbers.

    Args:
        a: one number.
        b: the other.
    """
    return a + b


class Heard(OpenAIModel):
    """The model, whose replies are printed."""

    def generate(self, *args, **settings):
        """As the model's own."""
        found = super().generate(*args, **settings)
        reply = found.raw.choices[0].message
        calls = [(call.function.name, call.function.arguments) for call in reply.tool_calls or []]
        print(json.dumps({"content": reply.content, "calls": calls}), flush=True)
        return found


def main() -> None:
    """Plays at most as many steps as the command line says, and one call for an answer if they bring none."""
    agent = ToolCallingAgent(
        tools=[add], model=Heard(model_id="policy"), max_steps=int(sys.argv[1]), verbosity_level=LogLevel.OFF
    )
    agent.run("What is 2 + 3, and 4 more?")


if __name__ == "__main__":
    main()
