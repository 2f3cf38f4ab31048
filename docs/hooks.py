"""Hooks of MkDocs: pages of the documentation that stay where the repository needs them, and links to them."""

from __future__ import annotations

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]
PATTERNS = ("*.md", "benchmarks/*.md", "benchmarks/results/*", "static/img/favicon.svg", "tests/browser/pictures/*.png")
LINK = re.compile(r"(\]\()(?!https?://|mailto:|#|/)([^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside of docs/ that its pages need."""
    rules = (ROOT / "docs" / "reference" / "rules.md").read_text()
    checks = {ROOT / name for name in re.findall(r"\(\.\./\.\./([\w/]+\.py)\)", rules)}  # the code that it links
    paths = {path for pattern in PATTERNS for path in ROOT.glob(pattern) if path.is_file()} - {ROOT / "README.md"}
    for path in sorted(paths | checks):
        name = path.relative_to(ROOT).as_posix()
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links between docs/ and the rest of the repository to the addresses that pages have on the site."""
    source = Path(str(page.file.abs_src_path)).relative_to(ROOT).parent.as_posix()
    folder = posixpath.dirname(page.file.src_uri)

    def move(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(source, link[2])).removeprefix("docs/")
        return link[1] + posixpath.relpath(target, folder or ".")

    return LINK.sub(move, markdown)
