"""For Lightning: the batches of each rank, from the step at which a run starts or resumes, and the model's steps."""

import math
from collections.abc import Iterable
from functools import cached_property
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from rpr.config.train import OptimConfig, TrainConfig
from rpr.data.batches import Batch, BatchDataset, Split, TrainingBatches, scored_batches, scored_split, training_split
from rpr.data.cache import PreparedData
from rpr.data.vocabulary import text_vocabulary
from rpr.errors import RunError
from rpr.kinds import TEXT
from rpr.model.transformer import build_model
from rpr.training.loss import compiled_loss_sum, loss_sum, to_edges

LONGEST_STEPS = 10  # of a preflight; speeds leave out as many


class TranslationData(pl.LightningDataModule):
    """The training stream starts after the checkpoint's step; validation is sharded by rank."""

    def __init__(self, config: TrainConfig, data: PreparedData) -> None:
        super().__init__()
        self.config, self.data = config, data
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
    def validation(self) -> Split:
        """What the validation loss is of."""
        return scored_split(self.data, self.config.data, "validation", self.config.evaluation.text_tokens)

    def bytes_per_token(self) -> float | None:
        """Of the validation documents; None for pairs."""
        if self.config.data.kind is not TEXT:
            return None
        tokens, _ = self.validation.rows("target", range(len(self.validation)))
        return float(text_vocabulary(self.data.vocabulary).piece_bytes[tokens].mean())

    def train_dataloader(self) -> DataLoader[Batch]:
        return self._loader(self.train, self.stream)

    def val_dataloader(self) -> DataLoader[Batch]:
        assert self.trainer is not None
        budget = self.config.optim.max_tokens_per_microbatch
        batches = scored_batches(self.validation, budget, joined=self._joined)
        world = self.trainer.world_size
        batches = batches[-world:] if self.config.fast_dev_run else batches  # the longest
        batches += [batches[0][:0]] * (-len(batches) % world)  # Lightning needs as many on every rank
        return self._loader(self.validation, batches[self.trainer.global_rank :: world], workers=0)

    def _loader(self, split: Any, sampler: Iterable[Any], workers: int | None = None) -> DataLoader[Batch]:
        num_workers = self.config.hardware.num_workers if workers is None else workers
        return DataLoader(
            BatchDataset(split),
            sampler=sampler,
            batch_size=None,
            num_workers=num_workers,
            pin_memory=self.config.hardware.accelerator == "gpu",
            persistent_workers=num_workers > 0,
        )


def learning_rate(step: int, optim: OptimConfig, d_model: int) -> float:
    """The learning rate of a step, counted from 1: linear warm-up, then the schedule.

    `inverse_sqrt` is that of Vaswani et al. 2017, scale * d_model^-0.5 * min(step^-0.5, step * warmup_steps^-1.5);
    `constant` stays at its highest value; `cosine` falls from there to a tenth at the last step, as in nanoGPT and
    Hoffmann et al. 2022. `optim.learning_rate` is the highest value itself, in place of the scale.
    """
    assert step >= 1
    warmup = optim.warmup_steps
    if optim.learning_rate is not None:
        factor = optim.learning_rate * warmup**0.5
    else:
        assert optim.learning_rate_scale is not None
        factor = optim.learning_rate_scale * d_model**-0.5
    if step <= warmup or optim.schedule == "inverse_sqrt":
        return float(factor * min(step**-0.5, step * warmup**-1.5))
    highest = float(factor * warmup**-0.5)
    if optim.schedule == "constant":
        return highest
    done = (step - warmup) / max(1, optim.max_steps - warmup)  # asked for one step more than there are
    return highest * (0.55 + 0.45 * math.cos(math.pi * done))


