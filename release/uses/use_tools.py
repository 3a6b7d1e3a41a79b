from windlass.tools import Workspace
from windlass.tools.grepping import find_ripgrep

Workspace(".")
assert find_ripgrep()
