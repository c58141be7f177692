"""Rules for the sources that the linter does not know: no code that a text names, checkpoints as plain data only,
private names of Hydra in one place, names that say what they hold, modules that can be read at once.
"""

import ast
import re
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = [ROOT / "cli.py", *sorted((ROOT / "rpr").rglob("*.py"))]
TARGET = re.compile(r"(?<!\w)_target_(?!\w)")
# Hydra's key that names code, and why a file may hold it.
ABOUT_TARGETS = {"rpr/sweep/slurm.py": "recognises Hydra's own launcher"}

PRIVATE_OF_HYDRA = re.compile(
    r"hydra\._|hydra\.core\.(plugins|global_hydra|override_parser|config_search_path)|plugin\._query\("
)
MAY_USE_THEM = {"rpr/compose/hydra_bridge.py"}
# Local names that do not say what they hold, and how many there are at most in rpr/: lower a number that is too high.
VAGUE = Counter(one=18, found=6, words=25, theirs=2, mine=0, some=2)


@cache
def parsed(path: Path) -> ast.AST:
    return ast.parse(path.read_text("utf-8"))


def code_from_data(tree: ast.AST) -> Iterator[str]:
    """Calls that could load code from a file, or a module of any name."""
    for call in ast.walk(tree):
        if not isinstance(call, ast.Call):
            continue
        given = {keyword.arg: getattr(keyword.value, "value", None) for keyword in call.keywords}
        name = getattr(call.func, "attr", getattr(call.func, "id", ""))
        of_torch = name == "load" and ast.unparse(call.func).endswith("torch.load")
        loads = "ckpt_path" in given or name == "load_from_checkpoint" or of_torch
        if (
            (loads and given.get("weights_only") is not True)
            or any(given.get(key, False) is not False for key in ("allow_pickle", "trust_remote_code", "shell"))
            or (name == "import_module" and not _has_fixed_package(call.args[0]))
        ):
            yield ast.unparse(call)


def _has_fixed_package(node: ast.AST) -> bool:
    """Whether a module name is `"a.b"`, or `f"a.{name}"`, which is always in the package a."""
    first = node.values[0] if isinstance(node, ast.JoinedStr) else node
    text = first.value if isinstance(first, ast.Constant) else None
    return isinstance(text, str) and (first is node or text.endswith("."))


def test_code_from_data_is_found():
    allowed = ("import_module(f'a.{b}')", "importlib.import_module('a.b')", "torch.load(p, weights_only=True)")
    refused = ("import_module(f'a{b}')", "torch.load(p, weights_only=flag)", "fit(module, ckpt_path=p)")
    refused += ("Module.load_from_checkpoint(p)", "load(p, allow_pickle=True)", "run(words, shell=flag)")
    found = [[*code_from_data(ast.parse(source))] for source in (*allowed, *refused)]
    assert [*map(bool, found)] == [False] * len(allowed) + [True] * len(refused)


def test_source_loads_no_code_from_data():
    assert len(PRODUCT) > 100
    sources = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8") for path in PRODUCT}
    assert [(path, call) for path in PRODUCT for call in code_from_data(parsed(path))] == []
    assert {name for name, source in sources.items() if TARGET.search(source)} == ABOUT_TARGETS.keys()
    assert {name for name, source in sources.items() if PRIVATE_OF_HYDRA.search(source)} == MAY_USE_THEM


def test_local_names_say_what_they_hold():
    nodes = [node for path in PRODUCT for node in ast.walk(parsed(path))]
    names = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    names += [node.arg for node in nodes if isinstance(node, ast.arg)]
    counts = Counter(name for name in names if name in VAGUE)
    assert counts <= VAGUE, f"name what it holds: {counts - VAGUE} more"
