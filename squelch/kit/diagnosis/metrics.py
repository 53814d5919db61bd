"""Metrics of the diagnosis, which measures whether reasoning depends on its input (docs/guide/reasoning.md). Pure."""

from __future__ import annotations

from squelch.kit.metrics.declared import declared

SCOPES = ("first_turn", "trajectory")
REGIMES = ("unmarked", "mute", "template", "echo", "blind", "unused", "private_code", "used", "unknown")
"""See `kit.diagnosis.regime`."""
EARLIER_REGIMES = {"unused": "decorative", "used": "grounded"}
"""What runs of earlier commits call them."""

SHARES = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Shares of the reasoning in the truncation curve of `kit.diagnosis.links`."""
LINKS = ("information", "information_upper", "dependence", "past_reasoning")
DEPENDENCE_SHARE = "dependence_share"
"""D as a share of the answer's surprise; the links themselves are in nats."""
LINKS_TESTED = ("information", "dependence")
"""The links with a null."""


def key_of(share: float) -> str:
    """The key of a point of the truncation curve: `truncated@0` to `truncated@100`."""
    return f"truncated@{100 * share:.0f}"


LINK_KEYS = (
    *(f"{link}{end}" for link in (*LINKS, DEPENDENCE_SHARE) for end in ("", "_low", "_high", "_standard_error")),
    *(f"{link}_{metric}" for link in LINKS_TESTED for metric in ("p_value", "null_95")),
    *(f"{key_of(share)}{end}" for share in SHARES for end in ("", "_low", "_high")),
    *("ceiling", "surprise", "answer_entropy", "references_ratio", "follows", "answers"),
)
"""The metrics of `kit.diagnosis.links.LinksEvaluation`."""

PARTS = ("picture", "text")
"""The parts of a prompt with pictures, see `kit.diagnosis.modality`."""
MODALITY_KEYS = (
    *(f"{part}{end}" for part in PARTS for end in ("", "_low", "_high", "_standard_error")),
    *(f"{part}_{metric}" for part in PARTS for metric in ("surprise", "p_value", "depends")),
    *("text_alone", "blank"),
)
"""The metrics of MI by modality."""

POSITIONS = (25, 50, 75, 100)
"""Percent of a completion's tokens, from its begin, whose dependence on the prompt is measured."""
SHARED = ("near", "near_new", "near_chance", "repeated", "one_text")
"""The shares of `kit.diagnosis.completion`."""
COMPLETION_KEYS = (
    *(f"dependence{end}" for end in ("", "_low", "_high", "_p_value", "_null_95", *(f"@{q}" for q in POSITIONS))),
    *("ceiling", *SHARED, "num_prompts", "num_samples"),
)
"""The metrics of `kit.diagnosis.completion`."""

METRICS = declared(__file__, SCOPES=SCOPES, REGIMES=REGIMES, POSITIONS=tuple(map(str, POSITIONS)), SHARED=SHARED)
