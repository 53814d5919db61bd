"""The words of MetaMathQA in each prompt style."""

from __future__ import annotations

from collections.abc import Mapping

from squelch.envs.wording import Example, PromptName, Wording

WORDS: Mapping[PromptName, Wording] = {
    "tiny": Wording(
        rules=("Solve the problem . Each wrong answer halves the reward . The action is the final answer alone ."),
        shown={"problem": "{question}", "wrong": "Wrong . Try again .", "right": "Right ."},
        said={"worked": ("{worked}", "first {worked}", "we need {worked}", "so {worked}", "compute {worked}")},
        generic=(("let me think about it", "this is easy", "i read it again", "a hard one", "i count them all"),),
    ),
    "natural": Wording(
        rules=(
            "You are solving a mathematics problem. Each wrong answer before the right one halves the reward.\n"
            "Your answer is the final result alone, without words or units"
        ),
        shown={
            "problem": "Problem: {question}",
            "wrong": "Your answer is wrong. Please try again.",
            "right": "Your answer is right.",
        },
        said={
            "worked": (
                "The problem gives {numbers}. {sentence}",
                "I work with {numbers}. {sentence}",
                "From {numbers} I compute {sentence}",
                "Step by step: {sentence}",
            ),
            "answer": ("So I answer {answer}.", "My answer is {answer}.", "I take {answer}."),
        },
        generic=(
            ("Let me think about it.", "This is easy.", "I read it again.", "This is a hard one.", "I count them all."),
        ),
        example=Example(
            observation="Problem: Ada has 7 pens and buys 3 boxes with 4 pens each. How many pens does she have now?",
            reasoning="The problem gives 7, 3 and 4. 3 * 4 = 12, 7 + 12 = 19. So I answer 19.",
            actions=("19",),
        ),
    ),
}
