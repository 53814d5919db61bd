"""`python -m benchmarks.control_plane`: see `benchmarks.control_plane.measure`."""

from benchmarks.control_plane.measure import main

if __name__ == "__main__":
    raise SystemExit(main())
