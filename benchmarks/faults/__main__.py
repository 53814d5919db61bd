"""`python -m benchmarks.faults`: see `benchmarks.faults.study`."""

import sys

from benchmarks.faults.study import main

sys.exit(main())
