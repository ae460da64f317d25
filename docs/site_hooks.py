"""Hooks of the site that mkdocs.yml describes.

Pages outside docs/ become part of the site. A link to any other file of the repository leads to a page with that file's
text. A notebook of docs/ has a page with its text and code, and can be downloaded. Patterns in the navigation stand for
the pages that are named nowhere else. The build fails if a page would ask another host for anything.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
PAGES = {  # files of the repository that are pages of the site
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "code-of-conduct.md",
    "SECURITY.md": "security.md",
    "results/README.md": "results.md",
}
LINK = re.compile(r"(\]\()(?!\w+:|#)([^)#\s]+)")
LANGUAGES = {".py": "python", ".yaml": "yaml", ".yml": "yaml", ".toml": "toml", "": "make"}
FETCHED = re.compile(
    r"""<(?:script|img|iframe|source)\b[^>]*\bsrc=["']?(?:https?:)?//[^>]*>"""
    r"""|<link\b(?=[^>]*\brel=["']?(?:stylesheet|preload|preconnect|prefetch))[^>]*\bhref=["']?(?:https?:)?//[^>]*>"""
    r"""|(?:url\(["']?|@import\s+["']?)(?:https?:)?//[^)\s]*"""
)


def on_config(config: Any) -> Any:
    """Replace the patterns of the navigation by the pages that it does not name."""
    named = set(_named_pages(config.nav))
    docs = Path(config.docs_dir)
    pages = {path.relative_to(docs).as_posix() for path in docs.rglob("*.md")}
    pages |= {path.relative_to(docs).with_suffix(".md").as_posix() for path in docs.rglob("*.ipynb")}
    config.nav = _expand(config.nav, sorted(pages - named))
    return config


def _named_pages(nav: Any) -> Iterator[str]:
    """Yield the pages and patterns that a navigation names."""
    if isinstance(nav, str):
        yield nav
    else:
        for item in nav.values() if isinstance(nav, dict) else nav:
            yield from _named_pages(item)


def _expand(nav: Any, unnamed: list[str]) -> Any:
    """Return a navigation whose patterns are replaced by pages, each of which is used once."""
    if isinstance(nav, dict):
        return {title: _expand(item, unnamed) for title, item in nav.items()}
    if isinstance(nav, str):
        return nav
    found: list[Any] = []
    for item in nav:
        if isinstance(item, str) and "*" in item:
            folder, _, name = item.rpartition("/")
            pattern = re.compile(re.escape(f"{folder}/{name}".lstrip("/")).replace(r"\*", "[^/]*"))
            matching = [page for page in unnamed if pattern.fullmatch(page)]
            found += matching
            unnamed[:] = [page for page in unnamed if page not in matching]
        else:
            found.append(_expand(item, unnamed))
    return found


def on_files(files: Files, config: Any) -> Files:
    """Add the pages outside docs/, those of notebooks, and a page for every other file that a page links to."""
    waiting, added = [f"docs/{file.src_uri}" for file in files.documentation_pages()], set(PAGES)
    waiting += PAGES
    while waiting:
        linked = {target for target in _targets(waiting.pop()) if not target.startswith("docs/")} - added
        added |= {target for target in linked if (ROOT / target).exists()}
        waiting += [target for target in linked & added if target.endswith(".md")]
    added |= {f"docs/{file.src_uri}" for file in files if file.src_uri.endswith(".ipynb")}
    for target in sorted(added):
        files.append(File.generated(config, site_path(target), content=_page_text(target)))
    return files


def _targets(source: str) -> Iterator[str]:
    """Yield the files of the repository that a page links to."""
    for _, link in LINK.findall((ROOT / source).read_text(encoding="utf-8")):
        yield posixpath.normpath(posixpath.join(posixpath.dirname(source), link))


def _page_text(target: str) -> str:
    """Return the Markdown of a page about a file or a folder of the repository."""
    path = ROOT / target
    if target.endswith(".md"):
        return path.read_text(encoding="utf-8")
    if target.endswith(".ipynb"):
        return _notebook_text(path)
    heading = f"---\nsearch:\n  exclude: true\n---\n\n# {target}\n\n"
    if path.is_dir():
        return heading + "\n".join(f"- `{item.name}`" for item in sorted(path.iterdir()) if item.name[0] not in "._")
    return f"{heading}````{LANGUAGES.get(path.suffix, 'text')}\n{path.read_text(encoding='utf-8')}\n````\n"


def _notebook_text(path: Path) -> str:
    """Return the Markdown of a notebook: its text, its code, and below its first cell a link to the file."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells]
    blocks = [
        text if cell["cell_type"] == "markdown" else f"```python\n{text}\n```"
        for cell, text in zip(cells, texts, strict=True)
    ]
    link = f'<a href="{path.name}" download>Download this notebook</a> to run it in Jupyter.'
    return "\n\n".join([blocks[0], link, *blocks[1:]])


def site_path(target: str) -> str:
    """Return where a file of the repository is in the site."""
    if target in PAGES:
        return PAGES[target]
    if target.startswith("docs/"):
        return re.sub(r"\.ipynb$", ".md", target.removeprefix("docs/"))
    return f"source/{target}" if target.endswith(".md") else f"source/{target}.md"


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Rewrite links between files of the repository to links between pages of the site."""
    here = page.file.src_uri
    source = here.removeprefix("source/")
    if source == here:
        source = next((path for path, uri in PAGES.items() if uri == here), f"docs/{here}")
    if source.startswith("docs/notebooks/"):
        source = re.sub(r"\.md$", ".ipynb", source)
    if not (ROOT / source).exists():  # a page with the text of a file that is not Markdown
        return markdown

    def rewrite(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[2]))
        return match[1] + posixpath.relpath(site_path(target), posixpath.dirname(here) or ".")

    return LINK.sub(rewrite, markdown)


def on_post_build(config: Any) -> None:
    """Fail if a page or a style sheet asks another host for something."""
    for path in sorted(Path(config.site_dir).rglob("*")):
        if path.suffix in (".html", ".css"):
            found = FETCHED.search(path.read_text(encoding="utf-8"))
            if found:
                raise PluginError(f"{path.relative_to(config.site_dir)} asks another host: {found[0]}")
