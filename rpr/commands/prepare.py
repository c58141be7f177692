"""rpr-cli prepare: corpus -> vocabulary -> token cache."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from rpr.config import PrepareConfig
from rpr.data.cache import prepare

SECONDS_BETWEEN_LINES = 3


def run(config: PrepareConfig) -> None:
    data = prepare(config.data, progress(config.data.name))
    print(data.directory)
    synthetic = " (synthetic)" if data.meta.synthetic else ""
    print(
        f"  {data.meta.name}{synthetic}: vocabulary of {len(data.vocabulary)} pieces, "
        f"{data.meta.dropped or 'no'} pairs dropped"
    )
    for name in data.splits:
        split = data.split(name)
        source, target = split.source_lengths, split.target_lengths
        print(
            f"  {name:<11} {len(split):>9,} pairs; pieces a sentence: "
            f"source {source.mean():.1f} (longest {source.max()}), "
            f"target {target.mean():.1f} (longest {target.max()})"
        )


def progress(name: str) -> Callable[[int, int, str], None]:
    """Tells on stderr how far a preparation is, every few seconds."""
    shown_at = 0.0

    def tell(done: int, total: int, what: str) -> None:
        nonlocal shown_at
        if done == total or time.monotonic() - shown_at > SECONDS_BETWEEN_LINES:
            shown_at = time.monotonic()
            print(f"{name}: {what} {done:,}/{total:,}", file=sys.stderr, flush=True)

    return tell
