"""The built book in a real browser, from ``file://``: pages, equations, images, search, dark mode, phone width.

Skipped where the book has not been built or there is no Chromium; with ``CI=true`` either is a failure.
``MI_BOOK_HTML`` names another folder of built HTML.
"""

import math
import os
import re
import shutil
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
import torch
import yaml

ROOT = Path(__file__).resolve().parent.parent
HTML = Path(os.environ.get("MI_BOOK_HTML", ROOT / "_build" / "html"))
CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
TOC = yaml.safe_load((ROOT / "book" / "_toc.yml").read_text())
PAGES = [TOC["root"]] + [chapter["file"] for part in TOC["parts"] for chapter in part["chapters"]]
EXECUTED = [page for page in PAGES if page.startswith("executed/")]
WITH_FIGURES = ["executed/sudoku_interpretability", "executed/table1", "executed/training"]  # pages that promise one

PATIENCE = 120_000  # ms; a machine may be busy training

HARMLESS = re.compile("THEBE_JS_URL.*already been declared|Got invalid theme mode: ")  # the theme's own, on every page

book = pytest.mark.book


def missing(what: str) -> None:
    """Skip, or fail where nothing may be missing."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what}, and CI=true")
    pytest.skip(what)


@pytest.fixture(scope="module")
def browser():
    if not (HTML / f"{TOC['root']}.html").is_file():
        missing(f"no built book in {HTML} (`make book`)")
    if not Path(CHROMIUM).is_file():
        missing(f"no Chromium at {CHROMIUM}")
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as p:
        running = p.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield running
        running.close()


class Visit:
    """One open page, with what it asked for and complained about."""

    def __init__(self, browser, path: str, width: int = 1280):
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme="light")
        self.context.set_default_timeout(PATIENCE)
        self.foreign, self.errors, self.failed = [], [], []
        self.page = self.context.new_page()
        self.page.on("request", self._request)
        self.page.on("requestfailed", lambda request: self.failed.append(request.url))
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.goto(HTML.resolve().as_uri() + "/" + path, wait_until="load")

    def _request(self, request) -> None:
        if not request.url.startswith(("file:", "data:", "blob:", "about:")):
            self.foreign.append(request.url)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.context.close()


@pytest.fixture(scope="module")
def visit(browser):
    """Open a page of the book, once for all tests; equations are set, lazy images are loaded."""
    opened = {}

    def of(name: str) -> Visit:
        if name not in opened:
            opened[name] = Visit(browser, f"{name}.html")
            page = opened[name].page
            if page.locator("article .math").count():
                page.wait_for_function("window.MathJax?.startup?.promise")
                page.evaluate("MathJax.startup.promise")
            page.evaluate("document.querySelectorAll('img').forEach(image => image.loading = 'eager')")
            page.wait_for_function("[...document.images].every(image => image.complete)")
        return opened[name]

    yield of
    for each in opened.values():
        each.context.close()


@book
@pytest.mark.parametrize("name", PAGES)
def test_page_is_whole(visit, name):
    page = visit(name).page
    assert page.locator("article h1").count() == 1
    text = page.locator("article").inner_text()
    assert len(text) > 400
    assert visit(name).foreign == []
    assert visit(name).failed == []
    assert [error for error in visit(name).errors if not HARMLESS.search(error)] == []
    assert page.evaluate("[...document.images].filter(image => !image.naturalWidth).map(image => image.src)") == []
    raw = re.search(r"\\\(|\\\[|\$\$|\\begin\{|\{(cite|glue|doc|ref|numref|eq)\b", text)
    assert raw is None, text[max(0, raw.start() - 80) : raw.end() + 80]


@book
@pytest.mark.parametrize("name", PAGES)
def test_every_equation_is_rendered(visit, name):
    page = visit(name).page
    written = page.locator("article .math").count()
    rendered = page.locator("article .math:has(mjx-container mjx-math)").count()
    assert rendered == written
    assert page.locator("mjx-merror").count() == 0
    if name in ("background", "notation"):
        assert written > 10


@book
@pytest.mark.parametrize("name", EXECUTED)
def test_figures_are_numbered_and_captioned(visit, name):
    figures = visit(name).page.evaluate(
        """[...document.querySelectorAll('article img')].map(image => {
             const caption = image.closest('figure')?.querySelector('figcaption');
             return [caption?.querySelector('.caption-number')?.innerText ?? '',
                     caption?.querySelector('.caption-text')?.innerText ?? '', image.alt];
           })"""
    )
    for number, caption, alt in figures:
        assert re.fullmatch(r"Fig\.\s+\d+\s*", number), f"an image without a number: {caption or alt!r}"
        assert len(caption) > 10, f"{number} has no caption"
    assert figures or name not in WITH_FIGURES, "the page shows no figure"


@book
@pytest.mark.parametrize("name", EXECUTED)
def test_executed_page_ends_with_its_provenance(visit, name):
    page = visit(name).page
    footer = page.locator("article table.provenance")
    assert footer.count() == 1
    text = footer.inner_text()
    for label in ("Provenance", "Parameters", "preset", "Commit", "Versions", "torch", "Device", "Date", "Wall time"):
        assert label in text, f"the provenance footer lacks {label!r}"
    assert page.evaluate("!![...document.querySelectorAll('article .cell')].pop().querySelector('table.provenance')")
    assert page.locator("article .traceback").count() == 0


@book
def test_search_finds_a_known_word(browser):
    with Visit(browser, "search.html?q=entropy") as visit:
        visit.page.wait_for_selector("#search-results li a")
        visit.page.wait_for_function("document.querySelectorAll('#search-results li').length > 1")
        titles = " ".join(visit.page.locator("#search-results li").all_inner_texts())
        assert "Notation" in titles
        assert visit.foreign == []


@book
def test_dark_mode_toggles_and_stays(browser):
    with Visit(browser, "notation.html") as visit:
        page = visit.page
        shade = "(c => c.slice(0, 3).reduce((a, b) => a + +b, 0) / 3)"
        paper = f"{shade}(getComputedStyle(document.body).backgroundColor.match(/[0-9.]+/g))"
        ink = f"{shade}(getComputedStyle(document.querySelector('article p')).color.match(/[0-9.]+/g))"
        button = page.locator(".theme-switch-button:visible").first
        seen = {}
        for _ in range(3):  # light, dark, as the system
            button.click()
            page.wait_for_timeout(600)  # colours fade
            mode = page.evaluate("document.documentElement.dataset.mode")
            seen[mode] = (page.evaluate(paper), page.evaluate(ink))
        assert set(seen) == {"light", "dark", "auto"}
        assert seen["light"][0] > 200 > 100 > seen["light"][1]
        assert seen["dark"][0] < 60 < 150 < seen["dark"][1]
        while page.evaluate("document.documentElement.dataset.mode") != "dark":
            button.click()
        page.reload()
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"


@book
@pytest.mark.parametrize("name", PAGES)
def test_phone_width_does_not_scroll_sideways(visit, name):
    page = visit(name).page
    page.set_viewport_size({"width": 390, "height": 844})
    wide = page.evaluate(
        """(() => {
             const room = document.documentElement.clientWidth;
             const scrolls = e => e && (getComputedStyle(e).overflowX !== 'visible' || scrolls(e.parentElement));
             if (document.documentElement.scrollWidth <= room) return [];
             return [...document.querySelectorAll('body *')]
               .filter(e => e.getBoundingClientRect().right > room + 1 && !scrolls(e.parentElement))
               .slice(0, 8).map(e => `${e.tagName}.${e.className}: ${e.textContent.trim().slice(0, 60)}`);
           })()"""
    )
    page.set_viewport_size({"width": 1280, "height": 900})
    assert wide == []


@book
def test_internal_links_lead_somewhere(visit):
    anchors, broken = {}, []
    for name in PAGES:
        for href in visit(name).page.evaluate("[...document.querySelectorAll('a[href]')].map(a => a.href)"):
            if not href.startswith("file:"):
                continue
            url = urlsplit(href)
            path = Path(unquote(url.path))
            if path not in anchors:
                found = path.is_file() and path.suffix == ".html"
                anchors[path] = set(re.findall(r'id="([^"]+)"', path.read_text())) if found else set()
            if not path.is_file() or (url.fragment and unquote(url.fragment) not in anchors[path]):
                broken.append(f"{name} -> {path.name}#{url.fragment}")
    assert broken == []


def test_prose_cites_only_what_the_bibliography_has():
    known = set(re.findall(r"^@\w+\{([^,]+),", (ROOT / "book" / "references.bib").read_text(), re.M))
    texts = [*(ROOT / "book").glob("*.md"), *(ROOT / "notebooks").glob("*.md")]
    cited = {
        key.strip()
        for path in texts
        for keys in re.findall(r"\{cite:\w+\}`([^`]+)`", path.read_text())
        for key in keys.split(",")
    }
    assert cited <= known
    assert known <= cited, "an entry that no page cites never appears in the bibliography"


def test_readme_example_runs():
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert len(blocks) == 1
    printed = []
    exec(blocks[0], {"print": lambda *values: printed.extend(values), "__name__": "readme"})
    mi, tokens, step = printed
    mirror = torch.eye(6).flip(0) * math.log(3)
    mirror[[0, 5], [5, 0]] = 0  # given, and then certain
    torch.testing.assert_close(mi, mirror, atol=1e-5, rtol=0)
    assert tokens.equal(tokens.flip(1)) and tokens[0, 0] == 1
    assert step.amax() == 1
