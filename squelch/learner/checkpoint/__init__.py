"""Checkpoints: what outlives the learner's processes. `folder` describes the layout; start there."""
