"""What each fork of the server of forks has: its commands' modules, and the settings of a training, read once."""

from rpr.commands import evaluate, export, train, translate  # noqa: F401
from rpr.compose.composition import compose_train
from rpr.sweep import slurm  # noqa: F401
from rpr.training import fit  # noqa: F401

compose_train([])
