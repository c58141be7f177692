"""Helpers around W&B's client library: its key, its service process and shutdown, and its error messages."""

import contextlib
import os
import re
import subprocess
import threading
from typing import Any

GRACE_SECONDS = 5  # for W&B's service process to end: with a pending request it may hang forever


def has_key(settings: Any) -> bool:
    """Whether W&B would find a key. Checked before it starts: without one it would prompt on a terminal and wait."""
    from wandb.sdk.lib.wbauth import read_netrc_auth

    given = os.environ.get("WANDB_API_KEY") or settings.identity_token_file
    return bool(given or read_netrc_auth(host=settings.base_url))


def tear_down() -> None:
    """End W&B's service process, by force after GRACE_SECONDS, and reset its settings, so that the next start is like
    the first one in this process.
    """
    import wandb

    with contextlib.ExitStack() as stack:
        stack.enter_context(contextlib.suppress(Exception, SystemExit))
        if (process := service()) is not None:
            force = threading.Timer(GRACE_SECONDS, process.kill)
            force.start()
            stack.callback(force.cancel)
        wandb.teardown()  # waits for the process indefinitely
    os.environ.pop("WANDB_SERVICE", None)  # the process's address, left behind if it did not answer


def service() -> subprocess.Popen[bytes] | None:
    """W&B's service process, if this process started it; there is no public API for it."""
    import wandb

    session: Any = wandb.setup()
    with contextlib.suppress(AttributeError):
        process: subprocess.Popen[bytes] = session._connection._proc._process
        return process
    return None


def first_line(error: Exception) -> str:
    text = str(error).strip()
    return without_login(text.splitlines()[0]) if text else type(error).__name__


def without_login(text: str) -> str:
    """The text with user names and passwords removed from its URLs (WANDB_BASE_URL)."""
    return re.sub(r"(?<=://)[^/@\s]*@", "", text)
