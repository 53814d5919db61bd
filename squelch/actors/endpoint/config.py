"""Settings of the endpoint at which agents call the policy."""

from typing import Literal

from pydantic import Field

from squelch.kit.base.settings import Settings


class EndpointConfig(Settings):
    """The endpoint at which agents call the policy, one in each environment actor (docs/guide/agents.md). Bounds are
    for one trajectory unless stated otherwise."""

    host: str = "127.0.0.1"
    """Address on which it listens, on a free port. Beyond loopback whoever reaches it needs a trajectory's token, and
    there is no TLS."""
    sampling: Literal["override", "refuse"] = "override"
    """What a request gets that asks for other sampling than the run's (temperature, top_p, penalties, logit_bias, a
    response format): the run's sampling, told in the header `x-squelch-adjusted`, or an error."""
    max_calls: int = Field(256, ge=1)
    """Most calls; a ticket's limit of turns lowers it for those that are trained on. Further calls are refused, and the
    trajectory counts as truncated."""
    max_tokens: int = Field(262_144, ge=1)
    """Most tokens, fed and sampled, of all segments together; what they reach is refused as further calls are."""
    max_bytes: int = Field(64 * 2**20, ge=1024)
    """Most bytes of all requests together."""
    max_request_bytes: int = Field(2 * 2**20, ge=1024)
    """Most bytes of the body of one request."""
    max_messages: int = Field(2048, ge=1)
    """Most messages in one request."""
    max_parallel: int = Field(64, ge=1)
    """Most calls at once."""
    max_connections: int = Field(512, ge=1)
    """Most connections to the endpoint at once, of all trajectories; one more ends the oldest without a request."""
    request_timeout_s: float = Field(30.0, gt=0)
    """Seconds within which a client must have sent a request, and taken its answer."""
