"""The HTML page in a real browser: the table beside the picture, sorting, contrast, a phone; markup stays text.

Needs Chromium or Chrome; skipped without one, or failed if RPR_REQUIRE_BROWSER=1 is set.
"""

import importlib.util
import os
import shutil
from pathlib import Path

import pytest

from rpr.records.record import find_records
from rpr.report.page import build_report
from tests.fake_records import fake_by_length, fake_record, write_run

# Read at import, as conftest.py removes such variables from each test's environment.
REQUIRED = os.environ.get("RPR_REQUIRE_BROWSER") == "1"
NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
EVIL = '</title></pre></dd><script>alert(1)</script><img src="x" onerror="alert(2)">'
SEEN = Path(__file__).with_name("page.js").read_text(encoding="utf-8").strip().rstrip(";")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """A page of several rows and seeds, a failed run, curves and translations, with markup in every text."""
    folder = tmp_path_factory.mktemp("page")
    runs = [
        fake_record(kind, seed=seed, scores={"test": score + seed / 10}, by_length=fake_by_length(40, 30, 25, 20))
        for kind, score in (("relative", 30.0), ("rope", 29.0), ("t5", 28.0), ("absolute", 27.0), ("alibi", 5.0))
        for seed in (1, 2, 3)
    ]
    runs.append(fake_record("none", status="failed", name=EVIL, error=EVIL))
    for number, run in enumerate(runs):
        write_run(folder / "runs" / str(number) / "record.json", run, f"a dog {EVIL}", f"ein Hund {EVIL}", EVIL)
    found = find_records(folder / "runs")
    assert not found.problems
    build_report(found.records, folder / "out", f"A report {EVIL}", [f"a record {EVIL} is damaged"])
    return folder / "out" / "index.html"


@pytest.fixture(scope="module")
def browser():
    executable = next((found for name in NAMES if (found := shutil.which(name)) is not None), None)
    if executable is None or importlib.util.find_spec("playwright") is None:
        (pytest.fail if REQUIRED else pytest.skip)("needs Chromium or Chrome, and pip install playwright")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox", "--disable-gpu"])
        yield started
        started.close()


@pytest.mark.parametrize("scheme, width, height", [("light", 1280, 900), ("dark", 390, 844)])
def test_page_in_a_browser(browser, path, scheme, width, height):
    context = browser.new_context(offline=True, viewport={"width": width, "height": height}, color_scheme=scheme)
    page, wrong = context.new_page(), []
    page.on("request", lambda request: wrong.append(request.url) if request.url != path.as_uri() else None)
    page.on("console", lambda message: wrong.append(message.text))
    page.on("dialog", lambda dialog: (wrong.append(dialog.message), dialog.dismiss()))
    page.goto(path.as_uri())
    # 1. The first screen: the table, beside the picture where there is room.
    table, picture = (page.locator(f".answer {tag}").first.bounding_box() for tag in ("table", "img"))
    assert table["y"] + table["height"] <= height
    if width > 1000:
        assert picture["y"] + picture["height"] <= height and picture["x"] > table["x"] + table["width"]
    # 2. A click sorts: by score the worst first, then the best; the row without a score stays last.
    scores = page.locator(".answer tbody td.test")
    button = page.locator(".answer th.test button")
    best_first = scores.all_text_contents()
    button.click()
    assert scores.all_text_contents() == best_first
    button.click()
    known = [text for text in best_first if text != "–"]
    assert scores.all_text_contents() == [*reversed(known), *(["–"] * (len(best_first) - len(known)))]
    # 3. Everything is readable, and nothing is beyond the edge.
    page.evaluate("() => document.querySelectorAll('details').forEach(one => one.open = true)")
    contrasts, cut_off = (page.evaluate(f"() => {SEEN}.{name}()") for name in ("contrasts", "cutOff"))
    assert len(contrasts) > 20 and contrasts[0][0] >= 4.5, contrasts[:3]
    assert cut_off == []
    pictures = page.evaluate("() => [...document.images].map(one => [one.alt, one.naturalWidth])")
    assert len(pictures) >= 2 and all(natural > 0 for _, natural in pictures)
    # 4. Markup in records and sentences stays text, and nothing was fetched.
    assert page.locator("script").count() == 1 and page.locator("[onerror]").count() == 0
    assert page.locator("h1").text_content() == page.title() == f"A report {EVIL}"
    assert page.locator(".given dd").nth(1).text_content() == f"ein Hund {EVIL}"
    assert wrong == []
    context.close()
