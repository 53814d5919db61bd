"""Tickets that are played on rollout workers and environment actors: those of a step, and those of fixed tasks.

    playing     plays a ticket, again if a party dies or is late; the side of these parties
    window      the tickets of one training step, and the figures of its groups
    validation  the fixed validation tasks, during training
    probing     the tasks of the fixed probe

Each module says whom it waits for.
"""
