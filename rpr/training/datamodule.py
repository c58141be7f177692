"""Batches for Lightning: what each rank gets, from which step on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytorch_lightning as pl
from numpy.typing import NDArray
from torch.utils.data import DataLoader, Sampler

from rpr.config import TrainConfig
from rpr.data.batches import Batch, TrainingBatches, TranslationDataset, evaluation_units
from rpr.data.cache import PreparedData


class Shares(Sampler[Any]):
    """Every `world`-th unit from `rank` on."""

    def __init__(self, units: list[NDArray[Any]], rank: int, world: int) -> None:
        self.units = units[rank::world]

    def __len__(self) -> int:
        return len(self.units)

    def __iter__(self) -> Iterator[NDArray[Any]]:
        return iter(self.units)


class TranslationData(pl.LightningDataModule):
    """The training stream starts at the step the checkpoint was written after; validation is shared out by rank."""

    def __init__(self, config: TrainConfig, data: PreparedData) -> None:
        super().__init__()
        self.config = config
        self.data = data
        self.start_step = 0

    def state_dict(self) -> dict[str, Any]:
        # From global_step, not from a counter of batches: checkpoints are written before the batch's end is announced.
        assert self.trainer is not None
        return {"step": self.trainer.global_step}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.start_step = state_dict["step"]

    def train_dataloader(self) -> DataLoader[Batch]:
        assert self.trainer is not None
        optim = self.config.optim
        train = self.data.split("train")
        batches = TrainingBatches(
            train,
            optim.max_tokens_per_unit,
            optim.units_per_step,
            self.config.seed,
            num_devices=self.trainer.world_size,
            rank=self.trainer.global_rank,
            start_step=self.start_step,
        )
        return self._loader(train, batches)

    def val_dataloader(self) -> DataLoader[Batch]:
        assert self.trainer is not None
        validation = self.data.split("validation")
        units = evaluation_units(validation, self.config.optim.max_tokens_per_unit)
        return self._loader(validation, Shares(units, self.trainer.global_rank, self.trainer.world_size), workers=0)

    def _loader(self, split: Any, sampler: Sampler[Any], workers: int | None = None) -> DataLoader[Batch]:
        num_workers = self.config.hardware.num_workers if workers is None else workers
        return DataLoader(
            TranslationDataset(split),
            sampler=sampler,
            batch_size=None,
            num_workers=num_workers,
            pin_memory=self.config.hardware.accelerator == "gpu",
            persistent_workers=num_workers > 0,
        )
