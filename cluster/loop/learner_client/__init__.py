"""The coordinator's client of the learner.

    learning     every call to the learner, and its recovery
    ranks        one call to all ranks together, bounded and watched
    recovery     makes the weights again after ranks were lost

Each module says for whom it waits.
"""
