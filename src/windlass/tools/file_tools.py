"""The tools that read, write, edit and search the files of a workspace."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager

from windlass._media import guess_media_types
from windlass.errors import ToolError
from windlass.messages import ImagePart

from .definitions import tool
from .edits import Edit, apply_edits
from .grepping import find_ripgrep, search
from .protection import Protection
from .rooted import Root
from .searching import GlobError, decode, glob_test, read_text, split_lines, walk

MAX_BYTES = 20_000_000
"""Larger files are not read or edited."""
MAX_IMAGE = 5_000_000
MAX_LINE = 2_000
"""Longer lines are cut."""
MAX_TEXT = 60_000
"""One call shows at most so many characters."""


class FileTools:
    """The tools for the files below a root. They keep nothing between calls."""

    def __init__(self, root: Root, protection: Protection) -> None:
        self._root = root
        self._protection = protection
        self._ripgrep = find_ripgrep()

    # ------------------------------------------------------------ read and write

    @tool(effect="pure", open_world=False)
    def read(self, path: str, offset: int = 1, limit: int = 2000) -> str | ImagePart:
        """Read a file of the workspace. Lines are numbered from 1; images are shown as images.

        Args:
            path: the path of the file, relative to the workspace
            offset: the first line to read
            limit: how many lines to read
        """
        if offset < 1 or limit < 1:
            raise ToolError("offset and limit must be 1 or more")
        data = self._read(path)
        kind = next(iter(guess_media_types(data[:64], None)), "")
        if kind.startswith("image/"):
            if len(data) > MAX_IMAGE:
                raise ToolError(f"{path!r} is an image of {len(data):,} bytes; at most {MAX_IMAGE:,} can be shown")
            return ImagePart(data=data, media_type=kind)
        text = decode(data)
        if text is None:
            raise ToolError(f"{path!r} is a binary file of {len(data):,} bytes ({kind or 'unknown type'})")
        return _numbered(split_lines(text), offset, limit)

    @tool(effect="idempotent", destructive=True, sequential=True, open_world=False)
    def write(self, path: str, content: str) -> str:
        """Write a whole file of the workspace: make it, with its folders, or replace its content.

        Args:
            path: the path of the file, relative to the workspace
            content: the whole new content
        """
        data = content.encode()
        with self._opening(path), self._root.find(path, make=True, check=self._protection.check) as place:
            place.replace(data)
            return f"wrote {place.path!r}: {len(data):,} bytes"

    @tool(destructive=True, sequential=True, open_world=False)
    def edit(self, path: str, old: str, new: str, replace_all: bool = False) -> str:
        """Replace an exact text in a file of the workspace. The text must be in the file exactly once.

        Args:
            path: the path of the file, relative to the workspace
            old: the exact text to replace, with its indentation and without line numbers
            new: the text to put there
            replace_all: replace it wherever it is, instead of once
        """
        return self._edit(path, [Edit(old, new, replace_all)])

    @tool(destructive=True, sequential=True, open_world=False)
    def multi_edit(self, path: str, edits: list[Edit]) -> str:
        """Make several edits in one file of the workspace, one after another: all of them or none.

        Args:
            path: the path of the file, relative to the workspace
            edits: the replacements; each sees the result of the one before
        """
        if not edits:
            raise ToolError("edits is empty")
        return self._edit(path, edits)

    def _edit(self, path: str, edits: list[Edit]) -> str:
        with self._opening(path), self._root.find(path, check=self._protection.check) as place:
            data = _content(place.open_file(), path)
            try:
                text = data.decode()
            except UnicodeDecodeError:
                raise ToolError(f"{path!r} is not a text in UTF-8, so it cannot be edited") from None
            changed, count = apply_edits(text, edits)
            place.replace(changed.encode())
            return f"changed {place.path!r}: {count} replacement{'s' if count > 1 else ''}"

    # ------------------------------------------------------------ search

    @tool(effect="pure", open_world=False)
    def glob(self, pattern: str, path: str = ".", limit: int = 500) -> str:
        """List the files of the workspace whose paths match a pattern such as `**/*.py`, sorted by path.

        Folders such as .git and node_modules are left out.

        Args:
            pattern: `*` and `?` match within a name, `**` matches folders, `{a,b}` one of several
            path: the folder to start in
            limit: how many paths to list
        """
        try:
            test = glob_test(pattern)
        except GlobError as error:
            raise ToolError(f"{pattern!r} is not a valid pattern: {error}") from None
        found: list[str] = []
        with self._folder(path) as (folder, prefix), closing(walk(folder)) as files:
            for file in files:
                if test(file.path) and not self._protection.hides(f"{prefix}{file.path}"):
                    if len(found) >= max(limit, 1):
                        found.append(f"[there are more than {max(limit, 1)} files; narrow the pattern]")
                        break
                    found.append(_one_line(f"{prefix}{file.path}"))
        return "\n".join(found) or "no files found"

    @tool(effect="pure", open_world=False)
    def grep(
        self,
        pattern: str,
        path: str = ".",
        include: str = "",
        ignore_case: bool = False,
        context: int = 0,
        limit: int = 200,
    ) -> str:
        """Search the text files of the workspace for a regular expression, line by line.

        The result has `path:line:text` for each line that matches. Folders such as .git and node_modules are left out.

        Args:
            pattern: the regular expression
            path: the file or folder to search in
            include: search only files whose paths match this pattern, such as `*.py`
            ignore_case: ignore case
            context: how many lines to show before and after each line that matches
            limit: how many matching lines to show
        """
        try:
            test = glob_test(include) if include else None
        except GlobError as error:
            raise ToolError(f"{include!r} is not a valid pattern: {error}") from None
        found: dict[str, list[int]] = {}
        limit, total = max(limit, 1), 0
        with self._folder(path, or_file=True) as (folder, prefix):
            only = prefix.rpartition("/")[2]
            inner = prefix[: len(prefix) - len(only)]
            matches = search(folder, pattern, ignore_case=ignore_case, ripgrep=self._ripgrep)
            with closing(matches):
                for name, number in matches:
                    fits = (test is None or test(name)) and (not only or name == only)
                    if fits and not self._protection.hides(f"{inner}{name}"):
                        total += 1
                        if total > limit:
                            break
                        found.setdefault(name, []).append(number)
            lines = [
                line for name, numbers in found.items() for line in _excerpt(folder, inner, name, numbers, context)
            ]
        if total > limit:
            lines.append(f"[there are more than {limit} matching lines; narrow the search]")
        return _cut("\n".join(lines)) or "no matches"

    # ------------------------------------------------------------ files

    def _read(self, path: str) -> bytes:
        with self._opening(path), self._root.find(path, check=self._protection.check_readable) as place:
            return _content(place.open_file(), path)

    @contextmanager
    def _folder(self, path: str, *, or_file: bool = False) -> Generator[tuple[int, str], None, None]:
        """An open folder, and what its files' names are preceded by. If it may be a file, that is the file's path."""
        with self._opening(path), self._root.find(path, check=self._protection.check_readable) as place:
            try:
                folder, prefix = place.open_folder(), "".join([f"{part}/" for part in place.parts])
            except NotADirectoryError:
                if not or_file:
                    raise
                folder, prefix = os.dup(place.folder), place.path
            try:
                yield folder, prefix
            finally:
                os.close(folder)

    @contextmanager
    def _opening(self, path: str) -> Generator[None, None, None]:
        """Let the model read what is wrong with a path."""
        try:
            yield
        except FileNotFoundError:
            raise ToolError(f"there is no {path!r} in the workspace") from None
        except OSError as error:
            raise ToolError(f"{path!r}: {error.strerror or error}") from None


def _content(descriptor: int, path: str) -> bytes:
    with open(descriptor, "rb") as file:
        data = file.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise ToolError(f"{path!r} is larger than {MAX_BYTES:,} bytes")
    return data


def _numbered(lines: list[str], offset: int, limit: int) -> str:
    """Lines with their numbers, and how to go on."""
    if not lines:
        return "[the file is empty]"
    if offset > len(lines):
        raise ToolError(f"the file has {len(lines)} lines; offset={offset} is beyond its end")
    shown: list[str] = []
    size = 0
    for number in range(offset, min(offset + limit, len(lines) + 1)):
        line = f"{number}\t{_cut_line(lines[number - 1])}"
        size += len(line) + 1
        if size > MAX_TEXT and shown:
            break
        shown.append(line)
    end = offset + len(shown)
    if end <= len(lines):
        shown.append(f"[lines {offset} to {end - 1} of {len(lines)}; go on with offset={end}]")
    return "\n".join(shown)


def _excerpt(folder: int, prefix: str, path: str, numbers: list[int], context: int) -> Iterator[str]:
    """The lines of a file with these numbers, and the ones around them. They are read again, by descriptors."""
    text = _text_at(folder, path)
    lines = [] if text is None else split_lines(text)
    wanted = set(numbers)
    around = range(-max(context, 0), max(context, 0) + 1)
    shown = sorted({number + step for number in numbers for step in around if 1 <= number + step <= len(lines)})
    last = deque([0], maxlen=1)
    name = _one_line(f"{prefix}{path}")
    for number in shown:
        if context > 0 and last[0] and number > last[0] + 1:
            yield "--"
        last.append(number)
        mark = ":" if number in wanted else "-"
        yield f"{name}{mark}{number}{mark}{_cut_line(lines[number - 1])}"


def _text_at(folder: int, path: str) -> str | None:
    """The text of a file below an open folder, opened name by name. No link is followed."""
    *folders, name = path.split("/")
    current = os.dup(folder)
    try:
        for one in folders:
            flags = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY | os.O_NOFOLLOW
            inner = os.open(one, flags, dir_fd=current)
            os.close(current)
            current = inner
        return read_text(current, name)
    except OSError:
        return None
    finally:
        os.close(current)


def _one_line(path: str) -> str:
    """A path as one line of text that shows line breaks and control characters."""
    return path if path.isprintable() else ascii(path)


def _cut_line(line: str) -> str:
    return line if len(line) <= MAX_LINE else f"{line[:MAX_LINE]}… [{len(line) - MAX_LINE} more characters]"


def _cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}\n[cut: {len(text):,} characters; narrow the search]"


__all__ = ["FileTools"]
