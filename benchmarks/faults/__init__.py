"""Faults thrown at real runs; see `benchmarks.faults.__main__`."""
