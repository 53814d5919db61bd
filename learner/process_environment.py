"""Process environment of a learner rank; the C library and OpenMP read it once, when the process starts."""

from actors.process.allocator import ALLOCATOR

ENVIRONMENT = {
    # A thread that waits for its sibling must not burn the core that the sibling, or a rollout worker, needs: it
    # sleeps, but only after some tens of microseconds, as long as most waits are (a quarter off two threads' step).
    "OMP_WAIT_POLICY": "passive",
    "GOMP_SPINCOUNT": "20000",
    **ALLOCATOR,
    # oneDNN and PyTorch's layer over it each keep the plans of a thousand products, one a shape; token counts seldom
    # come again, and a rank grew by a gigabyte. So many are enough for those that do.
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128",
    "LRU_CACHE_CAPACITY": "128",
}
