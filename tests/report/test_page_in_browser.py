"""The HTML page in a real browser: nothing leaves the file, nothing runs, every text can be read on a screen, in the
dark, on a phone and on paper, links lead somewhere, markup in a record stays text, and thousands of runs load at once.

Needs an installed Chromium or Chrome; skipped without one, unless RPR_REQUIRE_BROWSER=1 is set: then it fails.
"""

from __future__ import annotations

import importlib.util
import json
import re
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from rpr.records.record import Record, find_records, write_record
from rpr.report import drawing
from rpr.report.page import Chapter, html_page
from rpr.report.position_page import position_page
from rpr.report.report import build_report
from rpr.report.tables import position_tables
from tests.fake_records import fake_by_length, fake_document, fake_interval, fake_score
from tests.report.page_in_browser import (
    CONTRASTS,
    CUT_OFF,
    HIDDEN,
    REQUIRED,
    SMALLEST_TEXT,
    chromium,
    executable,
    photograph,
)
from tests.report.test_position_page import made_up

EVIL = '</title></pre></dd><script>alert(1)</script><img src="x" onerror="alert(2)">'
REFERENCE = f"ein Hund läuft draußen herum {EVIL} ."
PHONE = {"width": 375, "height": 800}
PAPER = {"width": 703, "height": 1000}  # A4 less margins of 12 mm, in CSS pixels


def record(*args: Any, **kwargs: Any) -> Record:
    return Record.model_validate_json(json.dumps(fake_document(*args, **kwargs)), strict=True)


def scored(value: float) -> list[dict[str, Any]]:
    return [
        fake_score(split, value - less, metric, interval=fake_interval(value - less - 1.1, value - less + 1.2))
        for metric in ("sacrebleu", "chrf", "bleu_tok", "bleu_tok_split")
        for split, less in (("test", 0.0), ("long", 8.0), ("validation", 1.0))
    ]


def write_runs(root: Path) -> None:
    """Two tables, several seeds, a failed run with markup in its name, curves, translations, a learned picture."""
    lengths = fake_by_length(40, 30, 25, 20)
    runs = [
        record("relative", k, seed=seed, scores=scored(20 + k / 4 + seed / 10), by_length=lengths)
        for k in (0, 2, 16)
        for seed in (1, 2)
    ]
    runs += [
        record("absolute", scores=scored(25), by_length=lengths),
        record("none", status="failed", name=EVIL, error=EVIL),
        record("relative", 8, scores=scored(33), synthetic=True),
        record("absolute", scores=scored(31), synthetic=True),
    ]
    for number, run in enumerate(runs):
        folder = root / str(number)
        write_record(folder / "record.json", run)
        lines = [
            {"step": step, "train/loss": 9 - step / 100, "validation/loss": 8 - step / 100, "validation/bleu": step / 9}
            for step in (100, 200, 300)
        ]
        (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        for kind, text in (
            ("sources", f"a dog runs around outside {EVIL} ."),
            ("references", REFERENCE),
            ("hypotheses", f"draußen rennt ein Hund {EVIL} ."),
        ):
            (folder / f"test.{kind}.txt").write_text(f"{text}\n" * 6)
    drawing.save(position_page(made_up(), "A run", "k = 3"), root / "4" / "positions.svg")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page made by build_report."""
    folder = tmp_path_factory.mktemp("page")
    write_runs(folder / "runs")
    found = find_records(folder / "runs")
    assert not found.problems
    build_report(found.records, folder / "out", f"A report {EVIL}", [f"a record {EVIL} is damaged"])
    return folder / "out" / "index.html"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One browser for all tests of this file."""
    refuse = pytest.fail if REQUIRED else pytest.skip
    if importlib.util.find_spec("playwright") is None:
        refuse("playwright is not installed: pip install playwright")
    if executable() is None:
        refuse("no Chromium or Chrome is installed, so the page cannot be looked at")
    with chromium() as started:
        yield started


Open = Callable[..., Any]


@pytest.fixture
def opened(browser: Any, report: Path) -> Iterator[Open]:
    """Opens the report in a window of its own, without a network; at the end nothing may have gone wrong in it."""
    contexts, wrong = [], []

    def open_page(path: Path = report, **options: Any) -> Any:
        context = browser.new_context(offline=True, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("request", lambda request: wrong.append(request.url) if request.url != path.as_uri() else None)
        page.on("console", lambda message: wrong.append(message.text))
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))
        page.goto(path.as_uri())
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == [], "a request, a message in the console or a dialog"


