"""Take a built data set into instances/groundtruth/: its rows and its card, after checking all of it.

    octocp dataset build scripts/groundtruth.yaml -o out/groundtruth --double-check
    python scripts/publish_groundtruth.py out/groundtruth

Rows are the log's so far, so that a build that is not through can be published too.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from octocp.dataset.card import card
from octocp.dataset.checking import violations
from octocp.dataset.manifest import read_manifest
from octocp.dataset.names import SHARDS, VIEW
from octocp.dataset.reading import read_rows
from octocp.dataset.stats import ALL, collect
from octocp.dataset.views import CARD, write_jsonl, write_shards
from octocp.schema.files import write_whole

TARGET = Path(__file__).resolve().parents[1] / "instances" / "groundtruth"
MOST_BYTES = 5_000_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--target", type=Path, default=TARGET)
    args = parser.parse_args()
    found = list(violations(args.folder))
    if found:
        raise SystemExit("\n".join(found))
    manifest = read_manifest(args.folder)
    order = {family["name"]: number for number, family in enumerate(manifest["spec"]["families"])}
    rows = sorted((data for _, data in read_rows(args.folder)), key=lambda row: (order[row["family"]], row["id"]))
    args.target.mkdir(parents=True, exist_ok=True)
    files = [write_jsonl(rows, args.target / VIEW), *write_shards(args.target / SHARDS, rows)]
    size = sum(file.stat().st_size for file in files)
    if size > MOST_BYTES:
        raise SystemExit(f"{args.target} has {size:,} bytes; at most {MOST_BYTES:,}")
    stats = collect(rows)
    write_whole(card(stats, manifest, parquet=True).encode(), args.target / CARD)
    total = stats.families[ALL]
    counts = f"{total.rows:,} of {manifest['count']:,} rows, {total.statuses['optimal']:,} optimal"
    print(f"{counts}, {size:,} bytes: {args.target}")


if __name__ == "__main__":
    main()
