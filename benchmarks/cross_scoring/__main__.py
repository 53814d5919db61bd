"""`python -m benchmarks.cross_scoring`: see `benchmarks.cross_scoring.measure`."""

from benchmarks.cross_scoring.measure import main

if __name__ == "__main__":
    main()
