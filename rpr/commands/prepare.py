"""rpr-cli prepare: corpus -> vocabulary -> token cache."""

from __future__ import annotations

import sys
import time

from rpr.config import PrepareConfig
from rpr.data.cache import prepare


def run(config: PrepareConfig) -> None:
    shown_at = [0.0]

    def progress(done: int, total: int, what: str) -> None:
        if done == total or time.monotonic() - shown_at[0] > 2:
            shown_at[0] = time.monotonic()
            print(f"{config.data.name}: {what} {done:,}/{total:,}", file=sys.stderr, flush=True)

    data = prepare(config.data, progress)
    print(data.directory)
    synthetic = " (synthetic)" if data.meta.synthetic else ""
    print(f"  {data.meta.name}{synthetic}: vocabulary of {len(data.vocabulary)} pieces, {data.meta.dropped or 'no'} pairs dropped")
    for name in data.splits:
        split = data.split(name)
        source, target = split.source_lengths, split.target_lengths
        print(
            f"  {name:<11} {len(split):>9,} pairs; pieces a sentence: source {source.mean():.1f} (longest {source.max()}), "
            f"target {target.mean():.1f} (longest {target.max()})"
        )
