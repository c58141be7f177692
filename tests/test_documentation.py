"""README.md and docs/ against the code: commands run on two tiny runs, or at least compose; Python runs; links and
paths exist; shown output, figures and layers are the real ones; README and glossary are short.
"""

import doctest
import importlib.util
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from rpr.cli import app
from rpr.cli.positionals import to_overrides
from rpr.compose import composition
from rpr.model.positions import scheme
from rpr.sweep import spec
from rpr.validation import validate
from tests.conftest import TINY, TINY_MODEL
from tests.data.helpers import write_lines

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[(?:!\[[^\]]*\]\([^)]*\)|[^\]])*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
COMMITTED, SAMPLES = "runs_dir=sweeps/demo/", "docs/examples"  # reports without training; corpora
MOST_WORDS, MOST_TERMS = 900, 15
# Commands that are run, with overrides for speed; the others are only composed.
RUN = {"compare": ["samples=100", "trials=100"], "diff": [], "evaluate": [], "generate": [], "translate": []}


class Fence(NamedTuple):
    page: Path
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.name}: {self.text[:40]}"


class Command(NamedTuple):
    """A line of a `console` fence after `$ `, and the output shown below it."""

    page: Path
    line: str
    shown: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page.name}: {' '.join(words_of(self.line))}"


def fences(page: Path) -> list[Fence]:
    return [Fence(page, *found.groups()) for found in FENCE.finditer(page.read_text(encoding="utf-8"))]


def fences_in(language: str) -> list[Fence]:
    return [fence for page in PAGES for fence in fences(page) if fence.language == language]


