"""Entry point of `rpsp` and `python -m rpsp`. It imports `rpsp.cli` only after it can handle Ctrl-C."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Call `rpsp.cli.main`. If Ctrl-C is pressed while that is imported, print a message instead of a traceback."""
    try:
        from rpsp.cli import main  # here, so that Ctrl-C during the import is handled
    except KeyboardInterrupt:
        print("rpsp: interrupted; nothing was left half-written.", file=sys.stderr, flush=True)
        os._exit(130)  # a partially imported compiled module may crash in Python's normal shutdown
    main()


if __name__ == "__main__":
    main()
