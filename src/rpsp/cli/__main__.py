"""Run the command line as `python -m rpsp.cli`."""

from rpsp.cli.entry import main

if __name__ == "__main__":
    main()
