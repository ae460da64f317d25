"""Links between Markdown pages lead to files and headings that exist, and every page can be found."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("docs", "src", "tests", "results", "examples", "benchmarks", ".github")
PAGES = [*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in (ROOT / folder).rglob("*.md"))]
LINK = re.compile(r"\]\((?!\w+:)([^)#\s]*)(?:#([^)\s]+))?\)")


def prose(page: Path) -> str:
    """The text of a page without blocks and spans of code, in which brackets are no links."""
    text = re.sub(r"^(`{3,})[^\n]*\n.*?^\1$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    return re.sub(r"(?<!\[)`[^`\n]*`", "", text)


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    headings = re.findall(r"^#+ +(.*?)\s*$", text, re.M)
    plain = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower() for heading in headings]
    return {re.sub(r"[^\w\- ]", "", heading).strip().replace(" ", "-") for heading in plain}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for path, anchor in LINK.findall(prose(page)):
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), path
        assert target.is_relative_to(ROOT), f"{path} leaves the repository"
        if anchor and target.suffix == ".md":
            assert anchor in anchors(target), f"{path}#{anchor}"


@pytest.mark.parametrize(
    "page", [page for page in PAGES if page.is_relative_to(ROOT / "docs")], ids=lambda page: page.name
)
def test_no_brackets_that_the_site_takes_for_a_reference(page: Path) -> None:
    assert re.findall(r"\w*\]\[\w*", prose(page)) == [], "write [grid, grid] or put it between backticks"


def test_the_site_is_built_strictly() -> None:
    assert re.search(r"mkdocs build --strict$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)


def test_every_link_of_the_site_s_navigation_exists() -> None:
    nav = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    from_outside = {"index.md", "contributing.md", "changelog.md", "code-of-conduct.md", "security.md", "results.md"}
    for page in re.findall(r"([\w/-]+\.md)$", nav, re.M):
        assert page in from_outside or (ROOT / "docs" / page).exists(), page
