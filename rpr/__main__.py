"""`python -m rpr` is rpr-cli."""

import sys

from rpr.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
