"""Run the command line with ``python -m lra_bench``."""

from lra_bench.cli.main import main

if __name__ == "__main__":
    main()
