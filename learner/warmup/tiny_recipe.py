"""How the tiny policy of each environment is built: shape, demonstrations and training, as settings. No torch."""

from __future__ import annotations

from pydantic import Field

from envs.format import reads_words
from envs.registry import environment_class
from envs.settings import Settings
from envs.wording import DemonstrationQuality


class TinyRecipe(Settings):
    """How a tiny policy is built."""

    version: int = 1
    """Raised when the building itself changes."""
    width: int = Field(128, ge=16)
    layers: int = Field(4, ge=1)
    heads: int = Field(4, ge=1)
    kv_heads: int = Field(2, ge=1)
    feed_forward: int = Field(384, ge=16)
    max_position: int = Field(1024, ge=128)
    """Longest sequence in tokens."""
    rope_theta: float = Field(100.0, gt=1)
    """Base of the rotary positions: low, because sequences are short and cells are found by their position."""
    vocabulary_multiple: int = Field(64, ge=1)
    byte_tokens: int = Field(1024, ge=320)
    """Tokens at most of a byte-level tokenizer; environments of a closed vocabulary have a token a word."""
    tokens: int = Field(1_000_000, ge=1)
    """Tokens of the warm-up, fed ones included, padding left out; every demonstration is seen once."""
    batch_tokens: int = Field(2048, ge=64)
    """Tokens of one optimizer step, padding included."""
    matrix_learning_rate: float = Field(6e-3, gt=0)
    """Muon's peak, for the layers' matrices, in AdamW's scale (updates matched in root mean square)."""
    learning_rate: float = Field(3e-3, gt=0)
    """AdamW's peak, for embeddings, norms and biases."""
    final_learning_rate: float = Field(0.1, ge=0, le=1)
    """Both fall along half a cosine to this share of their peak."""
    warmup_share: float = Field(0.03, ge=0, lt=1)
    """Share of the tokens in which the learning rates rise."""
    betas: tuple[float, float] = (0.9, 0.98)
    """AdamW's."""
    weight_decay: float = Field(0.01, ge=0)
    """Muon's; AdamW's parameters do not decay."""
    max_grad_norm: float = Field(1.0, gt=0)
    initial_std: float = Field(0.05, gt=0)
    """Standard deviation of the initial weights."""
    quality: DemonstrationQuality = DemonstrationQuality()


TEXT_RECIPE = TinyRecipe(max_position=2048, rope_theta=1000.0, tokens=1_200_000, batch_tokens=4096)
"""For environments of free text: longer sequences. They are to be trainable, not to be good."""

RECIPES: dict[str, TinyRecipe] = {
    # It reads the lake well and half the time does not look: what there is to learn is to reason about the state.
    "FrozenLake": TinyRecipe(
        tokens=1_400_000,
        quality=DemonstrationQuality(grounded=0.55, wrong_coordinates=0.05, random_plan=0.1, generic_random_plan=0.9),
    ),
    # Pushing takes more foresight than walking: more tokens, and fewer random plans among them.
    "Sokoban": TinyRecipe(
        tokens=3_400_000,
        quality=DemonstrationQuality(grounded=0.7, wrong_coordinates=0.05, random_plan=0.05, generic_random_plan=0.5),
    ),
    # Its episodes are the longest, so that a token costs most; it buys, well and badly, after fewer of them.
    "WebShop": TEXT_RECIPE.model_copy(update={"tokens": 800_000}),
}


def recipe_for(environment: str) -> TinyRecipe:
    """The recipe of a registered environment; one without its own gets that of its kind of text."""
    words = reads_words(environment_class(environment))
    return RECIPES.get(environment, TinyRecipe() if words else TEXT_RECIPE)
