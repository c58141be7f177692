"""The speed and memory cost of loading batches of a prepared corpus, measured in a dedicated process:
`python -m rpr.bench.loader` with a Request as JSON prints a LoaderSpeed or PlanSpeed as JSON.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import numpy as np

from rpr.config.train import DataConfig
from rpr.data.workers import own_python, peak_bytes
from rpr.errors import RunError

T = TypeVar("T")
SEED = 1  # of the batches; their speed does not depend on it


@dataclass(frozen=True)
class Request:
    """The corpus (a DataConfig as JSON), the batches, and the time at which the process was started. With `copies`,
    only the plan is measured, for this many copies of the corpus.
    """

    data: dict[str, Any]
    max_tokens_per_microbatch: int
    microbatches_per_step: int
    batches: int
    copies: int | None
    started: float


@dataclass(frozen=True)
class LoaderSpeed:
    """Seconds from the start of the process to its first batch, by part; then the speed in one process.

    `import_seconds` covers the start of Python and the import of torch; `open_seconds` the check of the corpus digests
    and of the cache; `plan_seconds` the lengths and the plan; `first_batch_seconds` an epoch's order and a batch.
    Tokens exclude padding, source and target together.
    """

    pairs: int
    units: int
    import_seconds: float
    open_seconds: float
    plan_seconds: float
    first_batch_seconds: float
    order_seconds: float
    batches: int
    batches_per_second: float
    tokens_per_second: float
    padding_waste: float
    padding_seconds: float
    peak_bytes: int


@dataclass(frozen=True)
class PlanSpeed:
    """The plan of a corpus several times as large, made by repeating this one's lengths; one epoch's order is held
    while the next is drawn, as in training.
    """

    pairs: int
    units: int
    plan_seconds: float
    order_seconds: float
    padding_waste: float
    padding_seconds: float
    peak_bytes: int


def measure_loader(
    data: DataConfig, max_tokens_per_microbatch: int, microbatches_per_step: int, batches: int
) -> LoaderSpeed:
    """Measure in a fresh process; the cache must exist. Raises RunError if that process fails."""
    return LoaderSpeed(**_measure(data, max_tokens_per_microbatch, microbatches_per_step, batches, None))


def measure_plan(data: DataConfig, max_tokens_per_microbatch: int, copies: int) -> PlanSpeed:
    """As measure_loader, for the plan of a corpus of `copies` copies of this one."""
    return PlanSpeed(**_measure(data, max_tokens_per_microbatch, 1, 0, copies))


def _measure(
    data: DataConfig, max_tokens_per_microbatch: int, microbatches_per_step: int, batches: int, copies: int | None
) -> dict[str, Any]:
    settings = data.model_dump(mode="json")
    request = Request(settings, max_tokens_per_microbatch, microbatches_per_step, batches, copies, time.monotonic())
    command, environment = own_python("rpr.bench.loader")
    done = subprocess.run(
        [*command, json.dumps(asdict(request))], env=environment, stdout=subprocess.PIPE, text=True, process_group=0
    )
    if done.returncode:
        raise RunError(f"the measuring process ended with exit code {done.returncode}; see its message above")
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


def main() -> None:
    request = Request(**json.loads(sys.argv[1]))
    print(json.dumps(asdict(_loader(request) if request.copies is None else _plan(request, request.copies))))


def _loader(request: Request) -> LoaderSpeed:
    from torch.utils.data import DataLoader

    from rpr.data.batches import TrainingBatches, TranslationDataset
    from rpr.data.cache import prepare

    times = [request.started, time.monotonic()]
    split = prepare(DataConfig.model_validate(request.data)).split("train")
    times.append(time.monotonic())
    batches = TrainingBatches(split, request.max_tokens_per_microbatch, request.microbatches_per_step, SEED)
    times.append(time.monotonic())
    stream = iter(DataLoader(TranslationDataset(split), sampler=batches, batch_size=None))
    next(stream)
    times.append(time.monotonic())
    tokens = 0
    for _ in range(request.batches):
        batch = next(stream)
        tokens += batch.num_source_tokens + batch.num_target_tokens
    seconds = time.monotonic() - times[-1]
    parts = [after - before for before, after in itertools.pairwise(times)]
    padding_waste, padding_seconds = _timed(batches.padding_waste)
    _, order_seconds = _timed(
        lambda: batches.step_microbatches(batches.steps_in_epoch(0))
    )  # the first of the next epoch
    return LoaderSpeed(
        pairs=len(split),
        units=batches.microbatches_in_epoch(0),
        import_seconds=parts[0],
        open_seconds=parts[1],
        plan_seconds=parts[2],
        first_batch_seconds=parts[3],
        order_seconds=order_seconds,
        batches=request.batches,
        batches_per_second=request.batches / seconds,
        tokens_per_second=tokens / seconds,
        padding_waste=padding_waste,
        padding_seconds=padding_seconds,
        peak_bytes=peak_bytes(),
    )


def _plan(request: Request, copies: int) -> PlanSpeed:
    import torch  # noqa: F401  part of the memory of a training process

    from rpr.data.cache import prepare
    from rpr.data.plan import Plan

    split = prepare(DataConfig.model_validate(request.data)).split("train")
    source, target = np.tile(split.source_lengths, copies), np.tile(split.target_lengths, copies)
    del split
    plan, plan_seconds = _timed(lambda: Plan(source, target, request.max_tokens_per_microbatch))
    first = plan.epoch(SEED, 0)
    second, order_seconds = _timed(lambda: plan.epoch(SEED, 1))
    padding_waste, padding_seconds = _timed(lambda: plan.padding_waste(first.pair_order, source, target))
    assert len(first.pair_order) == len(second.pair_order)
    return PlanSpeed(
        pairs=len(plan.cell),
        units=len(plan.starts),
        plan_seconds=plan_seconds,
        order_seconds=order_seconds,
        padding_waste=padding_waste,
        padding_seconds=padding_seconds,
        peak_bytes=peak_bytes(),
    )


def _timed(call: Callable[[], T]) -> tuple[T, float]:
    start = time.perf_counter()
    result = call()
    return result, time.perf_counter() - start


if __name__ == "__main__":
    main()
