"""The words of DeepCoder in each prompt style."""

from __future__ import annotations

from collections.abc import Mapping

from squelch.envs.wording import Example, PromptName, Wording

WORDS: Mapping[PromptName, Wording] = {
    "tiny": Wording(
        rules="Write a Python program that passes all tests . The action is the program alone .",
        shown={
            "easy": "write f ( x ) for an integer x : {words} .",
            "medium": "write f ( a ) for a list of integers a : {words} .",
            "hard": "read one line of integers and print two results : {words} .",
            "comma": " , ",
            "passed": "passed {passed} of {total} tests .",
            "failed": " {reason} : {detail}",
        },
        said={"task": ("{words}", "so {words}", "i must {words}", "first {words}")},
        generic=(
            (
                *("let me write it", "this is a program", "i read the task again", "easy enough"),
                "i follow the examples",
            ),
        ),
    ),
    "natural": Wording(
        rules=(
            "You are solving a programming problem. Write a Python program that passes all tests.\n"
            "Your answer is the program alone"
        ),
        shown={
            "easy": "Write a function f(x) that takes an integer x and does this: {words}.",
            "medium": "Write a function f(a) that takes a list of integers a and does this: {words}.",
            "hard": "Write a program that reads one line of integers and prints two results: {words}.",
            "comma": ", ",
            "passed": "Your program passed {passed} of {total} tests.",
            "failed": " A test failed: {reason}: {detail}",
        },
        said={
            "task": (
                "I have to {words}.",
                "The program must {words}.",
                "The problem asks me to {words}.",
                "So the program has to {words}.",
            )
        },
        generic=(
            (
                *("Let me write it.", "This is a program.", "I read the task again.", "This is easy enough."),
                "I follow the examples.",
            ),
        ),
        example=Example(
            observation=(
                "Write a function f(x) that takes an integer x and does this: multiply by 7, then add 2.\n"
                "f(1) = 9\nf(-2) = -12"
            ),
            reasoning="I have to multiply by 7, then add 2.",
            actions=("def f(x): return x * 7 + 2",),
        ),
    ),
}
