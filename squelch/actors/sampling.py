"""The settings of sampling; what vLLM gets of them: `_sampling_params` in `actors.rollout.engine`."""

from pydantic import Field

from squelch.kit.base.settings import Settings

MIN_TEMPERATURE = 0.01
"""vLLM raises any lower temperature to this value, while the learner would divide the logits by the lower one."""


class SamplingConfig(Settings):
    """Sampling of tokens. top_p = 1, top_k off and min_p = 0 are fixed, so that the stored log-probabilities are those
    of the distribution that was sampled from."""

    temperature: float = Field(1.0, ge=MIN_TEMPERATURE)
    """Softmax temperature of training rollouts."""
    max_tokens_per_turn: int = Field(48, ge=1)
    """Most sampled tokens in one turn. A turn that reaches the limit is closed with masked ids and counts as badly
    formatted."""
    group_size: int = Field(16, ge=1)
    """G, the number of trajectories per task (paper, section 4.1)."""
