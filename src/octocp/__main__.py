"""``python -m octocp``."""

from octocp.cli.main import run

run()
