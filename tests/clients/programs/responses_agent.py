"""An agent over the package `openai` and its responses: the loop over tools of its documentation, which sends all items
back; every second reply is streamed. It prints each reply that it saw as a line of JSON."""

import json
import sys

from openai import OpenAI

ADD = {
    "type": "function",
    "name": "add",
    "description": "Adds two numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}


def added(arguments: str) -> str:
    """The tool: a sum, or what is wrong with the arguments."""
    try:
        given = json.loads(arguments)
        return str(int(given["a"]) + int(given["b"]))
    except (ValueError, TypeError, KeyError) as error:
        return f"error: {error}"


def main() -> None:
    """Plays as many calls as the command line says."""
    client, items = OpenAI(), [{"role": "user", "content": "What is 2 + 3, and 4 more?"}]
    asked = {"model": "policy", "instructions": "You add numbers with the tool.", "tools": [ADD]}
    for number in range(int(sys.argv[1])):
        if number % 2:
            with client.responses.create(input=items, stream=True, **asked) as stream:
                answer = [event for event in stream][-1].response
        else:
            answer = client.responses.create(input=items, **asked)
        calls = [item for item in answer.output if item.type == "function_call"]
        shown = [(call.name, call.arguments) for call in calls]
        print(json.dumps({"content": answer.output_text, "calls": shown}), flush=True)
        items += [item.to_dict() for item in answer.output]
        for call in calls:
            output = added(call.arguments)
            items.append({"type": "function_call_output", "call_id": call.call_id, "output": output})
        if not calls:
            items.append({"role": "user", "content": "And one more?"})


if __name__ == "__main__":
    main()
