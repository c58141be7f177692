"""Security rules, checked on syntax trees: no code from text or user-given names, no unpickling, checkpoints as plain
data only, no shell, no network access of our own. Each rule is tested on snippets; each exception must be needed.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from rpr.paths import data_dir

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = [ROOT / "cli.py", *sorted((ROOT / "rpr").rglob("*.py"))]
ATTACKS = ROOT / "tests" / "system" / "bad_files.py"  # makes a pickle that runs a command
TESTS = sorted({*(ROOT / "tests").rglob("*.py")} - {ATTACKS})

# Patterns of full names that no file may import or use, by rule.
BANNED = {
    "pickle": [
        "pickle", "_pickle", "cPickle", "dill", "cloudpickle", "marshal", "shelve", "jsonpickle", "joblib", "copyreg",
        "*.read_pickle", "*.to_pickle",
    ],
    "network": [
        "requests", "httpx", "aiohttp", "urllib3", "http", "ftplib", "smtplib", "telnetlib", "xmlrpc", "webbrowser",
        "urllib.request.*", "socket.socket", "socket.create_connection", "socket.create_server",
    ],
    "shell": [
        "os.system", "os.popen", "os.exec*", "os.spawn*", "os.posix_spawn*", "subprocess.getoutput",
        "subprocess.getstatusoutput", "pty.spawn", "asyncio.create_subprocess_shell",
    ],
    "code": [
        "eval", "exec", "compile", "__import__", "builtins.eval", "builtins.exec", "builtins.compile", "code.interact",
        "runpy.run_path", "runpy.run_module", "torch.hub.load", "torch.jit.load", "torch.package.PackageImporter",
    ],
    "yaml": ["yaml.unsafe_load*", "yaml.full_load*"],
    "target": ["hydra.utils", "hydra._internal.instantiate"],
    "temporary": ["tempfile.mktemp"],
}  # fmt: skip
ALLOWED = {"urllib.request.getproxies"}  # it reads the environment
COMMANDS = {f"subprocess.{name}" for name in ("run", "Popen", "call", "check_call", "check_output")}
SAFE_LOADERS = {"yaml.SafeLoader", "yaml.CSafeLoader"}
TARGET = re.compile(r"(?<!\w)_target_(?!\w)")

# (file, rule): why it is allowed.
EXCEPTIONS = {
    ("rpr/data/hub.py", "network"): "checks that the hub answers, as the library would retry for long",
    ("rpr/sweep/spec.py", "yaml"): "a SafeLoader that refuses a key that is there twice",
    ("rpr/compose/hydra_settings.py", "target"): "refuses it, but for Hydra's own plugins",
    ("rpr/sweep/launcher.py", "target"): "recognises Hydra's own launcher",
}

LONGEST_MODULE = 400  # lines
# Local names that do not say what they hold, and how many there are at most in rpr/: lower a number that is too high.
VAGUE = Counter(one=157, found=84, words=61, theirs=10, mine=13, some=11)


class Names(ast.NodeVisitor):
    """The full names behind a file's imported names: after `from os import system as s`, `s` is os.system."""

    def __init__(self, tree: ast.AST) -> None:
        self.known = {name: name for name in ("eval", "exec", "compile", "__import__")}
        self.found: list[tuple[int, str]] = []  # the line and name of each import and use
        self.visit(tree)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.found.append((node.lineno, alias.name))
            first = alias.name.partition(".")[0]
            self.known[alias.asname or first] = alias.name if alias.asname else first

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            self.found.append((node.lineno, whole))
            self.known[alias.asname or alias.name] = whole

    def visit_Name(self, node: ast.Name) -> None:
        if not isinstance(node.ctx, ast.Store) and node.id in self.known:
            self.found.append((node.lineno, self.of(node)))

    def visit_Attribute(self, node: ast.Attribute) -> None:
        self.found.append((node.lineno, self.of(node)))
        self.generic_visit(node)

    def of(self, node: ast.AST) -> str:
        """The full dotted name of an expression; empty if it is not a name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        return ".".join([self.known.get(node.id, node.id), *reversed(parts)]) if isinstance(node, ast.Name) else ""


def violations(source: str) -> list[tuple[int, str]]:
    """(line, rule) of every violation."""
    tree = ast.parse(source)
    names = Names(tree)
    found = {
        (line, rule) for line, name in names.found if name not in ALLOWED for rule in BANNED if _is_banned(name, rule)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            found |= {(node.lineno, rule) for rule in _calls(node, names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and TARGET.search(node.value):
            found.add((node.lineno, "target"))
    return sorted(found)


def _is_banned(name: str, rule: str) -> bool:
    return any(fnmatchcase(name, pattern) or name.startswith(f"{pattern}.") for pattern in BANNED[rule])


def _calls(call: ast.Call, names: Names) -> Iterator[str]:
    name = names.of(call.func)
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if "shell" in given and not _is(given["shell"], False):
        yield "shell"
    if name in COMMANDS and _is_text(call.args[0] if call.args else given.get("args")):
        yield "shell"
    loads = name == "torch.load" or name.endswith(".load_from_checkpoint") or "ckpt_path" in given
    if loads and not _is(given.get("weights_only"), True):
        yield "weights"
    if any(key in given and not _is(given[key], False) for key in ("allow_pickle", "trust_remote_code")):
        yield "weights"
    loader = given.get("Loader", call.args[1] if len(call.args) > 1 else None)
    if name in ("yaml.load", "yaml.load_all") and (loader is None or names.of(loader) not in SAFE_LOADERS):
        yield "yaml"
    if name == "importlib.import_module" and not _has_fixed_package(call.args[0]):
        yield "code"


def _is(node: ast.AST | None, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _is_text(node: ast.AST | None) -> bool:
    """Whether a command is visibly a string, not a list of words."""
    built = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("join", "format")
    return built or isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp)


def _has_fixed_package(node: ast.AST) -> bool:
    """Whether a module name is `"a.b"`, or `f"a.{name}"`, which is always in the package a."""
    first = node.values[0] if isinstance(node, ast.JoinedStr) else node
    text = first.value if isinstance(first, ast.Constant) else None
    return isinstance(text, str) and (first is node or (text.count(".") > 0 and text.endswith(".")))


BAD = {
    "code": [
        "exec(text)", "run = eval", "from builtins import exec as e\ne(x)", "import torch as t\nt.jit.load(p)",
        "import importlib\nimportlib.import_module(f'a{b}')", "from importlib import import_module as i\ni(f'{n}.x')",
    ],
    "pickle": ["from pickle import loads", "import cloudpickle.x", "import pandas as p\np.read_pickle(x)"],
    "shell": [
        "import subprocess as s\ns.run(words, shell=flag)", "import os\nrun = os.popen", "import os\nos.execvp(x, [])",
        "import subprocess\nsubprocess.run('git log')", "import subprocess\nsubprocess.Popen(f'git {x}')",
        "import subprocess\nsubprocess.run('git ' + x)", "import subprocess\nsubprocess.check_output(args=' '.join(x))",
    ],
    "weights": [
        "import torch\ntorch.load(p)", "from torch import load as l\nl(p, weights_only=False)",
        "trainer.fit(module, data, ckpt_path=p)", "Module.load_from_checkpoint(p)",
        "import numpy as np\nnp.load(p, allow_pickle=True)", "load_dataset(name, trust_remote_code=True)",
    ],
    "yaml": [
        "import yaml\nyaml.load(text)", "import yaml\nyaml.load_all(text, yaml.FullLoader)",
        "from yaml import unsafe_load as u\nu(text)",
    ],
    "temporary": ["from tempfile import mktemp as m\nm()"],
    "target": [
        "from hydra.utils import instantiate", "import hydra\nhydra.utils.get_class(name)", "x = {'_target_': 'a.b'}",
    ],
    "network": [
        "import requests", "from urllib.request import urlopen", "import urllib.request\nurllib.request.urlopen(u)",
        "import http.client", "from socket import socket\nsocket()",
    ],
}  # fmt: skip
GOOD = """
import importlib, re, socket, subprocess, tempfile, urllib.request
import numpy as np
import torch
import yaml
from rpr.model import transformer
torch.load(p, map_location="cpu", weights_only=True, mmap=mapped)
trainer.fit(module, batches, ckpt_path=newest, weights_only=True)
np.load(p)
model.eval()
re.compile("x"), torch.compile(f)
yaml.safe_load(text), yaml.load(text, Loader=yaml.CSafeLoader)
subprocess.run(["git", *words], capture_output=True), subprocess.Popen(command, shell=False)
importlib.import_module("ctranslate2"), importlib.import_module(f"rpr.commands.{name}")
urllib.request.getproxies(), socket.gethostname(), tempfile.mkdtemp(), tmp_path_factory.mktemp("x")
"""


@pytest.mark.parametrize("rule", BAD)
def test_violations_are_found(rule: str) -> None:
    assert [source for source in BAD[rule] if rule not in {found for _, found in violations(source)}] == []


def test_allowed_code_is_not_reported() -> None:
    assert violations(GOOD) == []


def test_source_follows_the_rules() -> None:
    assert len(PRODUCT) > 100
    found = [
        (path.relative_to(ROOT).as_posix(), line, rule)
        for path in PRODUCT
        for line, rule in violations(path.read_text("utf-8"))
    ]
    assert [f"{file}:{line}: {rule}" for file, line, rule in found if (file, rule) not in EXCEPTIONS] == []
    assert {(file, rule) for file, _, rule in found} == EXCEPTIONS.keys()


def test_local_names_say_what_they_hold() -> None:
    nodes = [node for path in PRODUCT for node in ast.walk(ast.parse(path.read_text("utf-8")))]
    names = [node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    names += [node.arg for node in nodes if isinstance(node, ast.arg)]
    counts = Counter(name for name in names if name in VAGUE)
    assert counts <= VAGUE, f"name what it holds: {counts - VAGUE} more"


def test_every_module_can_be_read_at_once() -> None:
    lengths = {path.relative_to(ROOT).as_posix(): path.read_text("utf-8").count("\n") for path in PRODUCT}
    assert {name: length for name, length in lengths.items() if length > LONGEST_MODULE} == {}


def test_tests_use_no_shell_and_no_mktemp() -> None:
    texts = {path.relative_to(ROOT): path.read_text("utf-8") for path in TESTS}
    found = [
        f"{path}:{line}: {rule}"
        for path, text in texts.items()
        if re.search(r"\b(os|subprocess|pty|asyncio|tempfile|shell)\b", text)  # saves time
        for line, rule in violations(text)
        if rule in ("shell", "temporary")
    ]
    assert found == []


@pytest.mark.parametrize("folder", ["conf", "sweeps"])
def test_configuration_names_no_code(folder: str) -> None:
    files = sorted(data_dir(folder).rglob("*.yaml"))
    assert len(files) > 5
    words = ("_target_", "!!python", "ext://", "hydra.utils", "_partial_")
    assert [f"{file}: {word}" for file in files for word in words if word in file.read_text("utf-8")] == []
