"""Watchers of the training step. `watcher` says when each method is called; `cluster.loop.wiring` lists the watchers.

    early_stopping   the two rules that end a run which no longer learns
    gaming_warning   whether the filter's criterion is gamed
    counting_nothing ends a run of which nothing counts
    validation       success on the fixed tasks
    scoring          the scorer steps, and the wait for the last one
    probing          plays the fixed probe and hands it to the scorer
    alarms           the alarms on the scorer's metrics
    decomposing      the gradient decomposed by reward variance
    findings         what is wrong with the run, in words

`cluster.loop.scaling` is a watcher too.
"""
