"""README.md and docs/ against the code: commands run on two tiny runs, or at least compose; Python runs; links and
paths exist; shown output, figures and layers are the real ones; README and glossary are short.
"""

import doctest
import importlib.util
import re
import shlex
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml

from rpr.cli import app
from rpr.cli.app import to_overrides
from rpr.compose import composition
from rpr.model.positions import scheme
from rpr.sweep import spec
from rpr.validation import validate
from tests.conftest import TINY, TINY_MODEL
from tests.data.helpers import write_lines

ROOT = Path(__file__).resolve().parents[1]
README = ROOT / "README.md"
PAGES = [README, *sorted((ROOT / "docs").glob("*.md"))]
TEXTS = {page: page.read_text(encoding="utf-8") for page in PAGES}
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
FENCE = re.compile(r"^```(\w*)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[(?:!\[[^\]]*\]\([^)]*\)|[^\]])*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
PROSE = {page: FENCE.sub("", text) for page, text in TEXTS.items()}
COMMITTED, SAMPLES = "runs_dir=sweeps/demo/", "docs/examples"  # reports without training; corpora
MOST_WORDS, MOST_TERMS = 900, 15
# Commands that are run, with overrides for speed; the others are only composed.
RUN = {name: [] for name in ("diff", "evaluate", "translate")}
RUN |= {"compare": ["samples=100", "trials=100"], "generate": ["max_new_tokens=8"]}


def fences_in(language: str) -> list[tuple[Path, str]]:
    found = [(page, *fence.groups()) for page, text in TEXTS.items() for fence in FENCE.finditer(text)]
    return [(page, text) for page, of_fence, text in found if of_fence == language]


def commands() -> dict[str, tuple[Path, set[str]]]:
    """Each line of a `console` fence after `$ `, with its page and the output shown below it."""
    found = {}
    for page, text in reversed(fences_in("console")):
        for part in re.split(r"^\$ ", text.replace("\\\n", " "), flags=re.MULTILINE)[1:]:
            line, *shown = part.splitlines()
            found[" ".join(line.partition("  #")[0].split())] = (page, {*shown} - {"..."})
    return found


COMMANDS = commands()
COMPOSED: set[str] = set()  # words that were in a composed command


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
            "/data/multi30k_en_de": "corpus",
            "/data/wmt_mini_en_de": "corpus",
            "name=mine data.path=DIR": "name=mine data.path=corpus",
            "data.path=DIR": "data.path=sweeps/quick.yaml",
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
    for name, text in {"source": "the dog sees the cat\n", "prompts": "def f(\n\n"}.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    (folder / "mine.yaml").write_text("jobs: [position=none]\n", encoding="utf-8")
    for split in ("train", "validation", "test_2016_flickr", "test"):
        write_lines(folder / "corpus" / split, [("one", "eins"), ("two", "zwei")])
    shared = [f"data.cache_dir={cache_dir}", f"runs_dir={folder / 'runs'}", "optim.max_steps=5", "hardware.threads=1"]
    shared += ["optim.validate_every_n_steps=5", "optim.checkpoint_every_n_steps=1", "evaluation.bootstrap_samples=0"]
    text = ["data=text", f"data.path={folder / 'sweeps' / 'quick.yaml'}", "data.context_length=32", *TINY_MODEL]
    runs = []
    for words in (
        [*TINY, "position=relative", "sweep=quick", "evaluation.test_splits=[test]"],
        [*TINY, "position=absolute", "sweep=quick", "evaluation.test_splits=[test]"],
        [*text, "model.architecture=decoder_only", "position=rope", "evaluation.test_splits=[]"],
    ):
        assert app.main(["train", *words, *shared]) == 0
        runs.append(f"runs/{composition.compose_train([*words, *shared]).run_dir_name}")
    return Home(folder, *runs)


def compose(name: str, *words: str) -> None:
    """Compose a sub-command without running it, if a word of it has not been composed."""
    new = {f"{name} {word}" for word in words} - COMPOSED
    COMPOSED.update(new)
    if name == "sweep" and new:
        assert app.main([name, *words, "--dry-run"]) == 0
    elif name == "train" and new:
        # The runs here have another model than documented ones start from.
        own = [word for word in words if word != "-m" and not word.startswith("from=")]
        for job in composition.expand_multirun(own) if "-m" in words else [own]:
            composition.compose_train(job)
    elif new:
        validate(app._config_class(name), composition.compose(name, to_overrides(name, words)))


def first_job(sweep: spec.SweepSpec) -> spec.SweepSpec:
    """The sweep with its first job only; tests/sweep composes all of them."""
    row = tuple(word if "[" in word else word.partition(",")[0] for word in sweep.rows[0])
    return sweep._replace(rows=(row,))


def check(command: str, home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run or compose a command, without `>`; of a sweep only the first job."""
    monkeypatch.chdir(home.folder)
    read = spec.read
    if SAMPLES not in command:
        monkeypatch.setattr(spec, "read", lambda name: first_job(read(name)))
    program, *rest = shlex.split(home.filled_in(command.partition(" > ")[0]), comments=True)
    if "<" in rest:
        *rest, _, name = rest
        monkeypatch.setattr(sys, "stdin", Path(name).open(encoding="utf-8"))  # noqa: SIM115
    if program == "make":
        assert re.search(rf"^{rest[0]}:", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    elif program == "pip":
        extras = PROJECT["project"]["optional-dependencies"].values()
        assert rest[:3] == ["install", "-c", "constraints.txt"]
        assert {*rest[3:]} <= {re.split("[<>=]", requirement)[0] for extra in extras for requirement in extra}
    elif program == "rpr-cli":
        if rest == ["train", f"run={home.relative}"] or COMMITTED in command or {"--help", "--cfg"} & {*rest}:
            assert not app.main(rest)
        elif rest[0] in RUN and rest[:2] != ["evaluate", home.text]:
            assert app.main([*rest, *RUN[rest[0]]]) == 0
        else:
            compose(*rest)
    else:
        assert (program, *rest) in {(".", ".venv/bin/activate"), ("pip-audit", "-r", "constraints.txt")}


@pytest.mark.usefixtures("unrendered")
@pytest.mark.parametrize("page", sorted({page for page, _ in COMMANDS.values()}), ids=lambda page: page.name)
def test_commands_run_or_compose(page, home, monkeypatch, capfd):
    for command, (of_page, shown) in COMMANDS.items():
        if of_page == page:
            with monkeypatch.context() as patch:
                check(command, home, patch)
            printed = capfd.readouterr()
            if COMMITTED in command or SAMPLES in command:  # the output is known
                assert shown <= {*printed.out.splitlines(), *printed.err.splitlines()}, command


def test_python_runs_and_prints_what_is_shown(home, monkeypatch):
    monkeypatch.chdir(home.folder)
    monkeypatch.setattr(scheme, "REGISTERED", dict(scheme.REGISTERED))
    for page, text in fences_in("python"):
        exec(compile(home.filled_in(text), str(page), "exec", dont_inherit=True), {"__name__": "example"})
    failures: list[str] = []
    for page, text in fences_in("pycon"):
        session = doctest.DocTestParser().get_doctest(home.filled_in(text), {}, str(page), None, None)
        assert doctest.DocTestRunner().run(session, out=failures.append).attempted and not failures, "".join(failures)


def test_yaml_is_a_sweep_or_a_choice():
    for _, text in fences_in("yaml"):
        shown = yaml.safe_load(text)
        rows = [shlex.split(row) for row in shown.get("jobs", ())]
        assert {"defaults", "name"} <= {*shown} or all(len(composition.expand_multirun(row)) > 1 for row in rows)


def dead_links(page: Path) -> list[str]:
    """Targets that are no file of the repository, or no heading in it, by its anchor on GitHub."""
    found = []
    for target in (one or other for one, other in LINK.findall(PROSE[page])):
        name, _, anchor = target.partition("#")
        path = (page.parent / name).resolve() if name else page
        is_there = path.exists() and path.is_relative_to(ROOT)
        if is_there and anchor:
            titles = re.findall(r"^#+ (.*)$", FENCE.sub("", path.read_text(encoding="utf-8")), re.MULTILINE)
            anchors = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
            is_there = anchor in anchors
        found += [] if is_there or re.match(r"[a-z]+:", target) else [target]
    return found


def test_links_paths_and_modules_exist():
    assert [link for page in PAGES for link in dead_links(page)] == []
    named = [name for text in PROSE.values() for name in re.findall(r"`([^`\n]+)`", text)]
    named += [path for text in TEXTS.values() for path in re.findall(r"^(\w+/\S*)  ", text, re.MULTILINE)]
    paths = [one for one in named if re.fullmatch(r"(rpr|conf|sweeps|tests|docs)/[\w./*-]*", one)]
    paths += [one.replace(".", "/") + "*" for one in named if re.fullmatch(r"rpr\.[a-z_0-9.]+", one)]
    examples = {"conf/model/mine.yaml", "conf/optim/mine.yaml"}
    absent = [one for one in paths if one not in examples and not list(ROOT.glob(one.rstrip("/")))]
    assert [one for one in absent if not list(ROOT.glob(one.rpartition("/")[0] + ".py"))] == []  # a name in a module


def test_layers_equal_the_import_contract():
    [diagram] = [text for page, text in fences_in("text") if page.name == "architecture.md"]
    shown = [set(re.split(r" [|:] ", re.split("  +", line)[1])) for line in diagram.splitlines()]
    contracts = PROJECT["tool"]["importlinter"]["contracts"]
    [layers] = [contract["layers"] for contract in contracts if contract["name"].startswith("layers")]
    assert shown == [set(re.split(r" [|:] ", layer.replace("rpr.", ""))) for layer in layers] and len(layers) <= 8


def test_the_reference_has_the_settings_of_conf():
    location = importlib.util.spec_from_file_location("render_settings", ROOT / "docs" / "render_settings.py")
    module = importlib.util.module_from_spec(location)
    location.loader.exec_module(module)
    assert module.page() == module.PAGE.read_text(encoding="utf-8"), "run python docs/render_settings.py"


def test_figures_of_the_readme_are_in_the_results():
    text = TEXTS[README].partition("\n## Results\n")[2].partition("\n## ")[0]
    pages = [ROOT / "sweeps" / "RESULTS.md", *(ROOT / link for link in re.findall(r"\((sweeps/[^)#]+\.md)", text))]
    shown, results = (set(re.findall(r"\d+\.\d+", each)) for each in (text, "".join(map(Path.read_text, pages))))
    assert len(shown) > 5 and shown <= results


def test_readme_and_glossary_are_short_and_every_page_and_command_is_there():
    assert len(TEXTS[README].split()) <= MOST_WORDS
    assert all(f"](docs/{page.name})" in PROSE[README] for page in PAGES[1:])
    rows = [line for line in TEXTS[ROOT / "docs" / "glossary.md"].splitlines() if line.startswith("| ")]
    assert 0 < len(rows) - 1 <= MOST_TERMS
    absent = [name for name in app.COMMANDS if not any(line.startswith(f"rpr-cli {name} ") for line in COMMANDS)]
    assert len(COMMANDS) > 40 and not absent
