"""Builds the documentation as a site in build/site: no network is needed, neither to build it nor to read it."""

from __future__ import annotations

import argparse
import fnmatch
import functools
import http.server
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from posixpath import normpath, relpath
from typing import Any

PROJECT = Path(__file__).resolve().parent.parent
DOCS = PROJECT / "docs"
SETTINGS = DOCS / "site" / "site.toml"
MARK = PROJECT / "src" / "windlass" / "inspector" / "static" / "mark.svg"
TOKENS = PROJECT / "src" / "windlass" / "inspector" / "static" / "css" / "tokens.css"
COPIED = {".css", ".json", ".md", ".png", ".svg"}
"""What belongs to the site; the programs and tables that generate pages do not."""

LINK = re.compile(
    r"(?P<before>!?\[[^\]\n]*(?:\n[^\]\n]*)?\]\()(?P<target>(?![a-z]+:|#)[^)\s#]+)(?P<anchor>#[^)\s]*)?\)"
)
FENCED = re.compile(r"(^ *(?:```+|~~~+).*?^ *(?:```+|~~~+) *$)", re.M | re.S)
PICTURE = re.compile(
    r'<picture>\s*<source media="[^"]*dark[^"]*" srcset="([^"]+)">\s*<img ([^>]*)src="([^"]+)">\s*</picture>'
)
SWITCHED = r'<img class="only-light" loading="lazy" \2src="\3"><img class="only-dark" loading="lazy" \2src="\1">'
CODE = re.compile(r"`[^`]*`")
LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".json": "json"}


HIDDEN = {
    "README.md": "---\nhide: [navigation, toc]\n---\n\n",
    **dict.fromkeys(
        ["behaviours.md", "benchmarks.md", "comparison.md", "comparison-langchain.md"], "---\nhide: [toc]\n---\n\n"
    ),
}
"""What stands beside a page is left away where its tables need the room."""


class Problem(Exception):
    """The site cannot be built."""


class Source:
    """The pages as the site needs them: those of docs/, and what they link to elsewhere in the repository."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._waiting: list[Path] = []
        self._staged: dict[str, Path] = {}

    def stage(self) -> list[str]:
        """Write everything; returns the paths of all pages."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for path in sorted(DOCS.rglob("*")):
            if path.suffix in COPIED and path.is_file():
                self._stage(path)
        for path in (PROJECT / "CHANGELOG.md", PROJECT / "CONTRIBUTING.md"):
            self._place(path)
        while self._waiting:
            self._stage(self._waiting.pop())
        shutil.copy(MARK, self.folder / "site" / MARK.name)
        (self.folder / "site" / TOKENS.name).write_text(tokens(), encoding="utf-8")
        return sorted(name for name in self._staged if name.endswith(".md"))

    def _place(self, path: Path) -> str:
        """Where a file or folder of the repository is on the site."""
        if path.is_relative_to(DOCS):
            return path.relative_to(DOCS).as_posix() + ("/README.md" if path.is_dir() else "")
        name = path.relative_to(PROJECT).as_posix()
        if path.is_dir():
            name = f"{name}/README.md"
        elif path.suffix != ".md":
            name = f"{name}.md"
        name = f"project/{name}"
        if name not in self._staged:
            self._staged[name] = path
            self._waiting.append(path)
        return name

    def _stage(self, path: Path) -> None:
        name = self._place(path)
        self._staged[name] = path
        written = self.folder / name
        written.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".md":
            written.write_text(self._page(path, name), encoding="utf-8")
        elif path.is_dir():
            written.write_text(self._listing(path, name), encoding="utf-8")
        elif path.is_relative_to(DOCS):
            shutil.copy(path, written)
        else:
            code = path.read_text(encoding="utf-8")
            shown = path.relative_to(PROJECT)
            language = LANGUAGES.get(path.suffix, "text")
            written.write_text(f"# {shown}\n\n~~~~~~{language}\n{code}~~~~~~\n", encoding="utf-8")

    def _page(self, path: Path, name: str) -> str:
        text = path.read_text(encoding="utf-8")
        parts = FENCED.split(text)
        parts[::2] = [self._prose(part, path, name) for part in parts[::2]]
        return HIDDEN.get(name, "") + "".join(parts)

    def _prose(self, text: str, path: Path, name: str) -> str:
        """Text outside of code: links lead to where things are on the site, and pictures follow its colours."""
        text = LINK.sub(lambda link: self._link(link, path, name), text)
        text = PICTURE.sub(
            r'<img class="only-light" loading="lazy" \2src="\3"><img class="only-dark" loading="lazy" \2src="\1">', text
        )
        # Pages of the repository escape a pipe in the code of a table; the site needs no escape.
        return re.sub(
            r"^\|.*$", lambda row: CODE.sub(lambda code: code[0].replace("\\|", "|"), row[0]), text, flags=re.M
        )

    def _link(self, link: re.Match[str], path: Path, name: str) -> str:
        target = Path(normpath(path.parent / link["target"]))
        if not target.exists():
            raise Problem(f"{path.relative_to(PROJECT)}: there is no {link['target']}")
        place = relpath(self._place(target), PurePosixPath(name).parent.as_posix())
        return f"{link['before']}{place}{link['anchor'] or ''})"

    def _listing(self, folder: Path, name: str) -> str:
        """A page for a folder: its files, but for those that git does not keep."""
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard", "."],
            cwd=folder, capture_output=True, text=True, check=True,
        )  # fmt: skip
        here = PurePosixPath(name).parent.as_posix()
        lines = [f"- [{file}]({relpath(self._place(folder / file), here)})" for file in listed.stdout.split()]
        return f"# {folder.relative_to(PROJECT)}\n\n" + "\n".join(lines) + "\n"


