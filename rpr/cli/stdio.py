"""The standard streams of a command, where one of them is closed, nobody reads it, or its disk is full."""

from __future__ import annotations

import os
import sys

from rpr.errors import ConfigError


def hold() -> None:
    """Open descriptors 0, 1 and 2 where they are closed (`2>&-`), for this process and those that it starts: a file of
    ours that got such a number would get all that libraries print, too. Afterwards there is a stderr to print to.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free: this one
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115


def settle_stdout(name: str, *, needed: bool) -> None:
    """Where stdout is closed, before any work is done. Libraries (joblib) fail without one, so what is not `needed` by
    the command `name` goes nowhere.

    Raises:
        ConfigError: what the command is for would be printed, and nobody could read it.
    """
    if sys.stdout is not None:
        return
    if needed:
        raise ConfigError(f"stdout: it is closed, and {name} prints there; leave >&- out, or give a file as > FILE")
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115


def write_out(text: str = "") -> None:
    """Some text, behind what was printed before, past all buffers; nothing where stdout is closed.

    Raises:
        BrokenPipeError: the reader is gone.
        ConfigError: it cannot be kept (a full disk).
    """
    try:
        if sys.stdout is not None:
            sys.stdout.write(text)
            sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise ConfigError(f"stdout: cannot be written ({error.strerror}); send it to another place") from None


def let_go_of_stdout() -> None:
    """Forget what could not be written: Python would try once more at its end, and tell of it in several lines."""
    try:
        write_out()
    except (BrokenPipeError, ConfigError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
