"""`python cli.py train` in a checkout does what the installed `rpr-cli train` does."""

import sys

from rpr.cli.app import main

if __name__ == "__main__":
    sys.exit(main())
