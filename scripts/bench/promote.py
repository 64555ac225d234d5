"""Take better values and bounds from scripts/bench/results/*.jsonl into instances/best_known.json.

    python scripts/bench/promote.py

Only shipped instances have an entry. Every row's plan was checked before it was written; a row above a proven optimum
or below a proven bound stops everything: one of the two is wrong.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from octocp import catalog

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

from make_instances import best_known_text  # noqa: E402

RESULTS = Path(__file__).parent / "results"
OWN = "OctoCP, scripts/bench"


def promoted(known: dict[str, dict[str, Any]], rows: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return the entries with what the rows improve.

    Raises
    ------
    SystemExit
        A row contradicts an entry.
    """
    result = dict(known)
    shipped = set(catalog.instances())
    for row in rows:
        name = row["instance"]
        if name not in shipped or "value" not in row or "lower_bound" not in row:
            continue
        value, bound = row["value"], row["lower_bound"]
        old = result.get(name, {"value": value, "bound": bound, "source": OWN})
        if value < old["bound"] or bound > old["value"]:
            raise SystemExit(f"{name}: a row has {value} (bound {bound}), known are {old['value']} and {old['bound']}")
        better, higher = min(value, old["value"]), max(bound, old["bound"])
        if name in result and (better, higher) == (old["value"], old["bound"]):
            continue
        sources = dict.fromkeys(([] if better < old["value"] and higher > old["bound"] else [old["source"]]) + [OWN])
        result[name] = {
            "value": better,
            "bound": higher,
            "proven": better == higher,
            "source": "; ".join(sources),
        }
    return dict(sorted(result.items()))


def main() -> None:
    path = catalog.folder("instances") / "best_known.json"
    known = json.loads(path.read_text(encoding="utf-8"))
    rows = [
        json.loads(line) for file in sorted(RESULTS.glob("*.jsonl")) for line in file.read_text().splitlines() if line
    ]
    found = promoted(known, rows)
    changed = [name for name in found if found[name] != known.get(name)]
    path.write_text(best_known_text(found), encoding="utf-8", newline="\n")
    print(f"{len(changed)} entries changed: {', '.join(changed) or 'none'}")


if __name__ == "__main__":
    main()
