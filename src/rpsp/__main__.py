"""The command `rpsp`, and `python -m rpsp`. Imports nothing before Ctrl-C has an answer; `cli` is the door itself."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """`cli.main`; whoever presses Ctrl-C while that is being imported gets a sentence as well."""
    try:
        from rpsp.cli import main
    except KeyboardInterrupt:
        print("rpsp: interrupted; nothing was left half-written.", file=sys.stderr, flush=True)
        os._exit(130)  # a compiled module that was cut short may not survive Python's own end
    main()


if __name__ == "__main__":
    main()
