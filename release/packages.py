"""Builds the wheel and the sdist, and says what is wrong with them."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from email.parser import Parser
from pathlib import Path
from typing import Any

from packaging.metadata import Metadata
from packaging.requirements import Requirement

PROJECT = Path(__file__).resolve().parents[1]
SOURCE = PROJECT / "src" / "windlass"
NOT_SHIPPED = ("ruff.toml",)
IN_SDIST = ("CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "hatch_build.py", "pyproject.toml", "src")


def build(project: Path, folder: Path) -> tuple[Path, Path]:
    """Build both packages from a folder with the sources; the paths of the wheel and of the sdist."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in (*folder.glob("*.whl"), *folder.glob("*.tar.gz")):
        old.unlink()
    command = [sys.executable, "-m", "hatchling", "build", "-d", str(folder.resolve())]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout + done.stderr)
    (wheel,) = folder.glob("*.whl")
    (sdist,) = folder.glob("*.tar.gz")
    return wheel, sdist


def sources() -> Iterator[Path]:
    """The files of the package that are shipped."""
    for path in sorted(SOURCE.rglob("*")):
        parts = path.relative_to(SOURCE).parts
        if (
            path.is_file()
            and path.name not in NOT_SHIPPED
            and not any(one[0] == "." or one == "__pycache__" for one in parts)
        ):
            yield path


def problems_of_wheel(wheel: Path) -> list[str]:
    """What is wrong with a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    info = f"{'-'.join(wheel.name.split('-')[:2])}.dist-info/"
    problems = [f"{name} is not what is in src/" for name in _different(files)]
    wanted = {f"windlass/{path.relative_to(SOURCE).as_posix()}" for path in sources()}
    own = {name for name in files if not name.startswith(info)}
    problems += [f"{name} is missing" for name in sorted(wanted - own)]
    problems += [f"{name} does not belong into a wheel" for name in sorted(own - wanted)]
    problems += [f"{name} is missing" for name in ("windlass/py.typed", f"{info}licenses/LICENSE") if name not in files]
    problems += [f"{name} is not in RECORD with its hash" for name in _unrecorded(files, info)]
    problems += _problems_of_metadata(files[f"{info}METADATA"].decode())
    problems += _problems_of_entry_points(files, info)
    return [*problems, *_traces(files.items())]


def _different(files: dict[str, bytes]) -> Iterator[str]:
    for path in sources():
        name = f"windlass/{path.relative_to(SOURCE).as_posix()}"
        if name in files and files[name] != path.read_bytes():
            yield name


def _unrecorded(files: dict[str, bytes], info: str) -> Iterator[str]:
    rows = {name: digest for name, digest, _ in csv.reader(io.StringIO(files[f"{info}RECORD"].decode()))}
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        if name != f"{info}RECORD" and rows.get(name) != f"sha256={digest}":
            yield name


def _problems_of_metadata(text: str) -> Iterator[str]:
    """What an index would refuse, and what a reader of the description could not follow."""
    try:
        metadata = Metadata.from_email(text, validate=True)
    except ExceptionGroup as error:
        yield from [f"METADATA: {one}" for one in error.exceptions]
        return
    if str(metadata.version) != _version_in_code():
        yield f"METADATA: version {metadata.version}, but windlass.__version__ is {_version_in_code()}"
    for field in ("summary", "license_expression", "license_files", "requires_python", "keywords", "classifiers"):
        if not getattr(metadata, field):
            yield f"METADATA: there is no {field}"
    if metadata.description_content_type != "text/markdown":
        yield f"METADATA: the description is {metadata.description_content_type}"
    description = metadata.description or ""
    if "```python" not in description or "pip install" not in description:
        yield "METADATA: the description has no example, or does not say how to install the package"
    for found in re.findall(r"\]\((?!https?:)[^)]*\)|<picture|\bmake \w+|\bdocs/\S*|\bexamples/\S*", description):
        yield f"METADATA: the description names {found!r}, which a wheel does not have"


def _version_in_code() -> str:
    found = re.search(r'^__version__ = "(.+)"$', (SOURCE / "__init__.py").read_text(encoding="utf-8"), re.MULTILINE)
    assert found is not None
    return found[1]


def _problems_of_entry_points(files: dict[str, bytes], info: str) -> Iterator[str]:
    text = files[f"{info}entry_points.txt"].decode()
    for name, module in re.findall(r"^(\S+) = ([\w.]+)", text, re.MULTILINE):
        place = module.replace(".", "/")
        if f"{place}.py" not in files and f"{place}/__init__.py" not in files:
            yield f"entry point {name}: there is no module {module}"
    for wanted in ("[console_scripts]\nwindlass = windlass.cli:main", "[pytest11]", "[windlass.capabilities]"):
        if wanted not in text:
            yield f"entry_points.txt lacks {wanted!r}"


def problems_of_sdist(sdist: Path) -> list[str]:
    """What is wrong with an sdist."""
    with tarfile.open(sdist) as archive:
        members = archive.getmembers()
        files = {one.name: archive.extractfile(one).read() for one in members if one.isfile()}  # type: ignore[union-attr]
    root = sdist.name.removesuffix(".tar.gz")
    problems = [f"{one.name}: neither a file nor a folder" for one in members if not (one.isfile() or one.isdir())]
    problems += [f"{name} is outside of {root}" for name in files if not name.startswith(f"{root}/")]
    top = {name.split("/")[1] for name in files}
    problems += [f"{name} is missing" for name in sorted(set(IN_SDIST) - top)]
    problems += [f"{name} does not belong into the sdist" for name in sorted(top - {*IN_SDIST, ".gitignore"})]
    problems += [
        f"src/windlass/{path.relative_to(SOURCE).as_posix()} is missing"
        for path in sources()
        if f"{root}/src/windlass/{path.relative_to(SOURCE).as_posix()}" not in files
    ]
    return [*problems, *_traces(files.items())]


def _traces(files: Iterable[tuple[str, bytes]]) -> Iterator[str]:
    """Paths of this machine."""
    for name, data in files:
        for place in {str(PROJECT), str(Path.home()), str(Path(sys.prefix))} - {"/", "/root"}:
            if place.encode() in data:
                yield f"{name} names {place}"


def problems_of_rebuilding(wheel: Path, sdist: Path, folder: Path) -> list[str]:
    """The wheel that is built from the sdist must be the same."""
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    again, _ = build(folder / sdist.name.removesuffix(".tar.gz"), folder / "again")
    if again.read_bytes() == wheel.read_bytes():
        return []
    with zipfile.ZipFile(wheel) as one, zipfile.ZipFile(again) as other:
        names = {*one.namelist(), *other.namelist()}
        known = [set(archive.namelist()) for archive in (one, other)]
        differing = [
            name for name in sorted(names) if name not in known[0] & known[1] or one.read(name) != other.read(name)
        ]
    return [f"a wheel built from the sdist differs: {', '.join(differing) or 'order or times'}"]


def requirements(wheel: Path) -> dict[str, list[str]]:
    """What a wheel needs on this machine: by extra, and for the base under ""."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        message: Any = Parser().parsestr(archive.read(name).decode())
    lines = [Requirement(line) for line in message.get_all("Requires-Dist")]
    found: dict[str, list[str]] = {}
    for extra in ("", *message.get_all("Provides-Extra")):
        chosen = [one for one in lines if one.marker is None or one.marker.evaluate({"extra": extra})]
        base = [one for one in lines if one.marker is None or one.marker.evaluate({"extra": ""})]
        found[extra] = [one.name for one in chosen if not extra or one not in base]
    return found
