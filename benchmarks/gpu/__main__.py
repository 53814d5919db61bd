"""`python -m benchmarks.gpu`: see `benchmarks.gpu.measure`."""

from benchmarks.gpu.measure import main

if __name__ == "__main__":
    raise SystemExit(main())
