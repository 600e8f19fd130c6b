"""The contract's checks lie with the other environments' tests, one folder up."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
