"""The console script, and ``python -m octocp``.

Imports nothing at the top: a Ctrl-C while the command line is being imported ends as one at any other time.
"""


def run() -> None:
    """Run the command line on ``sys.argv`` and exit."""
    try:
        from octocp.cli import main

        main.run()
    except KeyboardInterrupt:
        import sys

        # As `octocp.cli.main` has it, which may be just what was not imported.
        if sys.stderr is not None:
            sys.stderr.write("octocp: interrupted\n")
        sys.exit(130)


if __name__ == "__main__":
    run()
