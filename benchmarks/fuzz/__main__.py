"""`python -m benchmarks.fuzz`: see `benchmarks.fuzz.measure`."""

from benchmarks.fuzz.measure import main

if __name__ == "__main__":
    main()