def commands(page: Path) -> Iterator[Command]:
    for fence in fences(page):
        if fence.language == "console":
            for part in re.split(r"^\$ ", fence.text.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
                line, *shown = part.splitlines()
                yield Command(page, line, tuple(shown))


def words_of(line: str) -> list[str]:
    return shlex.split(line, comments=True)


COMMANDS = list({tuple(words_of(one.line)): one for page in reversed(PAGES) for one in commands(page)}.values())


class Home(NamedTuple):
    """A folder with a corpus, files of sentences, two finished tiny runs of the sweep `quick` and one on documents."""

    folder: Path
    relative: str
    absolute: str
    text: str

    def filled_in(self, text: str) -> str:
        """With real paths instead of the examples."""
        for example, real in {
            "runs/NAME-HASH": self.relative,
            "runs/A": self.absolute,
            "runs/B": self.relative,
            "runs/TEXT-HASH": self.text,
            "/data/multi30k_en_de": str(self.folder / "corpus"),
            "/data/wmt_mini_en_de": str(self.folder / "corpus"),
            "name=mine data.path=DIR": f"name=mine data.path={self.folder / 'corpus'}",
            "data.path=DIR": f"data.path={self.folder / 'sweeps' / 'quick.yaml'}",
            "path/to/mine.yaml": "mine.yaml",
            "num_validation=50": "num_validation=12",
            "optim.max_steps=20": "optim.max_steps=5",
        }.items():
            text = text.replace(example, real)
        return text


@pytest.fixture(scope="module")
def home(tmp_path_factory, cache_dir):
    folder = tmp_path_factory.mktemp("documentation")
    for name in ("sweeps", "docs"):
        (folder / name).symlink_to(ROOT / name)
    (folder / "source.txt").write_text("the dog sees the cat\n", encoding="utf-8")
    (folder / "prompts.txt").write_text("def f(\n\n", encoding="utf-8")
    (folder / "mine.yaml").write_text("jobs: [position=none]\n", encoding="utf-8")
    for split in ("train", "validation", "test_2016_flickr", "test"):
        write_lines(folder / "corpus" / split, [("one", "eins"), ("two", "zwei")])
    folders = (f"data.cache_dir={cache_dir}", f"runs_dir={folder / 'runs'}")
    recipe = ("optim.max_steps=5", "optim.validate_every_n_steps=5", "optim.checkpoint_every_n_steps=1")
    rest = ("evaluation.bootstrap_samples=0", "evaluation.test_splits=[test]", "hardware.threads=1")
    text = ["data=text", f"data.path={folder / 'sweeps' / 'quick.yaml'}", "data.context_length=32"]
    runs = {}
    for name, words in (
        ("relative", [*TINY, "position=relative", "sweep=quick"]),
        ("absolute", [*TINY, "position=absolute", "sweep=quick"]),
        ("text", [*text, *TINY_MODEL, "model.architecture=decoder_only", "position=rope"]),
    ):
        settings = [*words, *folders, *recipe, *rest]
        assert app.main(["train", *settings]) == 0
        runs[name] = f"runs/{composition.compose_train(settings).run_dir_name}"
    return Home(folder, **runs)


@pytest.fixture(autouse=True)
def _in_tmp_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def compose(words: list[str]) -> None:
    """Compose a sub-command without running it."""
    name, *rest = words
    if name == "sweep":
        assert app.main([*words, "--dry-run"]) == 0
    elif name == "train" and "-m" in rest:
        for job in composition.expand_multirun([word for word in rest if word != "-m"]):
            composition.compose_train(job)
    elif name == "train":  # the runs here have another model than documented ones start from
        composition.compose_train([word for word in rest if not word.startswith("from=")])
    else:
        validate(app._config_class(name), composition.compose(name, to_overrides(name, rest)))


def first_job(sweep: spec.SweepSpec) -> spec.SweepSpec:
    """The sweep with its first job only; tests/sweep composes all of them."""
    row = tuple(word if "[" in word else word.partition(",")[0] for word in sweep.rows[0])
    return replace(sweep, rows=(row,))


def check(command: str, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run or compose a command, without `>`; of a sweep only the first job."""
    monkeypatch.chdir(home.folder)
    read = spec.read
    if SAMPLES not in command:
        monkeypatch.setattr(spec, "read", lambda name: first_job(read(name)))
    program, *rest = words_of(home.filled_in(command))
    if ">" in rest:
        del rest[rest.index(">") :]
    if "<" in rest:
        *rest, _, name = rest
        monkeypatch.setattr(sys, "stdin", Path(name).open(encoding="utf-8"))  # noqa: SIM115
    if program == "make":
        assert re.search(rf"^{rest[0]}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    elif program == "eval":
        assert app.main(words_of(rest[0].strip("$()"))[1:]) == 0
    elif program == "pip":
        extras = PROJECT["project"]["optional-dependencies"].values()
        assert rest[:3] == ["install", "-c", "constraints.txt"]
        assert {*rest[3:]} <= {re.split("[<>=]", requirement)[0] for extra in extras for requirement in extra}
    elif program == "rpr-cli":
        name = rest[0]
        if rest == ["train", f"run={home.relative}"] or COMMITTED in command or {"--help", "--cfg"} & {*rest}:
            assert not app.main(rest)
        elif name in RUN and rest[:2] != ["evaluate", home.text]:
            assert app.main([*rest, *RUN[name]]) == 0
        else:
            compose(rest)
    else:
        assert (program, *rest) in {(".", ".venv/bin/activate"), ("pip-audit", "-r", "constraints.txt")}


def test_every_command_is_documented():
    assert len(COMMANDS) > 40
    for name in app.COMMANDS:
        assert any(command.line.startswith(f"rpr-cli {name} ") for command in COMMANDS), f"{name} is on no page"


@pytest.mark.parametrize("command", COMMANDS, ids=str)
def test_command_runs_or_composes(command, home, monkeypatch, capfd):
    check(command.line, home, monkeypatch)
    printed = capfd.readouterr()
    if COMMITTED in command.line or SAMPLES in command.line:  # the output is known
        assert {*command.shown} - {"..."} <= {*printed.out.splitlines(), *printed.err.splitlines()}


@pytest.mark.parametrize("fence", fences_in("python"), ids=str)
def test_python_runs(fence, home, monkeypatch):
    monkeypatch.chdir(home.folder)
    monkeypatch.setattr(scheme, "REGISTERED", dict(scheme.REGISTERED))
    code = compile(home.filled_in(fence.text), str(fence.page), "exec", dont_inherit=True)
    exec(code, {"__name__": "example"})


@pytest.mark.parametrize("fence", fences_in("pycon"), ids=str)
def test_python_prints_what_is_shown(fence, home, monkeypatch):
    monkeypatch.chdir(home.folder)
    session = doctest.DocTestParser().get_doctest(home.filled_in(fence.text), {}, str(fence.page), None, None)
    failures = []
    assert doctest.DocTestRunner().run(session, out=failures.append).attempted and not failures, "".join(failures)


@pytest.mark.parametrize("fence", fences_in("yaml"), ids=str)
def test_yaml_is_a_sweep_or_a_choice(fence):
    Path("shown.yaml").write_text(fence.text, encoding="utf-8")
    if "jobs:" in fence.text:
        assert all(len(composition.expand_multirun(row)) > 1 for row in spec.read("shown.yaml").rows)
    else:
        assert {"defaults", "name"} <= {*yaml.safe_load(fence.text)}


def prose(page: Path) -> str:
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors of the headings, as on GitHub."""
    titles = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def dead_links(page: Path, text: str) -> list[str]:
    """Targets that are no file of the repository, or no heading in it."""
    found = []
    for target in (one or other for one, other in LINK.findall(text)):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        if not path.exists() or not path.is_relative_to(ROOT) or (anchor and anchor not in anchors(path)):
            found.append(target)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_paths_and_modules_exist(page):
    assert dead_links(page, prose(page)) == []
    named = re.findall(r"`([^`\n]+)`", prose(page)) + re.findall(r"^(\w+/\S*)  ", page.read_text("utf-8"), re.MULTILINE)
    paths = [one for one in named if re.fullmatch(r"(rpr|conf|sweeps|tests|docs)/[\w./*-]*", one)]
    paths += [one.replace(".", "/") + "*" for one in named if re.fullmatch(r"rpr\.[a-z_0-9.]+", one)]
    examples = {"conf/model/mine.yaml", "conf/optim/mine.yaml"}
    absent = [one for one in paths if one not in examples and not list(ROOT.glob(one.rstrip("/")))]
    found = [one for one in absent if not list(ROOT.glob(one.rpartition("/")[0] + ".py"))]  # a name in a module
    assert not found


def test_layers_equal_the_import_contract():
    page = ROOT / "docs" / "architecture.md"
    (diagram,) = [fence.text for fence in fences(page) if fence.language == "text"]
    shown = [set(re.split(r" [|:] ", re.split("  +", line)[1])) for line in diagram.splitlines()]
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["name"].startswith("layers")]
    assert shown == [set(re.split(r" [|:] ", layer.replace("rpr.", ""))) for layer in layers] and len(layers) <= 8


def test_the_reference_has_the_settings_of_conf():
    path = ROOT / "docs" / "render_settings.py"
    spec_of_file = importlib.util.spec_from_file_location("render_settings", path)
    assert spec_of_file is not None and spec_of_file.loader is not None
    module = importlib.util.module_from_spec(spec_of_file)
    spec_of_file.loader.exec_module(module)
    assert module.page() == module.PAGE.read_text(encoding="utf-8"), "run python docs/render_settings.py"


def section(page: Path, title: str) -> str:
    return page.read_text(encoding="utf-8").partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_figures_of_the_readme_are_in_the_results():
    text = section(README, "Results")
    pages = [ROOT / "sweeps" / "RESULTS.md", *(ROOT / link for link in re.findall(r"\((sweeps/[^)#]+\.md)", text))]
    shown, results = (set(re.findall(r"\d+\.\d+", each)) for each in (text, "".join(map(Path.read_text, pages))))
    assert len(shown) > 5 and shown <= results


def test_readme_and_glossary_are_short_and_every_page_is_linked():
    assert len(README.read_text(encoding="utf-8").split()) <= MOST_WORDS
    assert all(f"](docs/{page.name})" in prose(README) for page in PAGES[1:])
    rows = [line for line in (ROOT / "docs" / "glossary.md").read_text("utf-8").splitlines() if line.startswith("| ")]
    assert 0 < len(rows) - 1 <= MOST_TERMS
