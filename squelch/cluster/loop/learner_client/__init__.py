"""How the coordinator calls the learner (`cluster.control.rank_client` makes the calls).

    learning     every call to the learner, repeated after a recovery
    recovery     rebuilds the weights after ranks were lost

Each module says what it waits for.
"""
