"""rpr-cli train fast_dev_run=true: a run tried out before its days begin, in a folder that is removed. The setting has
the name of Lightning's, to which it is not passed.
"""

import gc
import math
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import torch

from rpr.config.train import TrainConfig
from rpr.data.cache import PreparedData
from rpr.decode.engine import search_of, translate_sources
from rpr.environment import is_first_rank
from rpr.errors import RunError
from rpr.kinds import TEXT
from rpr.paths import user_path
from rpr.runs import loading, runtime
from rpr.runs.loading import checkpoints, model_weights
from rpr.scoring.run import evaluated_model, score_run
from rpr.signals import signals_deferred
from rpr.training import fit, launch
from rpr.training.module import LONGEST_STEPS

STEPS = 2 * LONGEST_STEPS
SENTENCES, EXTRA_TOKENS, PAGE_TOKENS = 10, 10, 1024  # what is translated, each so much longer; or read of documents


@contextmanager
def folder(config: TrainConfig) -> Iterator[Path]:
    """Where the run is tried out, the same on all nodes: beside the runs, whose disk is tried as well. The first node
    removes it, whatever ended the block.
    """
    job = launch.slurm_job(config.hardware) if config.hardware.num_nodes > 1 else None
    number = os.getpid() if job is None else job.raw_job_id
    run_dir = user_path(config.runs_dir).absolute() / f".preflight-{config.run_id}-{number}"
    try:
        yield run_dir
    finally:
        if job is None or job.node == 0:
            with signals_deferred(), suppress(OSError):
                shutil.rmtree(run_dir, ignore_errors=True)
                run_dir.parent.rmdir()  # unless it has runs


def work(config: TrainConfig, run_dir: Path, data: PreparedData) -> None:
    """What a run does, on every rank: steps with the longest rows, then steps as in training, checkpoints, a resume and
    a little of its evaluation. The first rank prints what that took. Raises RunError if the resumed training has other
    weights on a CPU, whose sums are exact, and as fit.
    """
    runtime.set_up(config.hardware)
    every = {"validate_every_n_steps": STEPS, "checkpoint_every_n_steps": LONGEST_STEPS}
    short = {"max_steps": STEPS, "checkpoint_every_n_minutes": None, "keep_checkpoints": 2, "average_checkpoints": 1}
    recipe = config.optim.model_copy(update=every | short)
    tried = config.model_copy(update={"optim": recipe, "stop_after_minutes": None})
    # 1. The steps, with a checkpoint in the middle and at the end.
    _, parameters, training = fit.fit(tried, data, run_dir)
    # 2. The second half again, from the checkpoint in the middle.
    resumed = run_dir / "resumed"
    if is_first_rank():
        (resumed / "checkpoints").mkdir(parents=True)
        shutil.copy(checkpoints(run_dir / "checkpoints")[0][1], resumed / "checkpoints")
    gc.collect()  # the first model
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    fit.fit(tried, data, resumed)
    if not is_first_rank():
        return
    # 3. The weights of both, and what comes after training.
    last, again = (checkpoints(of / "checkpoints")[-1][1] for of in (run_dir, resumed))
    weights, others = model_weights(last), model_weights(again)
    difference = max(float((weights[name] - others[name]).abs().max()) for name in weights)
    if difference and config.hardware.accelerator == "cpu":
        raise RunError(f"fast_dev_run: a resumed training has other weights, by up to {difference:.2g}")
    begin = time.monotonic()
    evaluated = _evaluate(tried, data, run_dir)
    # 4. What that took, and what the whole training will take.
    optim, speed, memory = config.optim, training.steps_per_second or math.nan, training.peak_memory_bytes or 0
    size, free = last.stat().st_size / 1e6, shutil.disk_usage(run_dir).free / 1e9
    exact = f", up to {difference:.2g} (sums on a GPU are not exact)" if difference else ""
    device = runtime.device_name(config.hardware)
    print(f"{config.label}: {STEPS} steps of {parameters / 1e6:.3g} M parameters on {device}")
    for name, value in {
        "peak memory": f"{memory / 1e6:,.0f} MB ({training.peak_memory_kind}), with the longest rows",
        "speed": f"{speed:.3g} steps/s, {training.target_tokens_per_second or math.nan:,.0f} target tokens/s",
        "whole training": f"{optim.max_steps:,} steps in {optim.max_steps / speed / 3600:,.2f} hours; validation and "
        "checkpoints not counted",
        "disk": f"{optim.kept_checkpoints} checkpoints of {size:,.1f} MB; {free:,.0f} GB are free",
        "resumed": f"the weights of a training never stopped{exact}",
        "evaluation": f"{evaluated} in {time.monotonic() - begin:,.1f} s",
    }.items():
        print(f"  {name:<14}  {value}", flush=True)


def _evaluate(config: TrainConfig, data: PreparedData, run_dir: Path) -> str:
    """Translate a few sentences, or read a page; returns what was done."""
    system = evaluated_model(config, *loading.model_of(config, run_dir, None, len(data.vocabulary)))
    split = next((name for name in config.evaluation.test_splits if name in data.splits), "validation")
    if config.data.kind is TEXT:
        little = {"test_splits": (split,), "text_tokens": PAGE_TOKENS, "context_lengths": (), "bootstrap_samples": 0}
        config = config.model_copy(update={"evaluation": config.evaluation.model_copy(update=little)})
        score_run(config, data, system, run_dir)
        return f"{PAGE_TOKENS:,} tokens of {split} read"
    search = replace(search_of(config.evaluation), max_extra_length=EXTRA_TOKENS)
    sources = data.split(split).first("source", SENTENCES)
    translate_sources(system.engine, sources, data.vocabulary, search)
    return f"{len(sources)} sentences of {split} translated"
