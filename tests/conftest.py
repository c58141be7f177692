"""Shared by all tests: a small synthetic corpus, prepared once; a model that trains on it in seconds; an environment
without the user's settings. Fixtures import rpr, for which the process that starts pytest's workers need not wait.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import gc
import hashlib
import itertools
import os
import pickle
import string
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.processes import ProcessTree

if TYPE_CHECKING:
    from rpr.config.train import TrainConfig
    from rpr.data.cache import PreparedData
    from rpr.data.vocabulary import Vocabulary

TINY_MODEL = (
    "logger=none", "model.norm=post", "model.num_layers=1", "model.d_model=32", "model.num_heads=2", "model.d_ff=64",
    "optim.max_tokens_per_microbatch=512",
)  # fmt: skip
TINY = (  # a tiny run on a small corpus, without its folders
    "data.synthetic.num_train=2000", "data.synthetic.num_validation=24", "data.synthetic.num_test=24",
    "data.synthetic.num_long=12", "data.vocabulary_size=300", *TINY_MODEL, "evaluation.validation_sentences=0",
    "evaluation.max_extra_length=5",
)  # fmt: skip


ORDER = os.environ.get("RPR_TEST_ORDER")


def pytest_configure() -> None:
    """Before libraries are imported: no settings of the user, no network, and one thread, as threads do not speed up
    small tensors, and slow them down on a busy machine. Waiting for the disk takes a tenth of the tests' time; they end
    processes, never the machine.
    """
    for name in [*os.environ]:
        if name.startswith(("WANDB_", "RPR_", "HYDRA_", "COMP_LINE")):
            del os.environ[name]
    os.environ |= {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    os.fsync = lambda fd: None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`make test-slice` runs the tests in another order for each commit, until its time is up."""
    if ORDER:
        items.sort(key=lambda item: hashlib.sha256(f"{ORDER} {item.nodeid}".encode()).digest())


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # what is imported stays, and need not be visited again
    gc.set_threshold(100_000)  # a visit to all else for each 700 objects is 2% of the tests' time


@pytest.fixture(autouse=True, scope="session")
def coverage_environment() -> dict[str, str]:
    """The variables with which coverage measures child processes; removed from the environment, since a signal handler
    that raises while coverage holds its lock makes the process hang (7 of 100 interrupted translations).
    """
    names = [name for name in os.environ if name.startswith("COVERAGE_")]
    return {name: os.environ.pop(name) for name in names}


