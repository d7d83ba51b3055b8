"""`python -m offtrace.cli`."""

import sys

from offtrace.cli import main

sys.exit(main())