class TranslationModule(pl.LightningModule):
    """Trains a model with label smoothing, and Adam with the warm-up schedule.

    The loss of a step is the mean over the target tokens of the whole effective batch: each microbatch divides its
    sum by the step's token count, which the sampler knows. So the same step on 1, 2 or 8 devices, accumulated or not,
    has the same gradient up to rounding.
    """

    def __init__(self, config: TrainConfig, vocabulary_size: int) -> None:
        super().__init__()
        self.config = config
        hardware, text = config.hardware, config.data.text
        self.packed = text is not None and text.windows == "stream_masked"  # rows of several documents, in training
        alone = config.optim.microbatches_per_step == hardware.num_ranks == 1
        self.compiled = compiled_loss_sum(fixed=text is not None and alone) if hardware.compile else None
        self.micro_losses: list[Tensor] = []  # of this rank's microbatches since the guard last took them
        self.gradient_norm: Tensor | None = None  # of the last step, before clipping
        self.last_validation_loss: float | None = None
        torch.manual_seed(config.seed)
        self.model = build_model(config.transformer(vocabulary_size))
        self.model.use_attention(config.hardware.attention)

    def on_train_batch_start(self, batch: Batch, batch_idx: int) -> None:
        # Dropout as a function of (seed, step, microbatch, rank): a resumed run draws as an uninterrupted one does.
        accumulate = self.trainer.accumulate_grad_batches
        draw = (self.global_step * accumulate + batch_idx % accumulate) * self.trainer.world_size + self.global_rank
        torch.manual_seed((self.config.seed * 1_000_003 + draw) % 2**63)

    def training_step(self, batch: Batch, batch_idx: int) -> Tensor:
        loss_sum = self._loss_sum(batch, self.config.optim.label_smoothing)
        # Lightning divides by the number of microbatches, DDP by the number of ranks: undo both.
        copies = self.trainer.accumulate_grad_batches * self.trainer.world_size
        loss = loss_sum * (copies / batch.step_target_tokens)
        self.micro_losses.append(loss.detach())
        return loss

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Clip the gradient, which does not synchronise a GPU."""
        gradients = [p.grad for p in self.parameters() if p.grad is not None]
        norm = torch.nn.utils.get_total_norm(gradients)
        limit = self.config.optim.gradient_clip_norm
        if limit is not None:
            torch.nn.utils.clip_grads_with_norm_(self.parameters(), limit, norm)
        self.gradient_norm = norm.detach()

    def validation_step(self, batch: Batch, batch_idx: int) -> None:
        loss_sum = self._loss_sum(batch, smoothing=0.0)
        self.validation_loss_sum += loss_sum
        self.validation_tokens += batch.num_target_tokens

    def on_validation_epoch_start(self) -> None:
        self.validation_loss_sum = torch.zeros((), dtype=torch.float64, device=self.device)
        self.validation_tokens = 0  # a rank may have no batch of a small split

    def on_validation_epoch_end(self) -> None:
        total = torch.stack([self.validation_loss_sum, self.validation_loss_sum.new_tensor(self.validation_tokens)])
        total = self.trainer.strategy.reduce(total, reduce_op="sum")
        loss = float(total[0] / total[1])
        if not math.isfinite(loss):  # on every rank, and before translating with such weights
            raise RunError(
                f"the validation loss became {loss} at step {self.global_step}; lower {self.config.optim.rate_setting}"
            )
        self.last_validation_loss = loss

    def _loss_sum(self, batch: Batch, smoothing: float) -> Tensor:
        pieces: Any = batch[:3]
        how: dict[str, Any] = {"smoothing": smoothing, "bfloat16": self.config.hardware.precision == "bf16"}
        how |= {"padded": batch.source_padded, "packed": self.packed and self.training}
        if self.compiled is None or not self.training:
            return loss_sum(self.model, *pieces, real=batch.num_target_tokens, **how)
        if batch.source_BS.shape[1]:
            pieces = to_edges(*pieces)
            how["padded"] |= pieces[0].shape != batch.source_BS.shape
        number = pieces[2].numel()
        return self.compiled(self.model, *pieces, real=number if number == batch.num_target_tokens else None, **how)

    def configure_optimizers(self) -> Any:
        """Adam; with weight decay AdamW (Loshchilov and Hutter 2019), which decays the matrices of linear layers alone,
        as minGPT does: no bias, norm or embedding, and no parameter of a position scheme, so that schemes are compared
        under the same penalty.
        """
        optim = self.config.optim
        parameters: Any = self.parameters()
        if optim.weight_decay:
            added = [stack.positions for stack in self.model.stacks() if stack.positions is not None]
            of_positions = {part for module in added for part in module.modules()}
            layers = [part for part in self.modules() if part not in of_positions]
            linear = [part.weight for part in layers if isinstance(part, torch.nn.Linear)]
            others = [other for other in self.parameters() if all(other is not weight for weight in linear)]
            parameters = [{"params": linear, "weight_decay": optim.weight_decay}, {"params": others}]
        betas, epsilon = (optim.adam_beta1, optim.adam_beta2), optim.adam_epsilon
        optimizer = torch.optim.Adam(parameters, 1.0, betas, epsilon, fused=True, decoupled_weight_decay=True)
        d_model = self.config.model.d_model
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: learning_rate(done + 1, optim, d_model))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}
