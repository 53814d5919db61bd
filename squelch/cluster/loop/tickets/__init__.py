"""Tickets that are played on rollout workers and environment actors: those of a step, and those of fixed tasks.

    playing     plays tickets and retries them if an actor dies or is late; the client of these actors
    window      the tickets of one training step, and the metrics of its groups
    open_steps  the steps whose tickets are issued and that are not trained on yet

Each module says what it waits for.
"""
