"""The declared minimum of each direct dependency, one ``name==version`` a line: ``python .ci/lowest.py [EXTRA ...]``.

torch is left out, because its builds with CUDA need several GB: an environment for these versions takes another one's.
"""

import sys
import tomllib
from pathlib import Path

from packaging.requirements import Requirement

project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
lines = [
    *project["dependencies"],
    *(line for extra in sys.argv[1:] for line in project["optional-dependencies"][extra]),
]
for requirement in map(Requirement, lines):
    minimums = [limit.version for limit in requirement.specifier if limit.operator == ">="]
    if len(minimums) != 1:
        sys.exit(f"{requirement} in pyproject.toml needs one minimum")
    if requirement.name != "torch":
        print(f"{requirement.name}=={minimums[0]}")