def unfold(page: Any) -> None:
    page.evaluate("() => document.querySelectorAll('details').forEach(one => { one.open = true; })")


def test_light_and_dark_differ_and_every_text_stands_out(opened: Open) -> None:
    grounds = set()
    for scheme in ("light", "dark"):
        page = opened(color_scheme=scheme)
        ground, ink = page.evaluate(
            "() => { const s = getComputedStyle(document.body); return [s.backgroundColor, s.color]; }"
        )
        grounds |= {ground, ink}
        contrasts = page.evaluate(CONTRASTS)
        assert len(contrasts) > 20
        assert contrasts[0][0] >= 4.5, (scheme, contrasts[:3])
        assert any(tag == "text" for _, tag, _ in contrasts), "the words of the drawings are among them"
    assert len(grounds) == 4


def test_on_a_phone_nothing_sticks_out_and_no_text_is_tiny(opened: Open) -> None:
    page = opened(viewport=PHONE, is_mobile=True, has_touch=True)
    unfold(page)
    wide, room = page.evaluate("() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]")
    assert wide <= room == 375
    assert page.evaluate(CUT_OFF) == []
    size, text = page.evaluate(SMALLEST_TEXT)
    assert size >= 11.99, text
    boxes = "() => [...document.querySelectorAll('.scroll, figure > div')].map(b => [b.scrollWidth, b.clientWidth])"
    scrolling = page.evaluate(boxes)
    assert any(inner > outer for inner, outer in scrolling), "wide tables scroll inside their boxes"
    assert all(outer <= 375 for _, outer in scrolling)


def test_samples_stand_beside_each_other_and_on_a_phone_below_each_other(opened: Open) -> None:
    lefts = "() => [...document.querySelector('.made').children].map(one => one.getBoundingClientRect().left)"
    assert len(set(opened(viewport={"width": 1280, "height": 800}).evaluate(lefts))) > 1
    assert len(set(opened(viewport=PHONE).evaluate(lefts))) == 1


def test_on_paper_nothing_is_hidden_or_cut(opened: Open) -> None:
    page = opened(viewport=PAPER, color_scheme="dark")
    assert page.evaluate(HIDDEN) != [], "on a screen much is folded"
    page.emulate_media(media="print")
    assert page.evaluate(HIDDEN) == []
    assert page.evaluate(CUT_OFF) == []
    boxes = (
        "() => [...document.querySelectorAll('.scroll, figure > div, pre')].map(b => [b.scrollWidth, b.clientWidth])"
    )
    assert all(inner <= outer + 1 for inner, outer in page.evaluate(boxes))
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate(CONTRASTS)[0][0] >= 4.5
    printed = page.pdf(format="A4")
    assert printed.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) >= 4


def test_links_lead_to_ids_that_exist_once(opened: Open) -> None:
    page = opened()
    ids = page.evaluate("() => [...document.querySelectorAll('[id]')].map(one => one.id)")
    assert len(ids) == len(set(ids))
    links = page.evaluate("() => [...document.querySelectorAll('a')].map(one => one.getAttribute('href'))")
    assert len(links) > 10 and all(link.startswith("#") for link in links)
    assert {link[1:] for link in links} <= set(ids)
    page.click("nav a[href='#t2']")
    assert 0 <= page.evaluate("() => document.getElementById('t2').getBoundingClientRect().top") < 400
    uses = page.evaluate(
        "() => [...document.querySelectorAll('svg use')].map(one => [one.getAttribute('href').slice(1), "
        "one.getBoundingClientRect().width])"
    )
    assert uses and {name for name, _ in uses} <= set(ids)


