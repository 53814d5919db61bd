"""Checks of token ids, masks, log-probabilities and versions that need no tokenizer. Pure."""

from __future__ import annotations

from squelch.kit.checks.claims import Claims
from squelch.kit.checks.collected import Collected
from squelch.kit.checks.fed_tokens import Fed
from squelch.kit.checks.result import Result, Size
from squelch.kit.findings.view import MOST_EXAMPLES

FEWEST_ENDS, MOST_OTHERS = 8, 0.2
"""Rollouts that end alike, and the share of those that do not, from which on their last id is the end token."""
CERTAIN, MOST_INDEPENDENT = 1e-6, 3
"""Chance that a policy is certain of as many tokens in a row as follow each end token; and how many of these are taken
as independent of each other."""


def fed_tokens_learned(found: Collected, claims: Claims) -> Result:
    """Tokens that were fed (a tool's, a user's) and are under the loss."""
    name, fed = "fed_tokens_learned", found.fed
    if not fed.how:
        needs = "a mask of the loss with log-probabilities, or with marks of the sampled tokens"
        return Result(name, "unknown", "Nothing tells sampled tokens from fed ones", needs=needs)
    if fed.how == "ends":
        return _after_ends(name, fed)
    if not fed.learned:
        return Result(name, "sound", f"No fed token of {fed.rollouts} rollouts is under the loss", of=fed.rollouts)
    says = f"{fed.learned} fed tokens of {fed.learned_rollouts} rollouts are under the loss"
    shown = tuple(fed.examples.get("learned", ()))
    size = Size.share(fed.learned_rollouts, fed.rollouts, "rollouts")
    return Result(name, "fault", says, fed.learned_rollouts, fed.rollouts, size, shown)


def _after_ends(name: str, fed: Fed) -> Result:
    """By what follows the end token."""
    end, count = next(iter(fed.ends.most_common(1)), (-1, 0))
    if count < FEWEST_ENDS or count < (1 - MOST_OTHERS) * fed.whole:
        needs = "rollouts that end with the same token, or the trainer's own log-probabilities"
        return Result(name, "unknown", "Rollouts do not end with one token", of=fed.rollouts, needs=needs)
    inner, zero = fed.after_end[end], fed.zero_after_end[end]
    if not inner:
        says = f"No token of {fed.rollouts} rollouts is learned after the end token {end}"
        return Result(name, "sound", says, of=fed.rollouts)
    length, once = fed.zeros_after_end[end] / max(1, zero), (fed.zero + 1) / (fed.others + 1)
    chance = once * ((fed.zero_twice + 1) / (fed.zero + 2)) ** (length - 1)
    says = f"{inner} times tokens after the end token {end} are under the loss; {zero} times their log-probability is 0"
    if zero == inner and chance ** min(inner, MOST_INDEPENDENT) <= CERTAIN:
        shown = tuple(fed.examples.get("after_end", ()))
        return Result(name, "fault", says, zero, fed.rollouts, Size(length, "tokens at a time"), shown)
    needs = "the trainer's own log-probabilities, or --checkpoints, which say how probable these tokens were"
    return Result(name, "unknown", says, zero, fed.rollouts, needs=needs)


def sampled_tokens_unlearned(found: Collected, claims: Claims) -> Result:
    """Sampled tokens that no loss sees."""
    name, fed = "sampled_tokens_unlearned", found.fed
    if not fed.how:
        needs = "a mask of the loss with log-probabilities, or with marks of the sampled tokens"
        return Result(name, "unknown", "Nothing tells sampled tokens from fed ones", needs=needs)
    if not fed.left:
        return Result(name, "sound", f"Every sampled token of {fed.rollouts} rollouts is learned", of=fed.rollouts)
    says = f"{fed.left} sampled tokens of {fed.left_rollouts} rollouts are not under the loss"
    shown = tuple(fed.examples.get("left", ()))
    if not found.traits.learns_all:
        needs = "whether the loss is meant to leave them out, as off-policy or overlong ones"
        return Result(name, "unknown", says, fed.left_rollouts, fed.rollouts, examples=shown, needs=needs)
    size = Size.share(fed.left_rollouts, fed.rollouts, "rollouts")
    return Result(name, "fault", says, fed.left_rollouts, fed.rollouts, size, shown)


def logprobs_impossible(found: Collected, claims: Claims) -> Result:
    """Recorded log-probabilities that no token can have, or that are not one for each token."""
    name, tokens = "logprobs_impossible", found.tokens
    wrong = tokens.impossible + tokens.unlike
    if not tokens.logprobs and not wrong:
        return Result(name, "unknown", "No log-probabilities are recorded", needs="log-probabilities of sampled tokens")
    if not wrong:
        says = f"All {tokens.logprobs} recorded log-probabilities are finite and at most 0"
        return Result(name, "sound", says, of=tokens.rows)
    says = (
        f"Of {tokens.rows} rows {tokens.impossible} have log-probabilities above 0 or not finite, and {tokens.unlike} "
    )
    shown = (*tokens.examples.get("impossible", ()), *tokens.examples.get("unlike", ()))[:MOST_EXAMPLES]
    size = Size.share(wrong, tokens.rows, "rows")
    return Result(name, "fault", f"{says}not one for each token", wrong, tokens.rows, size, shown)
