"""Refusals of the learner: a training step, or a setting that proves unusable during the run."""


class StepRefused(ValueError):
    """A step that must not be made, e.g. `non-finite gradient in group 000003-002`. Raised where it is found, on every
    rank alike, and caught by `Trainer.train_step` alone."""


class SettingRefused(ValueError):
    """A setting that a step's groups, or the machine, do not fit. The message names the setting and says what would be
    right."""
