"""The words of Countdown in each prompt style."""

from __future__ import annotations

from collections.abc import Mapping

from squelch.envs.wording import Example, PromptName, Wording

WORDS: Mapping[PromptName, Wording] = {
    "tiny": Wording(
        rules=(
            "Make the target from the numbers with + - * / and ( ) . Use each number {used} . "
            "The action is an expression such as ( 3 + 5 ) * 2 ."
        ),
        shown={"puzzle": "numbers {numbers}\ntarget {target}", "join": " "},
        said={
            "facts": (
                "numbers {numbers} target {target}",
                "target {target} from {numbers}",
                "i have {numbers} and want {target}",
                "with {numbers} make {target}",
            ),
            "steps": ("{left} {sign} {right} is {result}", "{left} {sign} {right} makes {result}"),
            "join": (" , ", " then ", " and "),
        },
        generic=(
            ("let me think", "okay", "i look at the numbers", "first of all"),
            ("the large ones help", "a product may do", "a sum may do", "try a difference"),
            ("so i try this", "and hope it fits", "step by step", "so take this one"),
        ),
    ),
    "natural": Wording(
        rules=(
            "You are solving the Countdown puzzle. Combine the given numbers with +, -, * and / so that the result is "
            "the target. You may use brackets. Use each number {used}.\n"
            "Your answer is one arithmetic expression, such as ( 3 + 5 ) * 2"
        ),
        shown={"puzzle": "Numbers: {numbers}\nTarget: {target}", "join": ", "},
        said={
            "facts": (
                "The numbers are {listed} and the target is {target}.",
                "I have {listed} and I want {target}.",
                "I need to make {target} from {listed}.",
                "With {listed} I have to reach {target}.",
            ),
            "steps": (
                "{left} {sign} {right} = {result}.",
                "{left} {sign} {right} is {result}.",
                "{left} {sign} {right} makes {result}.",
            ),
            "join": (" ",),
            "reached": ("That is the target.", "This is the target.", "So the target is {target}, and I have it."),
            "missed": ("That is not the target, but I try it.", "This is not the target."),
        },
        generic=(
            ("Let me think.", "Okay.", "I look at the numbers.", "First of all, I stay calm."),
            ("The large ones may help.", "A product may do.", "A sum may do.", "I try a difference."),
            ("So I try this.", "I hope that it fits.", "I go step by step.", "I take this one."),
        ),
        example=Example(
            observation="Numbers: 2, 5, 8\nTarget: 18",
            reasoning="The numbers are 2, 5 and 8 and the target is 18. 5 * 2 = 10. 10 + 8 = 18. That is the target.",
            actions=("( 5 * 2 ) + 8",),
        ),
    ),
}
