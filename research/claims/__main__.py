"""`python -m research.claims`: see `research.claims.study`."""

import sys

from research.claims.study import main

sys.exit(main())
