"""What each fork of the server of forks has: its commands' modules, and the settings of a training, read once."""

from rpr.cli import app  # noqa: F401
from rpr.commands import evaluate, export, prepare, report, train, translate  # noqa: F401
from rpr.compose.composition import compose_train
from rpr.report import plots  # noqa: F401
from rpr.sweep import launcher  # noqa: F401
from rpr.training import fit  # noqa: F401

compose_train([])
