from click.testing import CliRunner

from windlass.cli import main

done = CliRunner().invoke(main, ["chat", "-m", "openai:x"])
assert "windlass[chat]" not in done.output, done.output
