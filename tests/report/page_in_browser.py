"""What the browser test asks of a page: scripts that run inside it and return plain data."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Read when this file is imported: a test's own environment has no variable of ours.
REQUIRED = os.environ.get("RPR_REQUIRE_BROWSER") == "1"
_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
ARGUMENTS = [  # no window, no first questions, no traffic of its own
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]

# Every text with the ratio of its colour to what lies below it (WCAG 2, relative luminance); rounded to 0.01.
CONTRASTS = """() => {
  const channels = text => (text.match(/[\\d.]+/g) || []).map(Number);
  const luminance = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map(c => c / 255).map(c => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const solid = text => { const c = channels(text); return c.length === 4 && c[3] === 0 ? null : c; };
  const below = element => {
    for (let one = element; one; one = one.parentElement) {
      const found = solid(getComputedStyle(one).backgroundColor);
      if (found) return found;
    }
    return [255, 255, 255];
  };
  const seen = new Map();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim();
    if (!text) continue;
    const element = walker.currentNode.parentElement;
    const style = getComputedStyle(element);
    const colour = channels(style.color);
    const [a, b] = [luminance(colour), luminance(below(element))].sort((x, y) => y - x);
    const ratio = Math.round(100 * (a + 0.05) / (b + 0.05)) / 100;
    const key = element.tagName + ' ' + ratio;
    if (!seen.has(key)) seen.set(key, [ratio, element.tagName, text.slice(0, 60)]);
  }
  return [...seen.values()].sort((x, y) => x[0] - y[0]);
}"""

# The smallest size of a text in CSS pixels.
SMALLEST_TEXT = """() => {
  let smallest = [1e9, ''];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const text = walker.currentNode.textContent.trim();
    const element = walker.currentNode.parentElement;
    if (!text || !element.checkVisibility()) continue;
    const size = parseFloat(getComputedStyle(element).fontSize);
    if (size < smallest[0]) smallest = [size, text.slice(0, 60)];
  }
  return smallest;
}"""

# Elements of a kind that reach beyond the window to the right and are not inside a box that scrolls.
CUT_OFF = """() => [...document.querySelectorAll('body *')].filter(element => {
  const box = element.getBoundingClientRect();
  if (!box.width || box.right <= document.documentElement.clientWidth + 1) return false;
  for (let one = element.parentElement; one; one = one.parentElement)
    if (['auto', 'scroll'].includes(getComputedStyle(one).overflowX)) return false;
  return true;
}).map(element => element.outerHTML.slice(0, 120))"""

# Text that is not shown or takes no room, although it is there.
HIDDEN = """() => {
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    if (!walker.currentNode.textContent.trim()) continue;
    const range = document.createRange();
    range.selectNodeContents(walker.currentNode);
    const shown = walker.currentNode.parentElement.checkVisibility();
    if (!shown || !range.getBoundingClientRect().height) found.push(walker.currentNode.textContent.trim().slice(0, 60));
  }
  return found;
}"""


def executable() -> str | None:
    """An installed Chromium or Chrome."""
    return next((found for name in _NAMES if (found := shutil.which(name)) is not None), None)


@contextmanager
def chromium() -> Iterator[Any]:
    """A started browser without a window; `executable()` must have found one."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable(), args=ARGUMENTS)
        yield browser
        browser.close()


def photograph(browser: Any, page: Path, out: Path, *, width: int, height: int = 800, dark: bool = False) -> None:
    """The top of a page as a PNG, two pixels for each of CSS: for looking at it.

    With `chromium() as browser`, the sizes (1280, 800) and (375, 800) show it on a desk and on a phone.
    """
    scheme = "dark" if dark else "light"
    size = {"width": width, "height": height}
    view = browser.new_page(viewport=size, device_scale_factor=2, color_scheme=scheme)
    view.goto(page.resolve().as_uri())
    view.screenshot(path=out)
    view.close()
