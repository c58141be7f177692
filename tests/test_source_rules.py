"""Checked here: what the source must not contain, read from its syntax trees. No code is made from text or from a name
that a user gives; nothing is unpickled but what a process of ours sent through its own pipe; checkpoints are loaded as
plain data; no command goes through a shell; only the libraries talk to the network. Each rule is tried on snippets that
break it, and each exception must still be needed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from rpr.paths import data_dir

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = [ROOT / "cli.py", *sorted((ROOT / "rpr").rglob("*.py"))]
ATTACKS = ROOT / "tests" / "system" / "bad_files.py"  # a pickle that would run a command is made there
TESTS = sorted({*(ROOT / "tests").rglob("*.py")} - {ATTACKS})

PICKLES = {
    "pickle",
    "_pickle",
    "cPickle",
    "dill",
    "cloudpickle",
    "marshal",
    "shelve",
    "jsonpickle",
    "joblib",
    "copyreg",
}
NETWORK = {"requests", "httpx", "aiohttp", "urllib3", "http", "ftplib", "smtplib", "telnetlib", "xmlrpc", "webbrowser"}
COMMANDS = {f"subprocess.{name}" for name in ("run", "Popen", "call", "check_call", "check_output")}
SHELLS = {
    "os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput", "pty.spawn",
    "asyncio.create_subprocess_shell",
}  # fmt: skip
CODE = {
    "eval", "exec", "compile", "__import__", "builtins.eval", "builtins.exec", "builtins.compile", "code.interact",
    "runpy.run_path", "runpy.run_module", "torch.hub.load", "torch.jit.load", "torch.package.PackageImporter",
}  # fmt: skip
SAFE_LOADERS = {"yaml.SafeLoader", "yaml.CSafeLoader"}
CONNECTIONS = {"socket.socket", "socket.create_connection", "socket.create_server"}
TARGET = re.compile(r"(?<!\w)_target_(?!\w)")
FROM_URLLIB = {"urllib.request.getproxies"}  # it reads the environment

# (file, rule): why it is right there.
EXCEPTIONS = {
    ("rpr/data/hub.py", "pickle"): "a copy of an object of this process, made in its memory",
    ("rpr/data/hub.py", "network"): "whether the hub's host answers at all, before the library tries for long",
    ("rpr/__init__.py", "code"): "one of the two modules that the same file lists",
    ("rpr/sweep/launcher.py", "target"): "where it is refused, and Hydra's own launcher told from the others",
}


class Names(ast.NodeVisitor):
    """What the names of a file stand for: `from os import system as s` makes `s` os.system."""

    def __init__(self, tree: ast.AST) -> None:
        self.known: dict[str, str] = {}
        self.imported: list[tuple[int, str]] = []
        self.visit(tree)

    def visit_Import(self, node: ast.Import) -> None:
        for alias in node.names:
            self.imported.append((node.lineno, alias.name))
            self.known[alias.asname or alias.name.partition(".")[0]] = (
                alias.name if alias.asname else alias.name.partition(".")[0]
            )

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            whole = f"{node.module}.{alias.name}"
            self.imported.append((node.lineno, whole))
            self.known[alias.asname or alias.name] = whole

    def of(self, node: ast.AST) -> str:
        """The dotted name of an expression; empty for what is no name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        return ".".join([self.known.get(node.id, node.id), *reversed(parts)]) if isinstance(node, ast.Name) else ""


