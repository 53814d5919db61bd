"""The words of SearchQA in each prompt style."""

from __future__ import annotations

from collections.abc import Mapping

from squelch.envs.wording import Example, PromptName, Wording

WORDS: Mapping[PromptName, Wording] = {
    "tiny": Wording(
        rules="Answer the question . Search for facts first . Actions search[words] or answer[text] .",
        shown={"question": "{question}", "passages": "{passages}", "nothing": "nothing found", "answered": "answered"},
        said={
            "search": (
                "i need {asked} of {hop}",
                "who is {hop} , i look for {asked}",
                "first find {asked} of {hop}",
            ),
            "answer": ("{asked} of {hop} is {answer}", "it says {asked} {answer}", "now i know {asked} {answer}"),
        },
        generic=(
            ("let me think", "okay", "i read the question", "this is hard", "first of all"),
            ("so i search", "i look it up", "i try something", "maybe i know it", "step by step"),
        ),
    ),
    "natural": Wording(
        rules=(
            "You are answering a question. You can search for passages before you answer; a search shows each passage "
            "that it finds on a line of its own.\n"
            "Your available actions are:\nsearch[words] to look for passages, answer[text] to give the final answer"
        ),
        shown={
            "question": "Question: {question}",
            "passages": "Passages:\n{passages}",
            "nothing": "Nothing was found.",
            "answered": "You have answered.",
        },
        said={
            "search": (
                "I need {the_asked} of {hop}, so I search for {query}.",
                "I do not know {the_asked} of {hop} yet. I look for {query}.",
                "First I have to find {the_asked} of {hop}. I search for {query}.",
            ),
            "answer": (
                "{The_asked} of {hop} is {answer}.",
                "The passage says that {the_asked} of {hop} is {answer}.",
                "Now I know {the_asked} of {hop}: {answer}.",
            ),
            "guess": ("I am not sure. I guess {answer}.", "I have not found it, so I try {answer}."),
        },
        generic=(
            ("Let me think.", "Okay.", "I read the question.", "This is hard.", "First of all, I stay calm."),
            ("So I search.", "I look it up.", "I try something.", "Maybe I know it.", "I go step by step."),
        ),
        example=Example(
            observation="Question: What is the birthplace of the teacher of Mara Lindo?",
            reasoning="I need the teacher of Mara Lindo, so I search for Mara Lindo.",
            actions=("search[Mara Lindo]",),
        ),
    ),
}
