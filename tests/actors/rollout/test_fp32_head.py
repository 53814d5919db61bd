import pytest
from pydantic import ValidationError

from squelch.actors.config import RolloutConfig
from squelch.actors.rollout.engine_args import engine_arguments

pytestmark = pytest.mark.ray


@pytest.mark.ray
def test_a_float32_head_is_asked_of_vllm_and_refused_where_all_is_float32() -> None:
    assert "hf_overrides" not in engine_arguments("model", RolloutConfig(dtype="bfloat16"))
    asked = engine_arguments("model", RolloutConfig(dtype="bfloat16", fp32_head=True))
    assert asked["hf_overrides"] == {"head_dtype": "float32"}
    with pytest.raises(ValidationError, match="fp32_head does nothing"):
        RolloutConfig(fp32_head=True)
