"""`python -m benchmarks.environments`: see `benchmarks.environments.measure`."""

from benchmarks.environments.measure import main

if __name__ == "__main__":
    main()
