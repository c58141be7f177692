"""Escapes characters by which untrusted text could hide something, or control a terminal; and prints remarks."""

import re
import sys
from collections.abc import Callable
from typing import Any

# Control characters (ESC and U+009B start terminal sequences), line separators, bidirectional controls, and lone
# surrogates, which cannot be encoded. The joiners within emoji and words are not among them.
_HIDDEN = re.compile("[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


def escape_control_characters(text: str) -> str:
    r"""The text on one line, with `\x1b` for ESC and `\n` for a line feed."""
    return text if text.isprintable() else _HIDDEN.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


_MARKDOWN = str.maketrans({"&": "&amp;", "<": "&lt;", **{character: f"\\{character}" for character in "\\|*`#"}})
# Where brackets make a link, an image or a definition of one, not an interval or a number; and addresses.
_LINK = re.compile(
    r"""(?=\][(\[]) | (?=\]:\s*\S+(\s+["'(].*)?$) | (?=\[\^) | (?<=:)(?=//) | (?<=www)(?=\.)""",
    re.IGNORECASE | re.VERBOSE,
)


def escape_markdown(text: str) -> str:
    """Escape text so that Markdown shows it literally, without images and links, but to e-mail addresses."""
    return escape_control_characters(_LINK.sub(r"\\", " ".join(text.translate(_MARKDOWN).split())))


def note(text: str) -> None:
    """Print a remark as a line on stderr, at once."""
    print(f"rpr-cli: {escape_control_characters(text)}", file=sys.stderr, flush=True)


def escape_tree(tree: Any, escape: Callable[[str], str] = escape_control_characters) -> Any:
    """Plain values in which every string, keys included, is escaped."""
    if isinstance(tree, str):
        return escape(tree)
    if isinstance(tree, dict):
        return {escape(key): escape_tree(value, escape) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return type(tree)(escape_tree(value, escape) for value in tree)
    return tree
