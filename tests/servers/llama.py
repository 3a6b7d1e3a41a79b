"""llama.cpp's own HTTP server with a small real model, run as a child of the test run on a free loopback port."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from windlass.models.local.weights import COMMAND, KNOWN, found

TEMPLATE = Path(__file__).with_name("shots.jinja")
# It ends when its standard input does: at the end of the fixture, or of the test run.
SERVE = """
import sys
import xllamacpp

parameters = xllamacpp.CommonParams()
parameters.model.path = sys.argv[1]
parameters.model_alias = {"smollm2"}
parameters.chat_template = open(sys.argv[2]).read()
parameters.n_ctx = 2048
parameters.n_parallel = 1
parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
parameters.port = 0
parameters.verbosity = -1
parameters.warmup = False
server = xllamacpp.Server(parameters)
print(server.listening_address, flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="session")
def weights() -> Path:
    """The weights of the local model; without them a test is skipped, unless `WINDLASS_REQUIRE_LOCAL` is set."""
    path = found(KNOWN["smollm2"])
    if path is None:
        if os.environ.get("WINDLASS_REQUIRE_LOCAL"):
            raise RuntimeError(f"the weights of local:smollm2 are missing: {COMMAND}")
        pytest.skip(f"the weights of local:smollm2 are missing: {COMMAND}")
    return path


@pytest.fixture(scope="session")
def llama(weights: Path) -> Iterator[str]:
    """The address of the server."""
    command = [sys.executable, "-c", SERVE, str(weights), str(TEMPLATE)]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with server:
        assert server.stdout is not None
        address = server.stdout.readline().strip()
        assert address.startswith("http://127.0.0.1:"), "the server did not start"
        yield f"{address}/v1"
        server.kill()
