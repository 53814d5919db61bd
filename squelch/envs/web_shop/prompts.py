"""The words of WebShop in each prompt style. Pages and their buttons (`envs.web_shop.pages`) are the same in both."""

from __future__ import annotations

from collections.abc import Mapping

from squelch.envs.wording import Example, PromptName, Wording

_RESULT = ("{argument} looks right", "i open {argument}", "{argument} may be it")
WORDS: Mapping[PromptName, Wording] = {
    "tiny": Wording(
        rules=(
            "You are in a web shop . Find and buy what is asked for , with its options . "
            "Actions search[words] or click[button] . Buttons stand in brackets ."
        ),
        shown={"instruction": "{instruction}"},
        said={
            "search": ("i need {argument} so i search it", "find {argument}", "look for {argument}"),
            "result": _RESULT,
            "page": _RESULT,
            "option": ("i want {argument}", "choose {argument}", "it must be {argument}"),
            "purchase": ("all is chosen so i buy", "this is it , buy", "{attributes} fits , buy it"),
        },
        generic=(
            ("let me think", "okay", "i look around", "this is a shop", "first of all"),
            ("so i go on", "i try this", "maybe this one", "step by step", "it is cheap"),
        ),
    ),
    "natural": Wording(
        rules=(
            "You are shopping in a web shop. Find the product that the instruction asks for, choose its options, and "
            "buy it.\nYour available actions are:\nsearch[words] to search the shop from any page, click[button] to "
            "click a button of the page. Buttons are shown in brackets"
        ),
        shown={"instruction": "Instruction: {instruction}"},
        said={
            "search": (
                "The instruction asks for {wanted}, so I search for {argument}.",
                "I need {wanted}. I search for {argument}.",
                "I look for {argument}, because I want {wanted}.",
            ),
            "result": (
                "Result {argument} is {title}. I open it.",
                "{title} looks right, so I click {argument}.",
                "I open {argument}, which is {title}.",
            ),
            "page": ("I click {argument}.", "I go on with {argument}.", "Now I click {argument}."),
            "option": ("I click {argument} next.", "I choose {argument}.", "Now I click {argument}."),
            "purchase": (
                "The product should be {wanted}. I buy it now.",
                "I wanted {wanted}, so I buy this one.",
                "This product is the best that I found, so I buy it.",
            ),
        },
        generic=(
            ("Let me think.", "Okay.", "I look around.", "This is a shop.", "First of all, I stay calm."),
            ("So I go on.", "I try this.", "Maybe it is this one.", "I go step by step.", "It is cheap."),
        ),
        example=Example(
            observation="Instruction: Find me a red cotton shirt, size large, and price lower than 30 dollars",
            reasoning="The instruction asks for a red cotton shirt, so I search for red cotton shirt.",
            actions=("search[red cotton shirt]",),
        ),
    ),
}
