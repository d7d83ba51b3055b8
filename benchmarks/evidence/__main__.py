"""When do traces help with logs? Every estimator on cases whose truth is known.

    python benchmarks/evidence [--case NAME …] [--quick] [--repetitions N] [--workers N] [--json]

Prints Markdown, a column for each case. About ten minutes on two cores, and a minute
with --quick.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from evidence import tables
from evidence.measure import measure
from offtrace._shared.progress_bar import ProgressBar


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", nargs="+")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--repetitions", type=int)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with ProgressBar() as bar:
        found = measure(
            given.case, quick=given.quick, repetitions=given.repetitions, workers=given.workers, progress=bar.show
        )
    print(json.dumps([tables.as_json(each) for each in found], indent=2) if given.json else tables.markdown(found))


if __name__ == "__main__":
    main()
