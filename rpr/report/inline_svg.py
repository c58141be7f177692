"""An SVG file as an element of the page: nothing in it can run, fetch or restyle anything, and its ids are its own.

Only what matplotlib writes is let through; a file with anything else is refused, since it may come from elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from xml.etree import ElementTree

from rpr.errors import RecordError

LEAST_TEXT = 12.0  # CSS pixels: a drawing is never shown so small that its smallest text is smaller
MOST_CHARACTERS = 3_000_000
_SVG = "{http://www.w3.org/2000/svg}"
_XLINK = "{http://www.w3.org/1999/xlink}"
_ELEMENTS = frozenset({"svg", "g", "defs", "clipPath", "path", "rect", "use", "image", "text", "tspan"})
# A style element would hold for the whole page; the page's own style sheet says what matplotlib's does.
_DROPPED = frozenset({"metadata", "style"})
_ATTRIBUTES = frozenset(
    {"id", "d", "x", "y", "width", "height", "transform", "style", "clip-path", "href", "viewBox", "version", "type"}
)
_FONT_SIZE = re.compile(r"\bfont(?:-size)?:[^;]*?([\d.]+)px")
_LONG_FRACTION = re.compile(r"(\.\d\d)\d+")


def inline(svg: str, prefix: str, description: str, colours: Mapping[str, str]) -> str:
    """The svg element alone, for a page: ids made its own by `prefix`, each colour in place of that in the file.

    Raises:
        RecordError: not an SVG as matplotlib writes it: a script, a handler, an outside reference, other elements.
    """
    if len(svg) > MOST_CHARACTERS:
        raise RecordError(f"{len(svg):,} characters are more than the {MOST_CHARACTERS:,} that a page takes")
    try:
        # From the element on: a document type could declare entities, and those are unknown without it.
        root = ElementTree.fromstring(svg[max(0, svg.find("<svg")) :])
    except ElementTree.ParseError as error:
        raise RecordError(f"not well-formed ({error})") from None
    view = root.get("viewBox", "")
    if root.tag != f"{_SVG}svg" or not re.fullmatch(r"[\d.]+ [\d.]+ [\d.]+ [\d.]+", view):
        raise RecordError("not an SVG drawing with a viewBox")
    _clean(root)
    used = {match for element in root.iter() for match in _references(element)}
    for element in root.iter():
        _own(element, prefix, used, colours)
    inner = "".join(ElementTree.tostring(child, encoding="unicode") for child in root)
    label = description.replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;")
    # Width and height in points would not follow the page's width; the viewBox keeps the proportions.
    narrowest = f"min-width:{_narrowest(root, float(view.split()[2])):.0f}px"
    return f'<svg role="img" aria-label="{label}" viewBox="{view}" style="{narrowest}">{inner}</svg>'


def _clean(element: ElementTree.Element) -> None:
    """Plain names in place of qualified ones, without what the page does not need; refuses what is not known."""
    element.tag = _name(element.tag)
    if element.tag not in _ELEMENTS:
        raise RecordError(f"an element <{element.tag}>, which no plot has")
    attributes = {name.removeprefix(_XLINK): value for name, value in element.attrib.items()}
    for name, value in attributes.items():
        if name not in _ATTRIBUTES:
            raise RecordError(f"an attribute {name} of <{element.tag}>, which no plot has")
        if name == "href" and not re.match(r"#|data:image/png;base64,[A-Za-z0-9+/=\s]*\Z", value):
            raise RecordError(f"a reference to something outside, {value[:60]}")
        if name in ("style", "clip-path") and re.search(r"\\|@|/\*|url\((?!#)|image\(|image-set\(|src\(", value):
            raise RecordError(f"a style that could fetch something, {value[:60]}")
    element.attrib.clear()
    element.attrib.update(attributes)
    for child in [*element]:
        if _name(child.tag) in _DROPPED:
            element.remove(child)
        else:
            _clean(child)
    if element.tag not in ("text", "tspan"):
        element.text = None
        for child in element:
            child.tail = None


def _name(tag: str) -> str:
    return tag.removeprefix(_SVG)


def _references(element: ElementTree.Element) -> list[str]:
    values = " ".join(element.get(name, "") for name in ("clip-path", "style"))
    direct = element.get("href", "")
    return re.findall(r"url\(#([^)]*)\)", values) + ([direct[1:]] if direct.startswith("#") else [])


def _own(element: ElementTree.Element, prefix: str, used: set[str], colours: Mapping[str, str]) -> None:
    """Ids that something refers to get the prefix, the others go; colours are the page's, paths lose idle digits."""
    if (name := element.attrib.pop("id", None)) in used:
        element.set("id", f"{prefix}-{name}")
    for key, value in element.attrib.items():
        if key == "href" and value.startswith("#"):
            element.set(key, f"#{prefix}-{value[1:]}")
        elif key in ("style", "clip-path"):
            value = value.replace("url(#", f"url(#{prefix}-")
            # In one pass: a replaced colour must not be replaced again.
            element.set(key, re.sub("#[0-9a-f]{6}", lambda match: colours.get(match[0], match[0]), value))
        elif key in ("d", "x", "y"):
            element.set(key, _LONG_FRACTION.sub(r"\1", value))


def _narrowest(root: ElementTree.Element, width: float) -> float:
    """The width in CSS pixels at which the smallest text is as large as LEAST_TEXT."""
    styles = [element.get("style", "") for element in root.iter("text")]
    sizes = [float(match[1]) for style in styles if (match := _FONT_SIZE.search(style))]
    return width * LEAST_TEXT / min(sizes) if sizes else width
