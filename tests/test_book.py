"""The built book in a real browser, from ``file://``: pages, equations, images, search, dark mode, phone width.

Skipped where the book has not been built or there is no Chromium; with ``CI=true`` either is a failure.
``MI_BOOK_HTML`` names another folder of built HTML.
"""

import os
import re
import shutil
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent
HTML = Path(os.environ.get("MI_BOOK_HTML", ROOT / "_build" / "html"))
CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
TOC = yaml.safe_load((ROOT / "book" / "_toc.yml").read_text())
PAGES = [TOC["root"]] + [chapter["file"] for part in TOC["parts"] for chapter in part["chapters"]]
EXECUTED = [page for page in PAGES if page.startswith("executed/")]
FIGURES = ["executed/sudoku_interpretability", "executed/table1", "executed/training"]  # pages that promise one

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
    """One page in a fresh browser context, with what it asked for and complained about."""

    def __init__(self, browser, name: str, width: int = 1280, query: str = ""):
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme="light")
        self.foreign, self.errors, self.failed = [], [], []
        self.page = self.context.new_page()
        self.page.on("request", self._request)
        self.page.on("requestfailed", lambda r: self.failed.append(r.url))
        self.page.on("console", lambda m: self.errors.append(m.text) if m.type == "error" else None)
        self.page.on("pageerror", lambda e: self.errors.append(str(e)))
        self.page.goto((HTML / f"{name}.html").as_uri() + query, wait_until="load")
        self.page.wait_for_function("!window.MathJax || !MathJax.startup || MathJax.startup.promise")
        self.page.evaluate("window.MathJax?.startup?.promise")

    def _request(self, request) -> None:
        if not request.url.startswith(("file:", "data:", "blob:", "about:")):
            self.foreign.append(request.url)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.context.close()


@book
@pytest.mark.parametrize("name", PAGES)
def test_page_is_whole(browser, name):
    with Visit(browser, name) as visit:
        page = visit.page
        assert page.locator("article h1").count() == 1
        assert len(page.locator("article").inner_text()) > 400
        assert visit.foreign == []
        assert visit.failed == []
        assert visit.errors == []
        page.evaluate("document.querySelectorAll('img').forEach(image => image.loading = 'eager')")
        page.wait_for_function("[...document.images].every(image => image.complete)")
        broken = page.evaluate("[...document.images].filter(i => !i.naturalWidth).map(i => i.src)")
        assert broken == []
        text = page.locator("article").inner_text()
        raw = re.search(r"\\\(|\\\[|\$\$|\\begin\{|\{cite|\{glue|\{doc\}|\{numref\}", text)
        assert raw is None, text[max(0, raw.start() - 80) : raw.end() + 80]
        assert page.locator("article .math").count() == page.locator("article .math mjx-container").count()
        assert page.locator("mjx-merror").count() == 0


@book
def test_equations_are_rendered(browser):
    for name in ("background", "notation"):
        with Visit(browser, name) as visit:
            assert visit.page.locator("article mjx-container").count() > 10
            assert visit.page.locator("article mjx-container svg, article mjx-container mjx-math").count() > 10


@book
@pytest.mark.parametrize("name", EXECUTED)
def test_figures_are_numbered_and_captioned(browser, name):
    with Visit(browser, name) as visit:
        figures = visit.page.evaluate(
            """[...document.querySelectorAll('article img')].map(image => {
                 const caption = image.closest('figure')?.querySelector('figcaption');
                 return [caption?.querySelector('.caption-number')?.innerText ?? '',
                         caption?.querySelector('.caption-text')?.innerText ?? '', image.alt];
               })"""
        )
        for number, caption, alt in figures:
            assert re.fullmatch(r"Fig\.\s+\d+\s*", number), f"an image without a number: {caption or alt!r}"
            assert len(caption) > 10, f"{number} has no caption"
        if name in FIGURES:
            assert figures, "the page shows no figure"


