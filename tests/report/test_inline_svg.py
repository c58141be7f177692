"""A drawing as a part of the page: matplotlib's own passes whole; whatever could run, fetch or restyle is refused."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest

from rpr.errors import RecordError
from rpr.report import drawing
from rpr.report.inline_svg import LEAST_TEXT, inline

HEAD = '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="0 0 200 100">'


def inlined(inner: str, head: str = HEAD) -> str:
    return inline(f"{head}{inner}</svg>", "p", "a drawing", {"#1b1f24": "var(--ink)"})


@pytest.mark.parametrize(
    "inner, message",
    [
        ("<script>alert(1)</script>", "an element <script>, which no plot has"),
        ("<g><script href='x.js'/></g>", "an element <script>"),
        ("<foreignObject><p>x</p></foreignObject>", "an element <foreignObject>"),
        ('<x:script xmlns:x="http://www.w3.org/1999/xhtml">alert(1)</x:script>', "an element .*xhtml}script"),
        ("<a href='https://x.org'><text>x</text></a>", "an element <a>"),
        ("<animate attributeName='href'/>", "an element <animate>"),
        ("<path onclick='alert(1)'/>", "an attribute onclick of <path>"),
        ("<g onload='alert(1)'/>", "an attribute onload"),
        ("<image xlink:href='https://x.org/a.png'/>", "a reference to something outside, https://x.org"),
        ("<image xlink:href='data:image/svg+xml;base64,AAAA'/>", "a reference to something outside, data:image/svg"),
        ("<use xlink:href='other.svg#a'/>", "a reference to something outside, other.svg"),
        ("<use href='javascript:alert(1)'/>", "a reference to something outside, javascript"),
        ("<path style='fill: url(https://x.org/a)'/>", "a style that could fetch"),
        ("<path style='fill: u\\72l(https://x.org/a)'/>", "a style that could fetch"),
        ("<path style='background: image-set(\"x.png\" 1x)'/>", "a style that could fetch"),
        ("<path clip-path='url(//x.org/#a)'/>", "a style that could fetch"),
        ("<path class='findings'/>", "an attribute class"),
        ("<path>", "not well-formed"),
        ("<text>&evil;</text>", "not well-formed"),
    ],
)
def test_what_no_plot_has_is_refused(inner, message):
    with pytest.raises(RecordError, match=message):
        inlined(inner)


def test_what_is_no_drawing_is_refused():
    for text in ("", "a text", "<html></html>", '<svg viewBox="0 0 1 1"/>'):
        with pytest.raises(RecordError, match="not an SVG drawing|not well-formed"):
            inline(text, "p", "x", {})
    with pytest.raises(RecordError, match="not an SVG drawing with a viewBox"):
        inlined("", head=HEAD.replace("0 0 200 100", "0 0 1e9 expression(x)"))
    with pytest.raises(RecordError, match="are more than the 3,000,000 that a page takes"):
        inline(" " * 3_000_001, "p", "x", {})


def test_entities_of_a_document_type_are_not_known():
    bomb = '<!DOCTYPE svg [<!ENTITY a "aaaa"><!ENTITY b "&a;&a;">]>'
    with pytest.raises(RecordError, match="undefined entity"):
        inline(f"{bomb}{HEAD}<text>&b;</text></svg>", "p", "x", {})


def test_style_sheets_and_what_the_root_asks_for_are_left_out():
    head = HEAD.replace("<svg ", '<svg style="position: fixed" width="9pt" height="9pt" ')
    text = inlined("<metadata>x</metadata><defs><style>*{display:none}</style></defs>", head)
    assert text == '<svg role="img" aria-label="a drawing" viewBox="0 0 200 100" style="min-width:200px"><defs /></svg>'


def test_ids_are_its_own_and_only_those_that_something_refers_to():
    text = inlined(
        '<defs><path id="m" d="M 0 0"/><clipPath id="c"><rect/></clipPath></defs>'
        '<g id="figure_1"><use xlink:href="#m"/><g clip-path="url(#c)"/></g>'
    )
    assert re.findall(r'id="([^"]*)"', text) == ["p-m", "p-c"]
    assert 'href="#p-m"' in text and 'clip-path="url(#p-c)"' in text


def test_colours_follow_the_page_and_words_stay_as_they_are():
    text = inlined('<path style="fill: #1b1f24; stroke: #abcdef"/><text>#1b1f24 &lt;b&gt; &amp; x</text>')
    assert "fill: var(--ink); stroke: #abcdef" in text
    assert ">#1b1f24 &lt;b&gt; &amp; x</text>" in text


def test_a_drawing_is_as_wide_as_its_smallest_words_need():
    text = inlined('<text style="font: 6px x">a</text><text style="font-size: 8px; fill: red">b</text>')
    assert f"min-width:{200 * LEAST_TEXT / 6:.0f}px" in text
    assert "min-width:300px" in inlined('<text style="font-size: 8px">b</text>')


def test_a_figure_of_matplotlibs_keeps_all_its_words_and_marks():
    with drawing.styled():
        figure, (axes,) = drawing.new_figure((5, 3), "A title", "a | subtitle", (0.1, 0.9))
        axes.plot([0, 1, 2], [1, 4, 2], marker="o", label="$w^K$")
        axes.imshow([[0.0, 1.0]], interpolation="none", extent=(0, 1, 0, 1))
        axes.legend()
    before = ElementTree.fromstring(drawing.rendered(figure, "svg"))
    after = ElementTree.fromstring(drawing.inlined(drawing.rendered(figure, "svg").decode(), "p", "x"))
    for tag in ("text", "path", "use", "image", "clipPath"):
        assert len([*after.iter(tag)]) == len([*before.iter(f"{{http://www.w3.org/2000/svg}}{tag}")]) > 0, tag
    words = ["".join(element.itertext()).strip() for element in after.iter("text")]
    assert {"A title", "a | subtitle"} <= set(words)
