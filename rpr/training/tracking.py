"""Weights & Biases: a mirror of the run that never blocks it and is never read back."""

from __future__ import annotations

import netrc
import os
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from pytorch_lightning.loggers import WandbLogger

from rpr.config import TrainConfig
from rpr.results.record import WandbRun

INIT_TIMEOUT_SECONDS = 30


def _has_key() -> bool:
    """Whether W&B would find a key. Asked before it starts, since on a terminal it would wait at a prompt for ever."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc.netrc(os.environ.get("NETRC")).authenticators(host) is not None
    except (OSError, netrc.NetrcParseError):
        return False


def flat(config: TrainConfig) -> dict[str, Any]:
    """The choices that runs are compared by, as top-level keys (W&B groups and filters by these)."""
    position = config.position
    return {
        "k": position.clip_distance if position.relative else None,
        "keys": position.relative_keys,
        "values": position.relative_values,
        "absolute": position.absolute,
        "tables": position.tables if position.relative else None,
        "position_name": position.name,
        "model_name": config.model.name,
        "data_name": config.data.name,
        "seed": config.seed,
        "sweep": config.sweep,
        "run_id": config.run_id,
    }


def start(config: TrainConfig, run_dir: Path, *, synthetic: bool) -> WandbLogger | None:
    """A W&B run for this process, online where a key is found, else offline with one line that says so."""
    mode = config.logger.mode
    if mode == "none":
        return None
    if mode == "online" and not _has_key():
        _say("no key found (WANDB_API_KEY, or `wandb login`); the run is kept offline, `wandb sync` uploads it later")
        mode = "offline"
    if mode == "online":
        from wandb.errors import CommError, UsageError

        try:
            return _logger(config, run_dir, synthetic, offline=False)
        except (UsageError, CommError) as error:
            _say(f"{str(error).splitlines()[0]}; the run is kept offline, `wandb sync` uploads it later")
    return _logger(config, run_dir, synthetic, offline=True)


def _logger(config: TrainConfig, run_dir: Path, synthetic: bool, *, offline: bool) -> WandbLogger:
    import wandb

    tags = [config.data.name, config.model.name, config.position.name, *(["synthetic data"] if synthetic else [])]
    logger = WandbLogger(
        project=config.logger.project,
        entity=config.logger.entity,
        name=config.label,
        id=config.run_id,
        resume="allow",
        save_dir=run_dir,
        offline=offline,
        group=config.sweep,
        job_type="train",
        tags=[*tags, *config.logger.tags],
        log_model=False,
        settings=wandb.Settings(
            silent=True,
            console="off",
            x_disable_stats=True,
            x_disable_meta=True,
            disable_git=True,
            save_code=False,
            init_timeout=INIT_TIMEOUT_SECONDS,
            finish_timeout=config.logger.finish_timeout_seconds,
        ),
    )
    logger.experiment.config.update(
        {**flat(config), **config.model_dump(mode="json", exclude={"seed", "sweep"})}, allow_val_change=True
    )
    return logger


def finish(logger: WandbLogger | None, summary: dict[str, Any], *, failed: bool) -> None:
    """Write the summary and close the run, so that the next one of this process would be another."""
    if logger is None:
        return
    logger.experiment.summary.update({key: value for key, value in summary.items() if value is not None})
    logger.experiment.finish(exit_code=1 if failed else 0)


def _say(message: str) -> None:
    print(f"rpr-cli: W&B: {message}", file=sys.stderr, flush=True)


def reference(logger: WandbLogger) -> WandbRun:
    """What the record keeps of the W&B run."""
    run = logger.experiment
    return WandbRun(id=run.id, mode="offline" if run.offline else "online", url=run.url)
