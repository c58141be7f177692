"""The errors a user can cause: each says in one line what is wrong, the rule and the remedy.

The command line turns them into exit code 2.
"""

import difflib
import errno
import reprlib
from collections.abc import Iterable
from typing import NamedTuple

# Errors of paths that the user gives. A missing file is not among them: it is reported where it is opened, or is a bug.
_PATH_ERRORS = (
    errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR,
    errno.EEXIST, errno.ENAMETOOLONG, errno.ELOOP,
)  # fmt: skip
_OUT_OF_MEMORY = ("can't allocate memory", "Storage size calculation overflowed")  # torch, of the host


class Problem(NamedTuple):
    """What is wrong with the value of a setting; its text is the one form of such a line."""

    setting: str
    value: object
    rule: str
    remedy: str = ""

    def __str__(self) -> str:
        value = reprlib.repr(self.value) if isinstance(self.value, list) else repr(self.value)  # a list may be huge
        line = f"{self.setting}: invalid value {value}: {self.rule}"
        return f"{line}; {self.remedy}" if self.remedy else line


class RprError(Exception):
    """Base of all errors that the user can fix; the text is shown without a traceback."""


class ConfigError(RprError):
    """A setting is unknown, of the wrong type, out of range, or conflicts with another one."""


class DataError(RprError):
    """A corpus, vocabulary, token cache or checkpoint cannot be used."""


class RecordError(RprError):
    """A run record does not exist, is damaged, or has a schema that this version does not read."""


class RunError(RprError):
    """A run stopped for a reason other than its input (a rank died, a loss became non-finite)."""


def not_finite(where: str, remedy: str = "use another run") -> RunError:
    return RunError(f"the model's probabilities are not finite{where}; {remedy}")


class ProcessEnded(RunError):
    """The training process ended without a result; only its exit status is known, its record may have the reason."""


class InterruptedRun(ProcessEnded):
    """It was ended by a signal: stopped from outside, not by an error, so the run can be resumed."""


class TimeLimitReached(InterruptedRun):
    """SLURM's time limit ended it."""


class BusyError(RprError):
    """Another process is working on the run."""


def reason_of(error: BaseException) -> str | None:
    """The text of an error that the user can fix: one of ours, of a path, or of memory; None for any other."""
    if isinstance(error, RprError):
        return str(error)
    if isinstance(error, OSError) and error.errno in _PATH_ERRORS:
        where = error.filename2 or error.filename or "a file"
        return f"{where}: cannot be read or written ({error.strerror}); fix it, or choose another path"
    text = str(error)
    of_host = isinstance(error, RuntimeError) and any(said in text for said in _OUT_OF_MEMORY)
    if not (of_host or isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError"):
        return None
    reason = text.partition("\n")[0].partition(" If reserved")[0].rstrip(". ") or type(error).__name__
    batches = "optim.max_tokens_per_microbatch, or max_tokens_per_batch of translations"
    return f"out of memory ({reason}); use smaller batches ({batches}), a smaller model, or a device with more memory"


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """`; did you mean X? (available: ...)`, or only the choices when none is close; case is ignored."""
    names = sorted(choices)
    near = difflib.get_close_matches(word.lower(), [name.lower() for name in names], n=1)
    available = f"available: {', '.join(names)}" if names else "none available"
    meant = next((name for name in names if [name.lower()] == near), None)
    return f"; did you mean {meant}? ({available})" if meant else f"; {available}"
