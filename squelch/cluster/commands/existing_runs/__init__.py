"""The commands on a run that exists, live or finished.

    status     its progress, once
    watch      its progress, live
    inspect    its groups, trajectories, score matrices and spans, in the browser
    report     the paper's figures of one or several runs
    trace      its spans, for Perfetto
    eval       the success of its checkpoints, or of other models on its tasks
    export     one of its checkpoints as a folder for other programs
    gradients  the gradient of its archived groups, decomposed by reward variance
    scale      the number of its rollout workers and environment actors, while it runs

They read the run through `cluster.runs`; only `scale` speaks to a live one.
"""
