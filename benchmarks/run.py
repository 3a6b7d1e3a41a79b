"""Measure Windlass against a loop written by hand: `python benchmarks/run.py [--quick] [--check]`."""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import json
import os
import platform
import pstats
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import report

HERE = Path(__file__).parent
JOBS = list(report.ROWS)
QUICK = 0.18


def main() -> int:
    options = _options()
    if options.job:
        import jobs  # imports Windlass, which only the process of a job needs

        print(json.dumps(jobs.run_job(options.job, options.share)))
        return 0
    if options.profile:
        profile(options.hooks)
        return 0
    results, broken = measure(options.jobs, QUICK if options.quick else 1.0)
    found = report.rows(results)
    missed = [row for row in found if row.missed]
    about = {
        "date": time.strftime("%Y-%m-%d %H:%M:%S"),
        "python": platform.python_version(),
        "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPUs",
        "load": [round(load, 2) for load in os.getloadavg()],
        "quick": options.quick,
    }
    print(f"Python {about['python']}, {about['machine']}, load {about['load'][0]}, {about['date']}\n")
    print(report.table(found))
    judged = sum(row.bar is not None for row in found)
    print(f"\n{judged - len(missed)} of {judged} bars met")
    for row in missed:
        print(f"  missed: {row.job}, {row.what}")
    options.json.parent.mkdir(parents=True, exist_ok=True)
    document = {**about, "bars": [_plain(row) for row in found], "results": results}
    options.json.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    return 1 if broken or (options.check and missed) else 0


def measure(names: list[str], share: float) -> tuple[dict[str, Any], bool]:
    """Run jobs, each in a fresh process with cached bytecode. Returns the results and whether a job failed."""
    results: dict[str, Any] = {}
    broken = False
    with tempfile.TemporaryDirectory(prefix="bench-bytecode-") as cache:
        env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
        env["PYTHONPYCACHEPREFIX"] = cache
        for name in names:
            print(f"measuring {name} …", file=sys.stderr, flush=True)
            command = [sys.executable, __file__, "--job", name, "--share", str(share)]
            done = subprocess.run(command, capture_output=True, text=True, env=env)
            if done.returncode:
                broken = True
                print(f"{name} failed:\n{done.stderr[-2000:]}", file=sys.stderr)
            else:
                results[name] = json.loads(done.stdout)
    return results, broken


def profile(hooks: int, steps: int = 1000) -> None:
    """Print where the time of one turn goes."""
    import agents
    from costs import cost_of

    turn = agents.ready(hooks)
    asyncio.run(cost_of(turn, steps=10))
    profiler = cProfile.Profile()
    profiler.enable()
    asyncio.run(cost_of(turn, steps))
    profiler.disable()
    stats = pstats.Stats(profiler).strip_dirs().sort_stats("tottime")
    print(f"N={steps}, {hooks} lifecycles, {stats.total_calls / steps:.0f} calls per step")
    stats.print_stats(40)


def _plain(row: report.Row) -> dict[str, Any]:
    figure = None if row.figure is None else round(row.figure, 3)
    return {**row._asdict(), "figure": figure, "ok": None if row.bar is None else not row.missed}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds: about half a minute, and noisier")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a bar is missed")
    parser.add_argument("--jobs", type=_names, default=JOBS, help=f"only some of {','.join(JOBS)}")
    parser.add_argument("--json", type=Path, default=HERE / "results" / "latest.json", help="where the results go")
    parser.add_argument("--profile", action="store_true", help="print the profile of a turn of 1,000 steps instead")
    parser.add_argument("--hooks", type=int, default=0, help="no-op lifecycles in that profile")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    parser.add_argument("--share", type=float, default=1.0, help=argparse.SUPPRESS)
    return parser.parse_args()


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in JOBS]:
        raise argparse.ArgumentTypeError(f"no job {', '.join(unknown)}; jobs are {', '.join(JOBS)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
