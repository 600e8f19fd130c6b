"""``python -m recollect`` is the same as ``recollect``."""

import sys

from recollect.cli import main

sys.exit(main())
