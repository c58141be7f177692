"""`rpr-cli` in separate processes, and small trained runs."""

from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from rpr.cli import app
from tests.conftest import TINY
from tests.system.faults import Forks

KEPT_BY_DESIGN = (".lock",)  # removing a lock would admit two processes
FOUR_STEPS = (
    "optim.max_steps=4", "optim.warmup_steps=4", "optim.checkpoint_every_n_steps=2", "optim.validate_every_n_steps=4",
    "evaluation.test_splits=[]", "hardware.threads=1", "model.relative_defaults.clip_distance=3",
)  # fmt: skip
# A hardly trained model has near-ties, which bfloat16 products resolve differently from batch to batch.
EXACT = ("hardware.threads=1", "hardware.matmul_precision=highest")
SCORED = (
    "optim.max_steps=20", "optim.warmup_steps=20", "optim.checkpoint_every_n_steps=10", "optim.average_checkpoints=3",
    "optim.validate_every_n_steps=10", "evaluation.beam_size=2", "evaluation.test_splits=[test,long]",
    "evaluation.bootstrap_samples=100", "position.tables=shared_by_heads", "position.clip_distance=3", "sweep=mine",
    *EXACT,
)  # fmt: skip


@pytest.fixture(scope="session")
def forks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forks]:
    """Starts commands without waiting for their imports, which this process has."""
    from rpr.commands import evaluate, export, translate  # noqa: F401
    from rpr.training import fit  # noqa: F401

    forks = Forks(tmp_path_factory.mktemp("forks"))
    yield forks
    forks.close()


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory, cache_dir: Path, small_data: object) -> Callable[..., Path]:
    """The folder of a run of four steps with some overrides, trained once; not to be changed."""

    @cache
    def run(*overrides: str) -> Path:
        runs = tmp_path_factory.mktemp("small")
        command = ["train", *TINY, *FOUR_STEPS, *overrides, f"data.cache_dir={cache_dir}", f"runs_dir={runs}"]
        assert app.main(command) == 0
        return next(runs.glob("*/record.json")).parent

    return run


@pytest.fixture(scope="session")
def scored_run(small_run: Callable[..., Path]) -> Path:
    """The folder of a run of twenty steps of sweep `mine` with two checkpoints and its scores; not to be changed."""
    return small_run(*SCORED)


def tree(root: Path) -> dict[str, tuple[int, int] | None]:
    """Size and modification time of every file and link below a folder; None for folders."""
    found = {}
    for path in root.rglob("*"):
        if not path.name.endswith(KEPT_BY_DESIGN):
            state = path.lstat()
            folder = path.is_dir() and not path.is_symlink()
            found[str(path)] = None if folder else (state.st_size, state.st_mtime_ns)
    return found


@pytest.fixture
def refused(cli: Callable[..., Any]) -> Callable[..., str]:
    """Run a command that must be refused; its error message without the prefix."""

    def run(*words: str, remarks_start: str | tuple[str, ...] = "\0", nothing_written: bool = True) -> str:
        """`remarks_start`: how earlier lines on stderr may begin."""
        before = tree(Path.cwd())
        out, err = cli(*words, code=2)
        *remarks, line = err.splitlines() or [""]
        assert out == "", (out, err)
        assert line.startswith("rpr-cli: ") and len(line) > 25 and err.endswith("\n"), err
        assert all(remark.startswith(remarks_start) for remark in remarks), err
        assert "Traceback" not in err and "HYDRA_FULL_ERROR" not in err and "precious" not in err
        assert not nothing_written or tree(Path.cwd()) == before
        assert not Path("pwned").exists()
        return line.removeprefix("rpr-cli: ")

    return run
