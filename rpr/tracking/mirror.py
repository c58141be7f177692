"""The names of a run's settings, metrics and scores in W&B, to which its charts, tables and reports refer; and helpers
around W&B's client library: its key, its service process and shutdown, and its error messages.
"""

import contextlib
import hashlib
import json
import os
import re
import subprocess
import threading
from typing import Any

from rpr.config.train import TrainConfig
from rpr.model.positions.vectors import SHARING
from rpr.records.position import position_of
from rpr.records.record import Record, deciding_settings
from rpr.runs.runtime import matmul_precision

GRACE_SECONDS = 5  # for W&B's service process to end: with a pending request it may hang forever
STEP = "trainer/global_step"  # the optimiser step, under Lightning's usual name
VALIDATION_LOSS = "validation/loss"
VALIDATION_BLEU = "validation/bleu"
VALIDATION_BITS = "validation/bits_per_byte"
STEPS_PER_SECOND = "steps_per_second"
CLIP_DISTANCE = "k"
CONFIGURATION = "configuration"
SEED = "seed"


def flat(config: TrainConfig) -> dict[str, Any]:
    """The settings by which runs are compared, as top-level keys: W&B groups and filters by these."""
    position = config.position
    return {
        CLIP_DISTANCE: position.k,
        **position.tracked,
        "position_name": position.name,
        "variant": variant(config),
        CONFIGURATION: configuration(config),
        "model_name": config.model.name,
        "architecture": config.model.architecture,
        "data_name": config.data.name,
        SEED: config.seed,
        "sweep": config.sweep,
        "run_id": config.run_id,
    }


def variant(config: TrainConfig) -> str:
    """One key for all seeds of a variant, as in the reports: `relative, k = 4`, `absolute (sinusoidal)`; with the table
    sharing if it is not the model's default, and the name of the position config if it adds information.
    """
    chosen = config.position
    label = f"{chosen.label}, from {config.origin.words(config.seed)}" if config.origin else chosen.label
    if chosen.sharing not in (None, config.model.relative_defaults.tables):
        label += f", {SHARING[chosen.sharing]}"
    usual = (chosen.kind, f"{chosen.encoder.name}-{chosen.decoder.name}")
    return label if chosen.name in usual else f"{chosen.name} ({label})"


def configuration(config: TrainConfig) -> str:
    """One key for all seeds of a variant trained alike, over which means are taken: `relative, k = 4 (multi30k_en_de,
    tiny, 1a2b)`, with a digest of what else decides a result: settings, this machine's precision, the run it came from.
    """
    deciding = deciding_settings(config.model_dump(mode="json"))
    deciding |= {"precision": config.hardware.precision, "matmul_precision": matmul_precision(config.hardware)}
    deciding |= {"origin": config.origin and config.origin.settings_id}
    digest = hashlib.sha256(json.dumps(deciding, sort_keys=True).encode()).hexdigest()[:4]
    return f"{variant(config)} ({config.data.name}, {config.model.name}, {digest})"


def settings_of(config: TrainConfig) -> dict[str, Any]:
    """The configuration: `flat`, and the rest by section."""
    keys = flat(config)
    return keys | config.model_dump(mode="json", exclude=set(keys))


def final_row(record: Record) -> dict[str, Any]:
    """A history row with the scores of a finished run, and its k: W&B then draws a bar chart of each, a bar a run."""
    row: dict[str, Any] = {f"{score.split}/{score.metric}": score.score for score in record.scores}
    k = position_of(record).clip_distance
    return row | ({} if k is None else {CLIP_DISTANCE: k})


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
