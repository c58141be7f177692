"""The speed and memory cost of loading batches of a prepared corpus, measured in a process of its own."""

from __future__ import annotations

import itertools
import time
from concurrent.futures.process import BrokenProcessPool

from rpr.config.train import DataConfig
from rpr.data.workers import process_pool
from rpr.errors import RunError
from rpr.io.resources import resident_peak

SEED = 1  # of the batches; their speed does not depend on it


def measure_loader(
    data: DataConfig, max_tokens_per_microbatch: int, microbatches_per_step: int, batches: int
) -> dict[str, float]:
    """Seconds from the start of a fresh process to its first batch, by part; then the speed in one process.

    `import_seconds` covers the start of Python and the import of torch; `open_seconds` the check of the corpus digests
    and of the cache, which must exist; `plan_seconds` the lengths and the plan; `first_batch_seconds` an epoch's order
    and a batch. Tokens exclude padding, source and target together. Raises DataError as opening the cache does;
    RunError if that process dies.
    """
    try:
        with process_pool(1) as pool:
            arguments = (data, max_tokens_per_microbatch, microbatches_per_step, batches, time.monotonic())
            return pool.submit(_measure, *arguments).result()  # the death of the process ends the wait
    except BrokenProcessPool:
        raise RunError(
            "the process of the loader benchmark was killed, possibly because memory ran out; try a smaller corpus"
        ) from None


def _measure(
    data: DataConfig, max_tokens_per_microbatch: int, microbatches_per_step: int, num_batches: int, started: float
) -> dict[str, float]:
    from torch.utils.data import DataLoader

    from rpr.data.batches import TrainingBatches, TranslationDataset
    from rpr.data.cache import prepare
    from rpr.data.windows import training_split

    times = [started, time.monotonic()]
    split = training_split(prepare(data), data)
    times.append(time.monotonic())
    batches = TrainingBatches(split, max_tokens_per_microbatch, microbatches_per_step, SEED)
    times.append(time.monotonic())
    stream = iter(DataLoader(TranslationDataset(split), sampler=batches, batch_size=None))
    next(stream)
    times.append(time.monotonic())
    tokens = 0
    for _ in range(num_batches):
        batch = next(stream)
        tokens += batch.num_source_tokens + batch.num_target_tokens
    times.append(time.monotonic())
    padding_waste = batches.padding_waste()
    times.append(time.monotonic())
    batches.step_microbatches(batches.steps_per_epoch)  # the first of the next epoch
    times.append(time.monotonic())
    started_in, opened_in, planned_in, first_in, seconds, padding_seconds, order_seconds = (
        after - before for before, after in itertools.pairwise(times)
    )
    return {
        "pairs": len(split),
        "units": batches.microbatches_per_epoch,
        "import_seconds": started_in,
        "open_seconds": opened_in,
        "plan_seconds": planned_in,
        "first_batch_seconds": first_in,
        "order_seconds": order_seconds,
        "batches": num_batches,
        "batches_per_second": num_batches / seconds,
        "tokens_per_second": tokens / seconds,
        "padding_waste": padding_waste,
        "padding_seconds": padding_seconds,
        "peak_bytes": resident_peak(),
    }
