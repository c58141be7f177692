"""`python -m rpr`, and `torchrun -m rpr`, are rpr-cli."""

import sys

from rpr.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