@pytest.fixture(autouse=True, scope="session")
def _compositions_are_kept(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Composing takes 0.06 s, and tests do it thousands of times: values are set in a copy with the same choices, which
    is read in a tenth of the time, also by other workers.
    """
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from omegaconf import OmegaConf

    from rpr.compose import hydra_bridge
    from rpr.io.atomic import replace_file
    from rpr.paths import choice_dirs, data_dir

    groups = {path.name for path in data_dir("conf").iterdir() if path.is_dir()}
    composed, parsed_word = hydra_bridge.compose, functools.cache(OverridesParser.create().parse_override)

    folder = tmp_path_factory.getbasetemp()
    kept = (folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "compositions"
    kept.mkdir(exist_ok=True)

    @functools.cache
    def of_choices(name: str, choices: tuple[str, ...], **options: bool) -> bytes:
        file = kept / hashlib.sha256(repr((name, choices, options)).encode()).hexdigest()
        if not file.exists():
            replace_file(file, pickle.dumps(composed(name, choices, **options)))
        return file.read_bytes()

    def compose(name: str, overrides: Sequence[str], config_dir: Path | None = None, **options: bool) -> Any:
        with contextlib.suppress(Exception):  # which Hydra explains below
            parsed = [parsed_word(word) for word in overrides]
            values = [word for word in parsed if word.key_or_group not in groups]
            plain = all(word.type is word.type.CHANGE and word.key_or_group[:5] != "hydra" for word in values)
            if plain and not choice_dirs(config_dir):
                choices = tuple(word.input_line for word in parsed if word not in values)
                settings = pickle.loads(of_choices(name, choices, **options))
                for word in values:
                    OmegaConf.update(settings, word.key_or_group, word.value())
                return settings
        return composed(name, overrides, config_dir, **options)

    hydra_bridge.compose = compose  # type: ignore[assignment]


@pytest.fixture(autouse=True, scope="session")
def _files_of_conf_are_read_once() -> None:
    """By Hydra, for which that is half of composing; a third of the rest are interpolations in lists of defaults, of
    which most files have none. Files of a user's folder may change.
    """
    from hydra._internal import defaults_list
    from hydra._internal.config_repository import ConfigRepository
    from omegaconf import base

    results: dict[tuple[str, ...], bytes] = {}
    load = ConfigRepository.load_config

    def load_config(self: ConfigRepository, config_path: str) -> Any:
        key = (config_path, *(str(source.path) for source in self.sources))
        if len(key) > 4:  # Hydra's own, conf/ and what is registered
            return load(self, config_path)
        if key not in results:
            results[key] = pickle.dumps(load(self, config_path))
        return pickle.loads(results[key])  # into which others are merged

    def interpolation_map(overrides: Any, defaults: Sequence[Any], self_added: bool) -> Any:
        return known(overrides, defaults, self_added) if any(one.is_interpolation() for one in defaults) else None

    known, defaults_list._create_interpolation_map = defaults_list._create_interpolation_map, interpolation_map
    base.parse = functools.cache(base.parse)
    ConfigRepository.load_config = load_config  # type: ignore[method-assign]
    ConfigRepository.__deepcopy__ = lambda self, _: copy.copy(self)  # type: ignore[attr-defined]  # its list is replaced


@pytest.fixture(autouse=True, scope="session")
def _seeds_are_of_the_cpu() -> None:
    """Without a GPU torch keeps each seed for one, with the stack of the call: 3% of the tests' time."""
    import torch

    if not torch.cuda.is_available():
        for devices in (torch.cuda, torch.xpu, torch.mtia):
            devices.manual_seed_all = lambda seed: None  # type: ignore[method-assign, assignment]


@pytest.fixture(autouse=True)
def _environment_stays() -> Iterator[None]:
    before = os.environ.copy()
    yield
    if os.environ.copy() != before:  # app changes it for the processes of a command
        os.environ.clear()
        os.environ.update(before)


def _default_torch_settings() -> None:
    """Undo what a command has set in this process."""
    import torch

    torch.set_float32_matmul_precision("highest")
    torch.set_num_threads(1)


_settings_of_module = pytest.fixture(autouse=True, scope="module")(_default_torch_settings)
_settings_of_test = pytest.fixture(autouse=True)(_default_torch_settings)


@pytest.fixture(scope="session")
def cache_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One token cache for all workers; it is keyed by content."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "cache"


@pytest.fixture
def tiny(cache_dir: Path, tmp_path: Path) -> list[str]:
    """Overrides of a run that takes seconds."""
    return [*TINY, f"data.cache_dir={cache_dir}", f"runs_dir={tmp_path / 'runs'}"]


@pytest.fixture
def tiny_config(tiny: list[str]) -> Callable[..., TrainConfig]:
    """The typed configuration of a tiny run with further overrides."""
    from rpr.compose.composition import compose_train

    return lambda *overrides: compose_train([*tiny, *overrides])


@pytest.fixture(scope="session")
def small_data(cache_dir: Path) -> PreparedData:
    """The small corpus, prepared."""
    from rpr.compose.composition import compose_train
    from rpr.data.cache import prepare

    return prepare(compose_train([*TINY, f"data.cache_dir={cache_dir}"]).data)


@pytest.fixture(scope="session")
def byte_fallback() -> Vocabulary:
    """1,024 pieces, bytes among them; of a, b, c and marks with the blank before them there is one each."""
    from rpr.data.vocabulary import Vocabulary, count_words

    words = ["".join(letters) for letters in itertools.product(string.ascii_lowercase[:12], repeat=3)]
    counts = count_words([*words, 'a b c . ! ? " ) , 。 ！ ？'] * 2)
    return Vocabulary.learn(counts, 1024)


@pytest.fixture(scope="session")
def random_run(tmp_path_factory: pytest.TempPathFactory, small_data: PreparedData, cache_dir: Path) -> Path:
    """A run with two checkpoints of random weights, which CTranslate2 supports: translations differ, some end with EOS,
    and beams are full.
    """
    from tests.small_models import let_some_translations_end, write_random_run

    settings = [*TINY, f"data.cache_dir={cache_dir}", "position.tables=shared_by_heads", "evaluation.beam_size=3"]
    folder = tmp_path_factory.mktemp("runs") / "random-weights"
    return write_random_run(folder, settings, small_data.vocabulary, let_some_translations_end, steps=(1, 2))


@pytest.fixture(scope="session")
def export_inputs() -> Callable[..., Any]:
    """What is exported of a model of tests.small_models, with some sentences."""
    from rpr.compose.composition import compose_train
    from tests import small_models

    vocabulary = small_models.make_vocabulary()
    config = compose_train(TINY)
    return lambda model, sentences=6: small_models.make_export_inputs(model, vocabulary, config, sentences)


@pytest.fixture(scope="session")
def assert_same() -> Callable[[Any, Any], None]:
    """Two checkpoints, or parts of them, are the same, tensors bit for bit."""
    import torch
    from torch.utils._pytree import tree_flatten

    def same(one: Any, other: Any) -> None:
        (parts, form), (others, other_form) = tree_flatten(one), tree_flatten(other)
        assert form == other_form
        for part, of_other in zip(parts, others, strict=True):
            assert torch.equal(part, of_other) if isinstance(part, torch.Tensor) else part == of_other

    return same


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Runs a command in this process, which must end with this exit code; its stdout and stderr."""
    from rpr.cli import app

    def run(*words: object, code: int = 0) -> Any:
        capfd.readouterr()
        try:
            ended = app.main([str(word) for word in words])
        except SystemExit as stop:
            ended = stop.code
        printed = capfd.readouterr()
        assert ended == code, printed.err
        return printed

    return run


@pytest.fixture
def unrendered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plots are neither drawn nor rendered, which takes most of the time of a report (drawn: tests/report)."""
    monkeypatch.setattr("rpr.report.plots.Plot.figure", lambda plot: None)
    monkeypatch.setattr("rpr.report.plots.rendered", lambda figure, kind="svg": f"<{kind}></{kind}>".encode())


@pytest.fixture(scope="session")
def wait_for() -> Callable[[Callable[[], bool], float], bool]:
    """Polls a condition for some seconds; whether it became true."""

    def wait(condition: Callable[[], bool], seconds: float) -> bool:
        end = time.monotonic() + seconds
        while not (ended := condition()) and time.monotonic() < end:
            time.sleep(0.005)
        return ended

    return wait


@pytest.fixture
def processes() -> Iterator[ProcessTree]:
    tree = ProcessTree()
    yield tree
    tree.kill()
