"""Stand-ins of actors for benchmarks and their tests: they sleep instead of generating and training."""
