import pathlib

from windlass.capabilities import Permissions

pathlib.Path("policy.yaml").write_text("deny: [rm]\n")
Permissions.load("policy.yaml")
