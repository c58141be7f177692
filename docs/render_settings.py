"""The settings of docs/reference.md, from the comments of conf/: `python docs/render_settings.py` writes them anew."""

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parent
PAGE, CONF = DOCS / "reference.md", DOCS.parent / "conf"
HEADING = "\n## Settings\n"
FILES = {  # title to the files whose settings it shows; the first is the default or the most commented
    "train": "train.yaml", "model": "model/tiny.yaml", "optim": "optim/tiny.yaml", "data": "data/_corpus.yaml",
    "data of text": "data/_text.yaml", "position": "position/_base.yaml", "hardware": "hardware/cpu.yaml",
    "evaluation": "evaluation/default.yaml", "logger": "logger/wandb.yaml", "translate": "translate.yaml",
    "generate": "generate.yaml", "evaluate": "evaluate.yaml", "compare": "compare.yaml", "report": "report.yaml",
    "bench": "bench.yaml", "export": "export.yaml", "verify": "verify.yaml", "prepare": "prepare.yaml",
    "diff": "diff.yaml", "rerun": "rerun.yaml", "runs": "runs.yaml",
    "dashboard": "dashboard.yaml", "shared": "shared.yaml",
}  # fmt: skip
SETTING = re.compile(r"^(?P<indent> *)(?P<key>[\w.@]+): *(?P<value>.*?) *(?:# (?P<comment>.*))?$")


def rows(text: str) -> list[str]:
    """A table row for each setting of a YAML file, with the comment beside it; lines of comments alone continue it."""
    found: list[list[str]] = []
    parents: dict[int, str] = {}
    for line in text.partition("\nhydra:\n")[0].splitlines():
        if (setting := SETTING.match(line)) and not line.startswith("#"):
            depth = len(setting["indent"])
            parents = {level: key for level, key in parents.items() if level < depth} | {depth: setting["key"]}
            found.append([".".join(parents.values()), setting["value"], setting["comment"] or ""])
        elif found and line.strip().startswith("#") and line.startswith("  "):
            found[-1][2] += " " + line.strip(" #")
    shown = [row for row in found if row[1] or row[2]]
    cells = [[f"`{key}`", f"`{value}`" if value else "", comment.replace("|", "\\|")] for key, value, comment in shown]
    return ["| " + " | ".join(row) + " |" for row in cells if not row[0].startswith("`defaults")]


def rendered() -> str:
    parts = [HEADING.strip(), "Rendered from the comments in `conf/` by `python docs/render_settings.py`."]
    for title, name in FILES.items():
        table = rows((CONF / name).read_text(encoding="utf-8"))
        if table:
            header = "| setting | default | meaning |\n|---|---|---|"
            parts += [f"### {title} (`conf/{name}`)", "\n".join([header, *table])]
    return "\n\n".join(parts) + "\n"


def page() -> str:
    """docs/reference.md with today's settings."""
    return PAGE.read_text(encoding="utf-8").partition(HEADING)[0] + "\n" + rendered()


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
