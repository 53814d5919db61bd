"""An agent over the package `openai`: the loop over tools of its documentation; every second reply is streamed. It
knows only the environment's variables, and prints each reply that it saw as a line of JSON."""

import json
import sys

from openai import OpenAI

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds two numbers.",
        "parameters": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
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
    client = OpenAI()
    messages = [
        {"role": "system", "content": "You add numbers with the tool."},
        {"role": "user", "content": "What is 2 + 3, and 4 more?"},
    ]
    asked = {"model": client.models.list().data[0].id, "messages": messages, "tools": [ADD]}
    for number in range(int(sys.argv[1])):
        if number % 2:
            with client.chat.completions.stream(**asked) as stream:
                answer = stream.get_final_completion()
        else:
            answer = client.chat.completions.create(**asked)
        reply = answer.choices[0].message
        calls = [(call.function.name, call.function.arguments) for call in reply.tool_calls or []]
        print(json.dumps({"content": reply.content, "calls": calls}), flush=True)
        messages.append(reply)
        for call in reply.tool_calls or []:
            result = added(call.function.arguments)
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        if not calls:
            messages.append({"role": "user", "content": "And one more?"})


if __name__ == "__main__":
    main()
