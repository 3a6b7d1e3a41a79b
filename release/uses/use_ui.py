import re
import subprocess
import sys
import urllib.request

from windlass import Agent
from windlass.testing import ScriptedModel, says

Agent(ScriptedModel(says("Hello.")), store="sqlite:///shown.db").run_sync("Hi.", session="s")
command = [sys.executable, "-m", "windlass", "ui", "shown.db", "--port", "0"]
with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
    try:
        assert process.stderr is not None
        said = process.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:\d+", said)
        assert found is not None, said
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(f"{found[0]}/", timeout=30) as page:
            assert b"Windlass" in page.read()
    finally:
        process.terminate()