def faults(source: str) -> list[tuple[int, str]]:
    """(line, rule) of everything in a file's text that is against a rule."""
    tree = ast.parse(source)
    names = Names(tree)
    found = set(_imports(names))
    for node in ast.walk(tree):
        line = getattr(node, "lineno", 0)
        if isinstance(node, ast.Call):
            found |= {(line, rule) for rule in _calls(node, names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and TARGET.search(node.value):
            found.add((line, "target"))
        elif isinstance(node, ast.Attribute | ast.Name):
            name = names.of(node)
            if name in SHELLS or name.startswith(("os.exec", "os.spawn", "os.posix_spawn")):
                found.add((line, "shell"))
            if name in CODE and not (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)):
                found.add((line, "code"))
            if name == "tempfile.mktemp":
                found.add((line, "temporary"))
            if name in CONNECTIONS or (name.startswith("urllib.request.") and name not in FROM_URLLIB):
                found.add((line, "network"))
    return sorted(found)


def _imports(names: Names) -> Iterator[tuple[int, str]]:
    for line, name in names.imported:
        room = name.partition(".")[0]
        if room in PICKLES:
            yield line, "pickle"
        if room in NETWORK or (name.startswith("urllib.request.") and name not in FROM_URLLIB):
            yield line, "network"
        if name.startswith(("hydra.utils", "hydra._internal.instantiate")):
            yield line, "target"


def _calls(call: ast.Call, names: Names) -> Iterator[str]:
    name = names.of(call.func)
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    if name.startswith("hydra.utils."):
        yield "target"
    if "shell" in given and not _is(given["shell"], False):
        yield "shell"
    if name in COMMANDS and _is_text(call.args[0] if call.args else given.get("args")):
        yield "shell"
    loads = name == "torch.load" or name.endswith(".load_from_checkpoint") or "ckpt_path" in given
    if loads and not _is(given.get("weights_only"), True):
        yield "weights"
    if any(key in given and not _is(given[key], False) for key in ("allow_pickle", "trust_remote_code")):
        yield "weights"
    if name.endswith(("read_pickle", "to_pickle")):
        yield "pickle"
    loader = given.get("Loader", call.args[1] if len(call.args) > 1 else None)
    if name in ("yaml.load", "yaml.load_all") and (loader is None or names.of(loader) not in SAFE_LOADERS):
        yield "yaml"
    if name.startswith(("yaml.unsafe_load", "yaml.full_load")):
        yield "yaml"
    if name == "importlib.import_module" and not _begins_with_a_package(call.args[0]):
        yield "code"


def _is(node: ast.AST | None, value: bool) -> bool:
    return isinstance(node, ast.Constant) and node.value is value


def _is_text(node: ast.AST | None) -> bool:
    """A command that a shell would have to take apart, as far as that can be seen."""
    made = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("join", "format")
    return made or isinstance(node, ast.Constant | ast.JoinedStr | ast.BinOp)


def _begins_with_a_package(node: ast.AST) -> bool:
    """`"a.b"`, or `f"a.{name}"`, which cannot leave the package a."""
    first = node.values[0] if isinstance(node, ast.JoinedStr) else node
    text = first.value if isinstance(first, ast.Constant) else None
    return isinstance(text, str) and (first is node or (text.count(".") > 0 and text.endswith(".")))


BROKEN = {
    "code": [
        "eval('1')", "exec(text)", "compile(text, 'x', 'exec')", "run = eval", "__import__(name)",
        "from builtins import exec as e\ne(x)", "import importlib\nimportlib.import_module(name)",
        "from importlib import import_module as i\ni(f'{n}.x')", "import importlib\nimportlib.import_module(f'a{b}')",
        "import runpy\nrunpy.run_path(p)", "import torch\ntorch.hub.load(a, b)", "import torch as t\nt.jit.load(p)",
    ],
    "pickle": [
        "import pickle", "from pickle import loads", "import dill as d", "def f():\n    import marshal",
        "import shelve", "import joblib", "import cloudpickle.x", "import pandas as pd\npd.read_pickle(p)",
    ],
    "shell": [
        "import subprocess\nsubprocess.run(words, shell=True)", "import subprocess as s\ns.run(words, shell=flag)",
        "import os\nos.system('x')", "from os import popen as p\np('x')", "import os\nrun = os.popen",
        "import os\nos.execvp(x, [])", "import subprocess\nsubprocess.getoutput(x)",
        "import subprocess\nsubprocess.run('git log')", "import subprocess\nsubprocess.Popen(f'git {x}')",
        "import subprocess\nsubprocess.run('git ' + x)", "import subprocess\nsubprocess.run(' '.join(words))",
        "import subprocess\nsubprocess.check_output(args='ls')",
    ],
    "weights": [
        "import torch\ntorch.load(p)", "from torch import load as l\nl(p, weights_only=False)",
        "import torch\ntorch.load(p, weights_only=safe)", "trainer.fit(module, data, ckpt_path=p)",
        "Module.load_from_checkpoint(p)", "import numpy as np\nnp.load(p, allow_pickle=True)",
        "load_dataset(name, trust_remote_code=True)",
    ],
    "yaml": [
        "import yaml\nyaml.load(text)", "import yaml\nyaml.load(text, Loader=yaml.Loader)",
        "import yaml\nyaml.load(text, yaml.FullLoader)", "from yaml import unsafe_load as u\nu(text)",
        "import yaml\nyaml.full_load(text)", "import yaml\nyaml.load_all(text, Loader=mine)",
    ],
    "temporary": ["import tempfile\ntempfile.mktemp()", "from tempfile import mktemp as m\nm()"],
    "target": [
        "from hydra.utils import instantiate", "import hydra\nhydra.utils.get_class(name)", "x = {'_target_': 'a.b'}",
        "from hydra._internal.instantiate._instantiate2 import instantiate",
    ],
    "network": [
        "import requests", "from urllib.request import urlopen", "import urllib.request\nurllib.request.urlopen(u)",
        "import http.client", "import httpx as h", "import socket\nsocket.create_connection(a)",
        "from socket import socket\nsocket()", "import webbrowser",
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


@pytest.mark.parametrize("rule, source", [(rule, source) for rule, sources in BROKEN.items() for source in sources])
def test_a_snippet_that_breaks_a_rule_is_caught(rule: str, source: str) -> None:
    assert rule in {found for _, found in faults(source)}


def test_what_is_like_a_fault_and_none_is_let_through() -> None:
    assert faults(GOOD) == []


def test_the_product_keeps_the_rules() -> None:
    assert len(PRODUCT) > 100
    found = [
        (path.relative_to(ROOT).as_posix(), line, rule)
        for path in PRODUCT
        for line, rule in faults(path.read_text("utf-8"))
    ]
    assert [f"{file}:{line}: {rule}" for file, line, rule in found if (file, rule) not in EXCEPTIONS] == []
    assert {(file, rule) for file, _, rule in found} == EXCEPTIONS.keys()  # none is left over


def test_the_tests_keep_those_that_are_about_the_machine_they_run_on() -> None:
    """They pickle, and write bad checkpoints, on purpose."""
    found = [
        f"{path.relative_to(ROOT)}:{line}: {rule}"
        for path in TESTS
        for line, rule in faults(path.read_text("utf-8"))
        if rule in ("shell", "temporary")
    ]
    assert found == []


@pytest.mark.parametrize("folder", ["conf", "sweeps"])
def test_no_default_names_code(folder: str) -> None:
    files = sorted(data_dir(folder).rglob("*.yaml"))
    assert len(files) > 5
    words = ("_target_", "!!python", "ext://", "hydra.utils", "_partial_")
    assert [f"{file}: {word}" for file in files for word in words if word in file.read_text("utf-8")] == []
