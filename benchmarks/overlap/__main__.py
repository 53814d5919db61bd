"""`python -m benchmarks.overlap`: see `benchmarks.overlap.measure`."""

from benchmarks.overlap.measure import main

if __name__ == "__main__":
    raise SystemExit(main())