def tokens() -> str:
    """The colours of the inspector; on the site, the theme keeps its choice of light or dark on the body."""
    text = TOKENS.read_text(encoding="utf-8")
    for theme, scheme in (("light", "default"), ("dark", "slate")):
        text = text.replace(f':root[data-theme="{theme}"]', f'body[data-md-color-scheme="{scheme}"]')
    return text


# ---------------------------------------------------------------- navigation


class Navigation:
    """The navigation of site.toml, with every page exactly once."""

    def __init__(self, pages: list[str], folder: Path) -> None:
        self._left = dict.fromkeys(pages)
        self._folder = folder

    def build(self, sections: list[dict[str, Any]]) -> list[dict[str, Any]]:
        for page in _named(sections):
            if self._left.pop(page, self) is self:
                raise Problem(f"docs/site/site.toml: {page} is no page, or is named twice")
        built = [self._section(section) for section in sections]
        if self._left:
            raise Problem(f"docs/site/site.toml: the navigation lacks {', '.join(self._left)}")
        return built

    def _section(self, section: dict[str, Any]) -> dict[str, Any]:
        entries: list[Any] = [section["index"]] if "index" in section else []
        groups = [self._section(group) for group in section.get("groups", ())]
        for named in section.get("pages", ()):
            entries += self._matching(named) if "*" in named else [named]
        if "modules" in section:
            entries += self._modules(section["modules"])
        alone = len(entries) == 1 and not groups
        return {section["title"]: entries[0] if alone else [*entries, *groups]}

    def _matching(self, pattern: str) -> list[str]:
        found = [page for page in self._left if fnmatch.fnmatch(page, pattern) and not page.startswith(MODULES)]
        for page in found:
            del self._left[page]
        return found

    def _modules(self, folder: str) -> list[dict[str, Any]]:
        """One section for each module: its page, then the pages of its classes."""
        built = []
        for page in [page for page in self._left if PurePosixPath(page).parent.as_posix() == folder]:
            del self._left[page]
            kinds = [kind for kind in self._left if kind.startswith(f"{page.removesuffix('.md')}/")]
            for kind in kinds:
                del self._left[kind]
            title = re.search(r"^# (.*)$", (self._folder / page).read_text(encoding="utf-8"), re.M)
            assert title is not None
            name = title[1].strip("`")
            listed = [{"Overview": page}, *[{PurePosixPath(kind).stem: kind} for kind in kinds]]
            built.append({name: listed if kinds else page})
        return built


MODULES = "reference/api/"


def _named(sections: list[dict[str, Any]]) -> Iterator[str]:
    """The pages that are named one by one."""
    for section in sections:
        if "index" in section:
            yield section["index"]
        yield from (page for page in section.get("pages", ()) if "*" not in page)
        yield from _named(section.get("groups", []))


# ---------------------------------------------------------------- the build


def toml(value: Any) -> str:
    """A value as TOML, on one line."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{toml(key)} = {toml(part)}" for key, part in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(toml(part) for part in value) + "]"
    if isinstance(value, bool):
        return str(value).lower()
    return '"' + str(value).replace("\\", "\\\\").replace('"', '\\"') + '"'


def build(work: Path) -> Path:
    """Build the site below a folder; returns where its front page is."""
    settings = tomllib.loads(SETTINGS.read_text(encoding="utf-8"))
    pages = Source(work / "pages").stage()
    nav = Navigation(pages, work / "pages").build(settings["nav"])
    project = {**settings["project"], "docs_dir": "pages", "site_dir": "site", "nav": nav}
    lines = [f"{key} = {toml(value)}\n" for key, value in project.items()]
    (work / "zensical.toml").write_text("[project]\n" + "".join(lines), encoding="utf-8")
    shutil.rmtree(work / "site", ignore_errors=True)
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--clean"],
        cwd=work, capture_output=True, text=True, env={**os.environ, "NO_COLOR": "1"},
    )  # fmt: skip
    if done.returncode:
        text = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
        raise Problem(text.partition("Traceback")[0])
    return work / "site"


def serve(site: Path) -> None:
    """Serve the site on this machine, until Ctrl-C."""
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 8000), handler) as server:
        sys.stdout.write("the site is at http://127.0.0.1:8000/\n")
        sys.stdout.flush()
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return


def main() -> int:
    """Build the site, and serve it if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve", action="store_true", help="serve the site on this machine afterwards")
    parser.add_argument("--into", type=Path, default=PROJECT / "build", help="the folder to build in")
    options = parser.parse_args()
    options.into.mkdir(parents=True, exist_ok=True)
    try:
        site = build(options.into.resolve())
    except Problem as problem:
        sys.stderr.write(f"{problem}\n")
        return 1
    if options.serve:
        serve(site)
    else:
        sys.stdout.write(f"the site is in {os.path.relpath(site)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
