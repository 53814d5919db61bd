"""What the coordinator does with calls to the learner (`cluster.control.rank_client` makes them).

    learning     every call to the learner, and its recovery
    recovery     makes the weights again after ranks were lost

Each module says for whom it waits.
"""
