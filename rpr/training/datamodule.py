"""Batches for Lightning: the batches of each rank, from the step at which a run starts or resumes."""

from collections.abc import Iterable
from functools import cached_property
from typing import Any

import numpy as np
import pytorch_lightning as pl
from torch.utils.data import DataLoader

from rpr.config.train import TrainConfig
from rpr.data.batches import NO_PAIRS, Batch, TrainingBatches, TranslationDataset, evaluation_batches
from rpr.data.cache import PreparedData, TokenSplit
from rpr.data.vocabulary import text_vocabulary
from rpr.data.windows import Windows, scored_split, training_split
from rpr.kinds import TEXT

LONGEST_STEPS = 10  # of a preflight; speeds leave out as many


class TranslationData(pl.LightningDataModule):
    """The training stream starts after the checkpoint's step; validation is sharded by rank."""

    def __init__(self, config: TrainConfig, data: PreparedData) -> None:
        super().__init__()
        self.config = config
        self.data = data

        self.items = "windows" if config.data.kind is TEXT else "pairs"  # that the batches are of
        self.train = training_split(data, config.data)
        self._joined = config.model.architecture == "decoder_only"  # source and target are one row of the model

    @cached_property
    def stream(self) -> TrainingBatches:
        """This rank's training batches; not before the checkpoint has been loaded."""
        assert self.trainer is not None
        optim = self.config.optim
        return TrainingBatches(
            self.train,
            optim.max_tokens_per_microbatch,
            optim.microbatches_per_step,
            self.config.seed,
            num_devices=self.trainer.world_size,
            rank=self.trainer.global_rank,
            start_step=self.trainer.global_step,  # restored before the first batch is asked for
            joined=self._joined,
            longest_first=LONGEST_STEPS * optim.microbatches_per_step if self.config.fast_dev_run else 0,
        )

    @cached_property
    def validation(self) -> TokenSplit | Windows:
        """What the validation loss is of."""
        return scored_split(self.data, self.config.data, "validation", self.config.evaluation.text_tokens)

    def bytes_per_token(self) -> float | None:
        """Of the validation documents; None for pairs."""
        if not isinstance(self.validation, Windows):
            return None
        tokens, _ = self.validation.rows("target", range(len(self.validation)))
        return float(text_vocabulary(self.data.vocabulary).piece_bytes[tokens].mean())

    def examples_of_step(self, step: int) -> list[dict[str, Any]]:
        """The training pairs of a step (from 0), over all ranks: their indices, and the text of their pieces."""
        decode, sides = self.data.vocabulary.decode, ("source", "target")
        pairs = np.concatenate(self.stream.step_microbatches(step)).tolist()
        return [{"pair": at, **{side: decode(self.train.row(side, at).tolist()) for side in sides}} for at in pairs]

    def train_dataloader(self) -> DataLoader[Batch]:
        return self._loader(self.train, self.stream)

    def val_dataloader(self) -> DataLoader[Batch]:
        assert self.trainer is not None
        budget = self.config.optim.max_tokens_per_microbatch
        batches = evaluation_batches(self.validation, budget, joined=self._joined)
        world = self.trainer.world_size
        batches = batches[-world:] if self.config.fast_dev_run else batches  # the longest
        batches += [NO_PAIRS] * (-len(batches) % world)  # Lightning needs the same number of batches on every rank
        return self._loader(self.validation, batches[self.trainer.global_rank :: world], workers=0)

    def _loader(self, split: Any, sampler: Iterable[Any], workers: int | None = None) -> DataLoader[Batch]:
        num_workers = self.config.hardware.num_workers if workers is None else workers
        return DataLoader(
            TranslationDataset(split),
            sampler=sampler,
            batch_size=None,
            num_workers=num_workers,
            pin_memory=self.config.hardware.accelerator == "gpu",
            persistent_workers=num_workers > 0,
        )
