"""`python -m benchmarks.claims`: see `benchmarks.claims.study`."""

import sys

from benchmarks.claims.study import main

sys.exit(main())
