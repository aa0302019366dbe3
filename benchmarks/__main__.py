"""Run every benchmark, one after the other: `python -m benchmarks [--quick] [NAME ...]`.

A benchmark is a module of this package that can be run by itself (`python -m benchmarks.collectives`); it takes
`--quick`, prints its tables, and leaves what is worth keeping in benchmarks/results/.
"""

from __future__ import annotations

import argparse
import pkgutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
NO_BENCHMARKS = {"__main__", "side_by_side", "report"}  # what the others are built from


def names() -> list[str]:
    """The benchmarks there are."""
    return sorted(module.name for module in pkgutil.iter_modules([str(HERE)]) if module.name not in NO_BENCHMARKS)


def main() -> int:
    """Run the benchmarks named on the command line, or all of them; the number of those that failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds: seconds instead of minutes")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names())}")
    options = parser.parse_args()
    unknown = sorted(set(options.names) - set(names()))
    if unknown:
        parser.error(f"NAME must be one of {', '.join(names())}, got {', '.join(unknown)}")
    failed = 0
    for name in options.names or names():
        print(f"\n=== benchmarks.{name} ===", flush=True)
        command = [sys.executable, "-m", f"benchmarks.{name}", *(["--quick"] if options.quick else [])]
        failed += subprocess.run(command, cwd=HERE.parent).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
