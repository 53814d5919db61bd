"""An agent over the package `anthropic`: first the loop over tools of its documentation, in which every second reply is
streamed, then the package's own tool runner. It prints each reply that it saw as a line of JSON."""

import json
import sys

from anthropic import Anthropic, beta_tool

ADD = {
    "name": "add",
    "description": "Adds two numbers.",
    "input_schema": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}


@beta_tool
def add(a: int, b: int) -> str:
    """Adds two numbers.

    Args:
        a: one number.
        b: the other.
    """
    return str(a + b)


def said(reply) -> list:
    """Prints a reply; returns its calls."""
    calls = [block for block in reply.content if block.type == "tool_use"]
    content = "".join(block.text for block in reply.content if block.type == "text")
    shown = [(call.name, json.dumps(call.input)) for call in calls]
    print(json.dumps({"content": content, "calls": shown}), flush=True)
    return calls


def added(given) -> dict:
    """The tool: a sum, or what is wrong with the arguments."""
    try:
        return {"content": [{"type": "text", "text": str(int(given["a"]) + int(given["b"]))}]}
    except (ValueError, TypeError, KeyError) as error:
        return {"content": f"error: {error}", "is_error": True}


def main() -> None:
    """Plays as many calls of each loop as the command line says."""
    client, most = Anthropic(), int(sys.argv[1])
    messages = [{"role": "user", "content": "What is 2 + 3, and 4 more?"}]
    system = [{"type": "text", "text": "You add numbers with the tool."}]
    asked = {"model": "policy", "max_tokens": 1024, "system": system, "messages": messages, "tools": [ADD]}
    for number in range(most):
        if number % 2:
            with client.messages.stream(**asked) as stream:
                reply = stream.get_final_message()
        else:
            reply = client.messages.create(**asked)
        calls = said(reply)
        messages.append({"role": "assistant", "content": reply.content})
        results = [{"type": "tool_result", "tool_use_id": call.id, **added(call.input)} for call in calls]
        messages.append({"role": "user", "content": results or "And one more?"})
    runner = client.beta.messages.tool_runner(
        model="policy",
        max_tokens=1024,
        max_iterations=most,
        tools=[add],
        messages=[{"role": "user", "content": "What is 7 + 8?"}],
    )
    for reply in runner:
        said(reply)


if __name__ == "__main__":
    main()
