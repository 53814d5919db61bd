"""Measures the sandbox: `python -m benchmarks.sandbox`."""
