"""The errors a user can cause: each says in one line what is wrong, the rule, and the remedy.

The command line turns them into exit code 2.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RprError(Exception):
    """Base of every error that is the user's to mend; its text is shown without a traceback."""


class ConfigError(RprError):
    """A setting is unknown, of the wrong type, out of range, or contradicts another one."""


class DataError(RprError):
    """A corpus, vocabulary, token cache or checkpoint cannot be used."""


class RecordError(RprError):
    """A run record is absent, damaged, or of a schema this version does not read."""


class RunError(RprError):
    """A run stopped for a reason that is no fault of its input (a rank died, a loss became non-finite)."""


class ProcessEnded(RunError):
    """The training process ended without a result; known here is only how, and its record may have the reason."""


class InterruptedRun(ProcessEnded):
    """It was ended by a signal: stopped from outside, without an error of the run, which resumes."""


class BusyError(RprError):
    """Another process works on the run."""


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """`; did you mean X? (available: ...)`, or only the choices when none is near, whether in capitals or not."""
    names = sorted(choices)
    if not names:
        return "; there is none"
    near = difflib.get_close_matches(word.lower(), [name.lower() for name in names], n=1)
    if not near:
        return f"; available: {', '.join(names)}"
    meant = next(name for name in names if name.lower() == near[0])
    return f"; did you mean {meant}? (available: {', '.join(names)})"
