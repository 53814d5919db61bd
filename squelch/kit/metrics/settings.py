"""Settings of the metrics endpoint and of further loggers."""

from typing import Literal

from pydantic import Field

from squelch.kit.base.settings import Settings


class RecorderConfig(Settings):
    """The metrics endpoint, and the report at the end."""

    host: str = "127.0.0.1"
    """Address on which the metrics endpoint listens. Beyond loopback SQUELCH_METRICS_TOKEN must hold a token."""
    port: int | None = Field(None, ge=0, le=65535)
    """Port of `/metrics`; 0 selects any free port. Unset: the first free one from 9464 to 9473."""
    report: bool = True
    """Whether a run that ends writes its report, `report.html` in its folder, which takes some seconds of one core."""
    loggers: tuple[Literal["tensorboard", "wandb"], ...] = ()
    """Further loggers of each step's metrics, each an optional extra of the installation: `tensorboard` writes to the
    run's folder, `wandb` to Weights & Biases."""
    wandb_project: str = "squelch"
    """Project of the W&B run."""
    wandb_entity: str = ""
    """Team or user of the W&B run; empty takes W&B's default."""
    wandb_mode: Literal["online", "offline"] | None = None
    """`offline` keeps the metrics in the run's folder for `wandb sync`. Unset: WANDB_MODE, or online."""
    logger_timeout_s: float = Field(60.0, gt=0)
    """Seconds that a logger may take to start, and to send what is left at the end of the run."""
