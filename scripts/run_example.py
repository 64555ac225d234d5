"""Run the example of docs/running.md as it stands there; write its picture and its output into the docs.

Needs torch (``pip install 'octocp[torch]'``) and a quiet machine with two cores. Further arguments go to
``octocp profile``, e.g. ``--max-spread 0.5`` on a machine that is not quiet.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "running.md"
PICTURE = ROOT / "docs" / "img" / "run-predicted-and-measured.svg"
BLOCK = r"<!-- {}: example -->\n```\w*\n(.*?)^```$"


def main() -> None:
    page = PAGE.read_text(encoding="utf-8")
    found = re.search(BLOCK.format("run"), page, flags=re.MULTILINE | re.DOTALL)
    assert found is not None
    commands = found[1].replace("octocp profile ", " ".join(["octocp profile", *sys.argv[1:], ""]), 1)
    folder = ROOT / "out" / "run-example"
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    began = f"# load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores at the start\n"
    shell = ["bash", "-euc", commands]
    ran = subprocess.run(shell, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=False)
    print(ran.stdout)
    if ran.returncode:
        sys.exit(ran.returncode)
    # From the run on; calibrate, after it, repeats the comparison.
    start = ran.stdout.index("small-hybrid-p2-m8, cp-sat")
    end = ran.stdout.index("\n", ran.stdout.index("to plan with it")) + 1
    shown = f"<!-- output: example -->\n```\n{began}{ran.stdout[start:end]}```"
    block = re.compile(BLOCK.format("output"), flags=re.MULTILINE | re.DOTALL)
    PAGE.write_text(block.sub(lambda _: shown, page), encoding="utf-8")
    PICTURE.parent.mkdir(exist_ok=True)
    shutil.copy(folder / "both.svg", PICTURE)


if __name__ == "__main__":
    main()
