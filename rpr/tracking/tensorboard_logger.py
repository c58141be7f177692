"""TensorBoard: the rows of metrics.jsonl and the scores under their names in W&B, in <run folder>/tensorboard."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pytorch_lightning.loggers import TensorBoardLogger

from rpr.config.train import TrainConfig
from rpr.records.record import RECORD_NAME, read_record
from rpr.tracking.naming import final_row, flat, sections


class TensorBoard(TensorBoardLogger):
    """A run's events; a resumed run adds a file to the folder, and TensorBoard draws both parts as one run."""

    def __init__(self, config: TrainConfig, run_dir: Path) -> None:
        super().__init__(run_dir, name="tensorboard", version="", default_hp_metric=False)
        self._run_dir = run_dir
        self.log_hyperparams({**flat(config), **sections(config)})

    def log_results(self) -> None:
        """The scores of a finished run."""
        record = read_record(self._run_dir / RECORD_NAME)
        self.log_metrics(final_row(record), record.steps)

    def finish(self, summary: Mapping[str, Any], *, failed: bool) -> None:
        """Write what is left. `summary` is W&B's."""
        self.finalize("failed" if failed else "success")
