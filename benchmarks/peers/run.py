"""Measure Windlass, a loop written by hand and all peers on identical work: `make peers`, then `make docs`.

Each contender has an environment of its own in `.venv-peers`, installed from `requirements/peers`. Every job of every
contender runs in a fresh process; the contenders take turns job by job, so that a ratio compares figures that were
measured at about the same time.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
RESULTS = ROOT / "docs" / "benchmarks" / "peers.json"
CONTENDERS = sorted(path.stem for path in (HERE / "contenders").glob("*.py"))
JOBS = (
    "footprint",
    "imports",
    "step",
    "hooks",
    "variants",
    "construct",
    "idle",
    "concurrent",
    "stream",
    "store",
    "resume",
)
LIMIT = 900  # seconds that a job may take


def main() -> int:
    options = _options()
    results: dict[str, dict[str, Any]] = {name: {} for name in options.contenders}
    failures = []
    begun = time.time()
    with tempfile.TemporaryDirectory(prefix="peers-bytecode-") as cache:
        for job in options.jobs:
            for name in options.contenders:
                print(f"{time.strftime('%H:%M:%S')} {job}: {name} …", file=sys.stderr, flush=True)
                try:
                    found = measured(name, job, options.share, cache)
                except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as failed:
                    failures.append(f"{name} failed in {job}:\n{str(failed.stderr)[-2000:]}")
                    print(failures[-1], file=sys.stderr)
                else:
                    if found is not None:
                        results[name][job] = found
    about = {
        "date": time.strftime("%Y-%m-%d", time.gmtime(begun)),
        "minutes": round((time.time() - begun) / 60),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "share": options.share,
        "failures": failures,
    }
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps({"about": about, "contenders": results}, indent=1) + "\n")
    print(f"wrote {options.json}", file=sys.stderr)
    return 1 if failures else 0


def measured(name: str, job: str, share: float, cache: str) -> Any:
    """The results of one job of one contender, measured in a fresh process with cached bytecode."""
    env = {key: value for key, value in os.environ.items() if key not in ("PYTHONDONTWRITEBYTECODE", "PYTHONPATH")}
    env["PYTHONPYCACHEPREFIX"] = cache
    done = subprocess.run(
        [python_of(name), str(HERE / "measure.py"), name, job, str(share)],
        capture_output=True,
        text=True,
        env=env,
        timeout=LIMIT,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def python_of(name: str) -> str:
    """The interpreter of a contender's environment, or this one for what needs no other."""
    found = ROOT / ".venv-peers" / name / "bin" / "python"
    return str(found) if found.exists() else sys.executable


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--share", type=float, default=1.0, help="measure for this share of the default time")
    parser.add_argument("--jobs", type=_some_of(JOBS), default=JOBS, help=f"only some of {','.join(JOBS)}")
    parser.add_argument(
        "--contenders", type=_some_of(CONTENDERS), default=CONTENDERS, help=f"only some of {','.join(CONTENDERS)}"
    )
    parser.add_argument("--json", type=Path, default=RESULTS, help="where the results go")
    return parser.parse_args()


def _some_of(known: Any) -> Any:
    def names(text: str) -> list[str]:
        if unknown := [name for name in text.split(",") if name not in known]:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known are {', '.join(known)}")
        return text.split(",")

    return names


if __name__ == "__main__":
    sys.exit(main())
