"""`python -m benchmarks.learner`: see `benchmarks.learner.step`."""

from benchmarks.learner.step import main

if __name__ == "__main__":
    raise SystemExit(main())
