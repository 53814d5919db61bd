"""The parts of a run that outlive its process: what the loop writes, and what a resumed run starts from.

    run_log        the records of steps: spans, metrics, and the terminal's line
    archiving      the groups of a step, written during the next step
    state          the loop's part of a checkpoint
    checkpointing  a whole checkpoint: the learner's shards and the loop's state
    uploading      the run's copy in a store, sent beside the loop (`cluster.runs.in_store`)

Each module says what it waits for.
"""
