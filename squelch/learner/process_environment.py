"""Environment variables of a learner rank's process; the C library and OpenMP read them once, when it starts."""

from squelch.actors.process.allocator import ALLOCATOR

ENVIRONMENT = {
    # A waiting thread must not occupy the core that another thread or a rollout worker needs, so it sleeps. It first
    # spins for some tens of microseconds, because most waits are shorter; this saves 25% of a two-thread step.
    "OMP_WAIT_POLICY": "passive",
    "GOMP_SPINCOUNT": "20000",
    **ALLOCATOR,
    # oneDNN and PyTorch's layer over it each cache the plans of about a thousand matrix products, one per shape. Token
    # counts rarely repeat, so a rank grew by a gigabyte. 128 plans are enough for the shapes that do repeat.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128",
    "LRU_CACHE_CAPACITY": "128",
}
