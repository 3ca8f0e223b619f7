"""Run `python -m examples.demo`, or `make demo`, which also installs what the demo needs."""

import signal
import sys
from importlib.util import find_spec

NEEDED = {"numpy": "numpy", "rich": "rich", "s3fs": "s3fs", "sklearn": "scikit-learn"}
MISSING = [package for module, package in NEEDED.items() if find_spec(module) is None]

if MISSING:
    sys.exit(
        f"the demo needs {', '.join(MISSING)}, which {sys.executable} lacks: "
        f"type `make demo`, or `{sys.executable} -m pip install {' '.join(MISSING)}`"
    )

signal.signal(
    signal.SIGINT, signal.SIG_DFL
)  # nothing runs yet: Ctrl-C just ends it; `main` says otherwise

from examples.demo.run import main  # noqa: E402 - what it imports was looked for first

sys.exit(main())
