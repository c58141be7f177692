"""The HTML page in a real browser: no requests and no scripts; readable in light, dark, on a phone and on paper.

Needs Chromium or Chrome; skipped without one, or failed if RPR_REQUIRE_BROWSER=1 is set.
"""

import importlib.util
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from rpr.records.record import find_records
from rpr.report import plot_style
from rpr.report.build import build_report
from rpr.report.position_figure import position_figure
from tests.fake_records import fake_by_length, fake_interval, fake_record, fake_score, write_run
from tests.report.test_position_figure import numbers_of

# Read at import, as conftest.py removes such variables from each test's environment.
REQUIRED = os.environ.get("RPR_REQUIRE_BROWSER") == "1"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = [
    *("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync"),
]
EVIL = '</title></pre></dd><script>alert(1)</script><img src="x" onerror="alert(2)">'
REFERENCE = f"ein Hund läuft draußen herum {EVIL} ."
DESKTOP = {"width": 1280, "height": 800}
PHONE = {"width": 390, "height": 844}
PAPER = {"width": 703, "height": 1000}  # A4 less margins of 12 mm, in CSS pixels

SCRIPTS = Path(__file__).with_name("page.js").read_text(encoding="utf-8")


def scored(value: float) -> list[dict[str, Any]]:
    return [
        fake_score(split, value - less, metric, interval=fake_interval(value - less - 1.1, value - less + 1.2))
        for metric in ("sacrebleu", "chrf", "bleu_tok", "bleu_tok_split")
        for split, less in (("test", 0.0), ("long", 8.0), ("validation", 1.0))
    ]


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Two groups, several seeds, a failed run with markup in its name, curves, translations, a position figure."""
    folder = tmp_path_factory.mktemp("page")
    root = folder / "runs"
    lengths = fake_by_length(40, 30, 25, 20)
    runs = [
        fake_record("relative", k, seed=seed, scores=scored(20 + k / 4 + seed / 10), by_length=lengths)
        for k in (0, 2, 16)
        for seed in (1, 2)
    ]
    runs += [
        fake_record("absolute", scores=scored(25), by_length=lengths),
        fake_record("none", status="failed", name=EVIL, error=EVIL),
        fake_record("relative", 8, scores=scored(33), synthetic=True),
        fake_record("absolute", scores=scored(31), synthetic=True),
    ]
    for number, run in enumerate(runs):
        hypothesis = f"draußen rennt ein Hund {EVIL} ."
        write_run(root / str(number) / "record.json", run, f"a dog runs around outside {EVIL} .", REFERENCE, hypothesis)
    picture = plot_style.rendered(position_figure(numbers_of(), "A run", "k = 3"))
    (root / "4" / "positions.svg").write_bytes(picture)
    found = find_records(root)
    assert not found.problems
    build_report(found.records, folder / "out", f"A report {EVIL}", [f"a record {EVIL} is damaged"])
    return folder / "out" / "index.html"


@pytest.fixture(scope="module")
def browser():
    refuse = pytest.fail if REQUIRED else pytest.skip
    if importlib.util.find_spec("playwright") is None:
        refuse("playwright is not installed: pip install playwright")
    executable = next((found for name in NAMES if (found := shutil.which(name)) is not None), None)
    if executable is None:
        refuse("no Chromium or Chrome is installed")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS)
        yield started
        started.close()


@pytest.fixture
def opened(browser, report):
    """Opens the report offline in a new window; fails on any request, console message or dialog."""
    contexts, wrong = [], []

    def open_page(path=report, **options):
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
    assert wrong == []


def seen(page: Any, what: str) -> Any:
    """What a function of page.js says of the page."""
    return page.evaluate(f"{SCRIPTS.rstrip()}.{what}")


def unfold(page: Any) -> None:
    page.evaluate("() => document.querySelectorAll('details').forEach(one => { one.open = true; })")


def test_light_and_dark_schemes_have_enough_contrast(opened, tmp_path):
    from matplotlib.image import imread

    grounds = set()
    for scheme in ("light", "dark"):
        page = opened(viewport=DESKTOP, color_scheme=scheme)
        style = "getComputedStyle(document.body)"
        ground, ink = page.evaluate(f"() => [{style}.backgroundColor, {style}.color]")
        grounds |= {ground, ink}
        contrasts = seen(page, "contrasts()")
        assert len(contrasts) > 20
        assert contrasts[0][0] >= 4.5, (scheme, contrasts[:3])
    assert len(grounds) == 4
    page.locator("#first img").screenshot(path=tmp_path / "plot.png")
    corner = [round(255 * float(channel)) for channel in imread(tmp_path / "plot.png")[3, 3, :3]]
    assert ground == f"rgb({', '.join(map(str, corner))})"


def test_phone_layout_fits_and_text_is_large_enough(opened):
    page = opened(viewport=PHONE, is_mobile=True, has_touch=True)
    unfold(page)
    [[wide, room]] = seen(page, "widths('html')")
    assert wide <= room == 390
    assert seen(page, "cutOff()") == []
    size, text = seen(page, "smallestText()")
    assert size >= 11.99, text
    scrolling = seen(page, "widths('.scroll, figure > div')")
    assert any(inner > outer for inner, outer in scrolling), "wide tables scroll inside their boxes"
    assert all(outer <= 390 for _, outer in scrolling)


def test_print_hides_and_cuts_nothing(opened):
    page = opened(viewport=PAPER, color_scheme="dark")
    assert seen(page, "hidden()") != []
    page.emulate_media(media="print")
    assert seen(page, "hidden()") == []
    assert seen(page, "cutOff()") == []
    assert all(inner <= outer + 1 for inner, outer in seen(page, "widths('.scroll, figure > div, pre')"))
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert seen(page, "contrasts()")[0][0] >= 4.5
    printed = page.pdf(format="A4")
    assert printed.startswith(b"%PDF")
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) >= 4


def test_links_point_to_unique_ids(opened):
    page = opened(viewport=DESKTOP)
    ids = page.evaluate("() => [...document.querySelectorAll('[id]')].map(one => one.id)")
    assert len(ids) == len(set(ids))
    links = page.evaluate("() => [...document.querySelectorAll('a')].map(one => one.getAttribute('href'))")
    assert len(links) > 10 and all(link.startswith("#") for link in links)
    assert {link[1:] for link in links} <= set(ids)
    page.click("nav a[href='#t2']")
    assert 0 <= page.evaluate("() => document.getElementById('t2').getBoundingClientRect().top") < 400
    # A footnote mark opens the folded footnotes.
    mark = page.locator("#paper sup a").first
    note = page.locator(str(mark.get_attribute("href")))
    assert not note.is_visible()
    mark.click()
    assert note.is_visible()
    assert 0 <= note.bounding_box()["y"] < 800


def test_plot_and_findings_come_first_and_every_picture_is_shown(opened):
    page = opened(viewport=DESKTOP)
    plot, found = page.locator("#first img").bounding_box(), page.locator("#findings").bounding_box()
    assert plot["y"] + plot["height"] <= 800 and found["y"] + found["height"] <= 800
    phone = opened(viewport=PHONE, is_mobile=True, has_touch=True)
    assert phone.locator("#findings li").first.bounding_box()["y"] < 844 - 40, "it begins on the screen"
    pictures = page.evaluate(
        "() => [...document.querySelectorAll('figure img')].map(one => [one.alt, one.width, one.naturalWidth])"
    )
    assert {name.partition(":")[0].partition(",")[0] for name, *_ in pictures} >= {
        "BLEU by clip distance", "BLEU by source length", "Learning curves", "What positions learned",
    }  # fmt: skip
    assert all(500 < width <= 1280 and natural > 0 for _, width, natural in pictures), pictures


def test_markup_in_records_and_sentences_stays_text(opened):
    page = opened()
    unfold(page)
    for tag in ("script", "link", "iframe", "object", "embed", "base", "form"):
        assert page.locator(tag).count() == 0
    sources = page.evaluate("() => [...document.querySelectorAll('img')].map(one => one.src.slice(0, 26))")
    assert set(sources) == {"data:image/svg+xml;base64,"}
    assert page.evaluate("() => [...document.querySelectorAll('*')].filter(o => o.onerror || o.onload).length") == 0
    assert page.locator("h1").text_content() == page.title() == f"A report {EVIL}"
    assert page.locator(".problems li").text_content() == f"a record {EVIL} is damaged"
    assert page.locator(".given dd").nth(0).text_content() == f"a dog runs around outside {EVIL} ."
    assert page.locator(".given dd").nth(1).text_content() == REFERENCE
    assert page.locator("summary", has_text="alert(1)").first.text_content() == f"{EVIL} failed"
    assert page.locator(".made dd").first.text_content() == f"draußen rennt ein Hund {EVIL} ."
