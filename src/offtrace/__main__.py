"""`python -m offtrace`."""

import sys

from offtrace.cli import main

sys.exit(main())
