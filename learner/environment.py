"""Process environment of a learner rank; the C library and OpenMP read it once, when the process starts."""

ENVIRONMENT = {
    # A thread that waits for its sibling must not burn the core that the sibling, or a rollout worker, needs: it
    # sleeps, but only after some tens of microseconds, as long as most waits are (a quarter off two threads' step).
    "OMP_WAIT_POLICY": "passive",
    "GOMP_SPINCOUNT": "20000",
    # Activations are freed and asked for again every micro-batch: keep them rather than unmap and fault them in.
    "MALLOC_MMAP_THRESHOLD_": str(1 << 25),  # the largest that glibc accepts
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_TOP_PAD_": str(1 << 26),
}
