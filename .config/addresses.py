"""The project's addresses, from the organisation that pyproject.toml names.

Hatch sets the URLs of the package with it and makes the README's links absolute. MkDocs sets the
addresses of the site and of the repository.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

ROOT = Path(__file__).parents[1]
PICTURE = re.compile(r'(!\[[^\]]*\]\(|src="|srcset=")(?!https?://)')
LINK = re.compile(r"(\]\()(?!https?://|#)")


def addresses() -> dict[str, str]:
    """The URLs of the package by their labels."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    organisation = project["tool"]["hatch"]["metadata"]["hooks"]["custom"]["organisation"]
    repository = f"https://github.com/{organisation}/redsem-async"
    return {
        "Documentation": f"https://{organisation}.github.io/redsem-async/",
        "Source": repository,
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        "Issues": f"{repository}/issues",
    }


class Metadata(MetadataHookInterface):
    """Sets what pyproject.toml leaves dynamic."""

    def update(self, metadata: dict[str, Any]) -> None:
        metadata["urls"] = addresses()
        source = metadata["urls"]["Source"]
        text = PICTURE.sub(rf"\1{source}/raw/main/", (ROOT / "README.md").read_text("utf-8"))
        text = LINK.sub(rf"\1{source}/blob/main/", text)
        text = re.sub(r"/(?:raw|blob)/main/\.\./\.\./", "/", text)  # the badge of a workflow
        metadata["readme"] = {"content-type": "text/markdown", "text": text}


def on_config(config: Any) -> None:
    """Set the addresses of the site. MkDocs calls this."""
    urls = addresses()
    config.site_url, config.repo_url = urls["Documentation"], urls["Source"]
    config.repo_name = config.site_name


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Unwrap directives for the site, which GitHub must not show. MkDocs calls this."""

    def directives(names: re.Match[str]) -> str:
        return "\n".join(f"::: redsem_async.{name}" for name in names[1].split())

    markdown = re.sub(r"^::: (.*)$", directives, markdown, flags=re.MULTILINE)
    return re.sub(r"^<!-- api\n(.*?)^-->$", r"\1", markdown, flags=re.MULTILINE | re.DOTALL)


def on_post_build(config: Any) -> None:
    """Write llms.txt, a list of the pages. MkDocs calls this."""
    lines = [f"# {config.site_name}", "", f"> {config.site_description}", "", "## Pages", ""]
    for title, path in _pages(config.nav):
        lines.append(f"- [{title}]({config.site_url}{path.removesuffix('.md')}.html)")
    Path(config.site_dir, "llms.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _pages(nav: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    for entry in nav:
        for title, target in entry.items():
            if isinstance(target, str):
                yield title, target
            else:
                yield from _pages(target)
