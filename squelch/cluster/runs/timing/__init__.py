"""The times of a run: which actor worked when, and how long a training step takes. Pure.

    intervals     operations on intervals of time
    timeline      the spans of a run's actors: lanes, and bubbles in the learner's work
    perfetto      the same spans as a trace for Perfetto
    step_time     a model of a step's wall time against the number of rollout workers
    counted_step  the constants of that model, counted from a model's size and a recipe

Times are in seconds.
"""
