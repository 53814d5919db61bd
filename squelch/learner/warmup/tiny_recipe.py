"""Settings of the tiny policy of each environment: model shape, demonstrations and training. Imports no torch."""

from __future__ import annotations

from pydantic import Field

from squelch.envs.config import EnvironmentConfig
from squelch.envs.format import reads_words
from squelch.envs.mixture import Mixture
from squelch.envs.registry import environment_class, make
from squelch.envs.wording import DemonstrationQuality
from squelch.kit.base.settings import Settings


class TinyTower(Settings):
    """The vision tower of a tiny policy that is shown pictures, of Qwen2.5-VL's architecture, and how it learns to see.

    Demonstrations alone do not teach it: what a picture's tokens mean is learned from short sequences first, one
    picture and what is true of it.
    """

    patch: int = Field(4, ge=1)
    """Side of a patch in pixels."""
    merge: int = Field(2, ge=1)
    """Patches a side that become one token."""
    width: int = Field(64, ge=16)
    layers: int = Field(2, ge=1)
    heads: int = Field(2, ge=1)
    rope_theta: float = Field(10.0, gt=1)
    """Base of the policy's rotary position embedding."""
    rope_sections: tuple[int, int, int] = (0, 8, 8)
    """Frequencies of a head for time, row and column, half of the head's width together: cells are found by row and
    column."""
    primer_tokens: int = Field(300_000, ge=0)
    """Tokens of the short sequences."""
    primer_batch_tokens: int = Field(2048, ge=64)
    """Tokens of an optimizer step on them."""
    least_true: float = Field(0.8, ge=0, le=1)
    """Share of reasonings about pictures that were not trained on that must be true; below it the demonstrations are
    continued once, and then the policy is refused."""


class TinyRecipe(Settings):
    """Settings from which a tiny policy is built."""

    version: int = 2
    """Version of the building code; to be increased when a change of the code changes the result."""
    width: int = Field(128, ge=16)
    layers: int = Field(4, ge=1)
    heads: int = Field(4, ge=1)
    kv_heads: int = Field(2, ge=1)
    feed_forward: int = Field(384, ge=16)
    max_position: int = Field(1024, ge=128)
    """Longest sequence in tokens."""
    rope_theta: float = Field(100.0, gt=1)
    """Base of the rotary position embedding; low, since sequences are short and cells are located by their position."""
    vocabulary_multiple: int = Field(64, ge=1)
    byte_tokens: int = Field(1024, ge=320)
    """Largest size of a byte-level tokenizer; environments with a closed vocabulary have one token per word instead."""
    tokens: int = Field(1_000_000, ge=1)
    """Tokens of the warm-up, including fed tokens, without padding; every demonstration is used once."""
    batch_tokens: int = Field(2048, ge=64)
    """Tokens of one optimizer step, padding included."""
    matrix_learning_rate: float = Field(6e-3, gt=0)
    """Muon's peak learning rate, for the layers' matrices, in AdamW's scale (updates have the same root mean
    square)."""
    learning_rate: float = Field(3e-3, gt=0)
    """AdamW's peak learning rate, for embeddings, norms and biases."""
    final_learning_rate: float = Field(0.1, ge=0, le=1)
    """Both learning rates decay along half a cosine to this share of their peak."""
    warmup_share: float = Field(0.03, ge=0, lt=1)
    """Share of the tokens during which the learning rates rise linearly."""
    betas: tuple[float, float] = (0.9, 0.98)
    """AdamW's decay rates of its two moment estimates."""
    weight_decay: float = Field(0.01, ge=0)
    """Muon's weight decay; AdamW uses none."""
    max_grad_norm: float = Field(1.0, gt=0)
    initial_std: float = Field(0.05, gt=0)
    """Standard deviation of the initial weights."""
    quality: DemonstrationQuality = DemonstrationQuality()
    tower: TinyTower | None = None
    """For environments that show pictures."""


TEXT_RECIPE = TinyRecipe(max_position=2048, rope_theta=1000.0, tokens=1_200_000, batch_tokens=4096)
"""For environments of free text: longer sequences. The policy should be trainable; it need not play well."""

RECIPES: dict[str, TinyRecipe] = {
    # The policy can read the map well, but ignores it in about half of its turns: RL can teach it to use the state.
    "FrozenLake": TinyRecipe(
        tokens=1_400_000,
        quality=DemonstrationQuality(grounded=0.55, wrong_coordinates=0.05, random_plan=0.1, generic_random_plan=0.9),
    ),
    # Pushing boxes takes more planning than walking, so Sokoban gets more tokens and fewer random plans.
    "Sokoban": TinyRecipe(
        tokens=3_400_000,
        quality=DemonstrationQuality(grounded=0.7, wrong_coordinates=0.05, random_plan=0.05, generic_random_plan=0.5),
    ),
    # WebShop has the longest episodes, so each token costs most; the policy buys products, good and bad, after fewer.
    "WebShop": TEXT_RECIPE.model_copy(update={"tokens": 800_000}),
}


def recipe_for(environment: str) -> TinyRecipe:
    """The recipe of a registered environment; an environment without an entry gets the default of its tokenizer
    kind."""
    words = reads_words(environment_class(environment))
    return RECIPES.get(environment, TinyRecipe() if words else TEXT_RECIPE)


def recipe_of(mixture: Mixture, tokens: int | None = None) -> TinyRecipe:
    """The recipe of a run's environments: that of an only one; of several, the one of the longest sequences, with the
    tokens of all, or with `tokens`. With a tower if one shows pictures."""
    found = [recipe_for(entry.environment.name) for entry in mixture.entries]
    longest = max(found, key=lambda recipe: recipe.max_position)
    sees = any(shows_pictures(entry.environment) for entry in mixture.entries)
    return longest.model_copy(
        update={"tokens": tokens or sum(recipe.tokens for recipe in found), "tower": TinyTower() if sees else None}
    )


def shows_pictures(environment: EnvironmentConfig) -> bool:
    """Whether an observation of the environment can have a picture."""
    return make(environment.name, "train", environment.options, environment.prompt).shows_pictures


def qualities_of(mixture: Mixture, recipe: TinyRecipe) -> list[DemonstrationQuality]:
    """The quality of each environment's demonstrations: the recipe's for an only one, of several each one's own."""
    if not mixture.labels:
        return [recipe.quality]
    return [recipe_for(entry.environment.name).quality for entry in mixture.entries]
