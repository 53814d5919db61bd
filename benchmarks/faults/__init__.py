"""Faults thrown at real runs; see `benchmarks.faults.study`."""
