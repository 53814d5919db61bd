"""Check of a fixed model that serves as the scorer q (appendix F). Imports neither torch nor Ray."""

from __future__ import annotations

from pathlib import Path

from squelch.kit.pictures.geometry import PROVEN, vision_of

FIXED_VERSION = -1
"""The policy version that is reported with metrics under a fixed model."""


def check_scorer_model(model: str | None, policy_dir: str | Path, pictures: bool = False) -> None:
    """Refuses a fixed model whose tokenizer differs from the policy's, or which cannot be shown the policy's `pictures`
    if the prompts have any; called before any actor starts.

    Token ids are scored as they were sampled, so both tokenizers must map every text piece to the same id, and a
    picture must be as many ids to both. Raises ValueError with the folder, and the missing file or what differs.
    """
    if model is None:
        return
    folder = Path(model)
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            raise ValueError(
                f"scorer.model={model}: no {name} there; give a local Hugging Face folder of a causal model"
            )
    own, policy = _vocabulary(folder), _vocabulary(Path(policy_dir))
    differing = sorted(piece for piece in own.keys() | policy.keys() if own.get(piece) != policy.get(piece))
    if differing:
        piece = differing[0]
        raise ValueError(
            f"scorer.model={model}: its tokenizer is not the policy's ({len(differing)} pieces differ; {piece!r} is "
            f"{own.get(piece)} there, {policy.get(piece)} in {policy_dir}). Token ids are scored as sampled, so give a "
            "model with the policy's tokenizer, e.g. an earlier checkpoint's hf/ folder"
        )
    if pictures and (found := _sight(folder)) != (needed := _sight(Path(policy_dir))):
        raise ValueError(
            f"scorer.model={model} cannot be shown the policy's pictures: it has {found}, the policy {needed}. Give "
            f"one of {', '.join(PROVEN)} with the policy's, or set scorer.enabled=false"
        )


def _sight(folder: Path) -> str:
    """What decides which pictures fit, and which ids they become."""
    if (own := vision_of(folder)) is None:
        return "no vision tower"
    ids = f"{own.start_id}, {own.picture_id} and {own.end_id}"
    sizes = f"{own.least_pixels} to {own.most_pixels} pixels a picture"
    return f"a vision tower of {own.side_multiple} pixels a token, {sizes} and the ids {ids}"


def _vocabulary(folder: Path) -> dict[str, int]:
    from squelch.kit.text.tokenizer import read_tokenizer

    return read_tokenizer(folder).get_vocab(with_added_tokens=True)