@book
@pytest.mark.parametrize("name", EXECUTED)
def test_executed_page_ends_with_its_provenance(browser, name):
    with Visit(browser, name) as visit:
        footer = visit.page.locator("article table.provenance")
        assert footer.count() == 1
        text = footer.inner_text()
        for label in ("Provenance", "Parameters", "preset", "Commit", "Versions", "torch", "Device", "Date", "Wall time"):
            assert label in text, f"the provenance footer lacks {label!r}"
        last = "document.querySelectorAll('article .cell'); const f = document.querySelector('table.provenance');"
        assert visit.page.evaluate(f"(() => {{ const c = {last} return c[c.length - 1].contains(f) }})()")
        assert visit.page.locator("article .traceback").count() == 0


@book
def test_search_finds_a_known_word(browser):
    with Visit(browser, "search", query="?q=entropy") as visit:
        visit.page.wait_for_selector("#search-results li a", timeout=15_000)
        titles = " ".join(visit.page.locator("#search-results li").all_inner_texts())
        assert "Notation" in titles and "Background" in titles
        assert visit.foreign == []


@book
def test_dark_mode_toggles_and_stays(browser):
    with Visit(browser, "background") as visit:
        page = visit.page
        shade = "(c => c.slice(0, 3).reduce((a, b) => a + +b, 0) / 3)"
        paper = f"{shade}(getComputedStyle(document.body).backgroundColor.match(/[0-9.]+/g))"
        ink = f"{shade}(getComputedStyle(document.querySelector('article p')).color.match(/[0-9.]+/g))"
        button = page.locator(".theme-switch-button:visible").first
        seen = {}
        for _ in range(3):  # light, dark, system
            button.click()
            theme = page.evaluate("document.documentElement.dataset.theme")
            page.wait_for_timeout(400)  # colours fade
            seen[theme] = (page.evaluate(paper), page.evaluate(ink))
        assert seen["light"][0] > 200 > 100 > seen["light"][1]
        assert seen["dark"][0] < 60 < 150 < seen["dark"][1]
        while page.evaluate("document.documentElement.dataset.mode") != "dark":
            button.click()
        page.goto((HTML / "notation.html").as_uri())
        assert page.evaluate("document.documentElement.dataset.theme") == "dark"


@book
@pytest.mark.parametrize("name", PAGES)
def test_phone_width_does_not_scroll_sideways(browser, name):
    with Visit(browser, name, width=390) as visit:
        wide = visit.page.evaluate(
            """(() => {
                 const root = document.documentElement;
                 if (root.scrollWidth <= root.clientWidth) return [];
                 return [...document.querySelectorAll('article *')]
                   .filter(e => e.getBoundingClientRect().right > root.clientWidth + 1)
                   .slice(0, 5).map(e => e.tagName + '.' + e.className + ': ' + e.innerText?.slice(0, 60));
               })()"""
        )
        assert wide == []
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= 390


@book
def test_internal_links_lead_somewhere(browser):
    broken = []
    for name in PAGES:
        with Visit(browser, name) as visit:
            for href in visit.page.evaluate("[...document.querySelectorAll('a[href]')].map(a => a.href)"):
                if href.startswith("file:"):
                    path, _, anchor = href.removeprefix("file://").partition("#")
                    target = Path(path.partition("?")[0])
                    if not target.is_file():
                        broken.append(f"{name} -> {href}")
                    elif anchor and target.suffix == ".html" and f'id="{anchor}"' not in target.read_text():
                        broken.append(f"{name} -> {href} (no such anchor)")
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
    scope, printed = {}, []
    exec(blocks[0], scope | {"print": lambda *values: printed.extend(values)}, scope)
    mi, tokens, _ = printed
    assert mi.shape == (6, 6) and bool((mi == mi.T).all()) and float(mi[1, 2]) > 0
    assert tokens.tolist()[0][0] == 1 and tokens.tolist()[0][3] == 2 and 0 not in tokens.tolist()[0]
