"""The command `rpsp`, and `python -m rpsp`. Imports the rest inside `main`, so that Ctrl-C is handled from the start."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Call `rpsp.cli.main`. If Ctrl-C interrupts its import, print one sentence and exit with 130."""
    try:
        from rpsp.cli import main  # inside `try`: see above
    except KeyboardInterrupt:
        print("rpsp: interrupted; nothing was left half-written.", file=sys.stderr, flush=True)
        os._exit(130)  # at once: Python may crash at exit after the import of a compiled module was interrupted
    main()


if __name__ == "__main__":
    main()