def test_markup_in_records_and_sentences_stays_text(opened: Open) -> None:
    page = opened()
    unfold(page)
    for tag in ("script", "link", "iframe", "object", "embed", "base", "form"):
        assert page.locator(tag).count() == 0
    assert page.locator("img").count() == 0
    assert page.evaluate("() => [...document.querySelectorAll('*')].filter(o => o.onerror || o.onload).length") == 0
    assert page.locator("h1").text_content() == page.title() == f"A report {EVIL}"
    assert page.locator(".problems li").text_content() == f"a record {EVIL} is damaged"
    assert page.locator(".given dd").nth(0).text_content() == f"a dog runs around outside {EVIL} ."
    assert page.locator(".given dd").nth(1).text_content() == REFERENCE
    assert page.locator("summary", has_text="alert(1)").first.text_content() == f"{EVIL} failed"
    made = page.locator(".made dd").first
    kept = made.evaluate(
        "node => { const copy = node.cloneNode(true); copy.querySelectorAll('del').forEach(d => d.remove()); "
        "return copy.textContent.replace(/\\s+/g, ' '); }"
    )
    assert kept == f"draußen rennt ein Hund {EVIL} ."
    assert made.locator("ins").all_text_contents() == ["rennt"]
    assert made.locator("mark").all_text_contents() == ["draußen"]
    assert made.locator("del").all_text_contents() == ["läuft herum"]


def test_what_differs_is_told_apart_without_colour(opened: Open) -> None:
    page = opened()
    looks = {
        tag: page.locator(f".made {tag}").first.evaluate(
            "one => { const s = getComputedStyle(one); return s.textDecorationLine + ' ' + s.textDecorationStyle; }"
        )
        for tag in ("ins", "del", "mark")
    }
    assert looks == {"ins": "underline solid", "del": "line-through solid", "mark": "underline dotted"}


def test_drawings_have_room_inside_the_window(opened: Open) -> None:
    page = opened(viewport={"width": 1280, "height": 800})
    boxes = page.evaluate(
        "() => [...document.querySelectorAll('figure svg')].map(one => { const b = one.getBoundingClientRect(); "
        "return [one.getAttribute('aria-label'), b.left, b.right, b.width, b.height]; })"
    )
    names = {name.partition(":")[0] for name, *_ in boxes}
    expected = {"BLEU by clip distance", "BLEU by source length", "Learning curves"}
    assert names >= expected | {"Steps per second relative to absolute", "what positions learned, relative, k = 16"}
    for name, left, right, width, height in boxes:
        assert 0 <= left < right <= 1280 and width > 500 and height > 150, name
    images = page.evaluate(
        "() => [...document.querySelectorAll('svg image')].map(one => one.href.baseVal.slice(0, 15))"
    )
    assert set(images) == {"data:image/png;"}


def test_thousands_of_runs_load_at_once(opened: Open, tmp_path: Path) -> None:
    runs = [
        record(kind, k, seed=seed, scores=scored(20), settings={"optim.max_steps": steps, "position.tables": tables})
        for steps in (1000, 2000, 3000, 4000)
        for kind in ("relative", "relative_keys", "relative_values", "absolute_and_relative")
        for tables in ("per_head", "shared_by_heads")
        for k in range(9)
        for seed in range(1, 11)
    ]
    tables = position_tables(runs)
    assert len(runs) == 2880 and sum(len(table.rows) for table in tables) == 288
    path = tmp_path / "large.html"
    path.write_text(html_page("Many runs", [Chapter(table) for table in tables]), encoding="utf-8")
    assert path.stat().st_size < 5_000_000
    started = time.monotonic()
    page = opened(path, viewport=PHONE)
    elements = page.evaluate("() => document.querySelectorAll('*').length")
    wide = page.evaluate("() => document.documentElement.scrollWidth")
    assert time.monotonic() - started < 10
    assert elements < 60_000 and wide == 375
    assert page.locator("pre", has_text="seed=10").count() == 288


def test_a_photograph_of_the_page(browser: Any, report: Path, tmp_path: Path) -> None:
    photograph(browser, report, tmp_path / "page.png", width=400, height=300)
    head = (tmp_path / "page.png").read_bytes()[:24]
    assert head.startswith(b"\x89PNG") and struct.unpack(">II", head[16:]) == (800, 600)
