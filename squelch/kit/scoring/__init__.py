"""Reasonings scored under other prompts than their own. `actors.scorer` is a run's scorer."""
