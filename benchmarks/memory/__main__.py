"""`python -m benchmarks.memory`: see `benchmarks.memory.measure`."""

from benchmarks.memory.measure import main

if __name__ == "__main__":
    main()
