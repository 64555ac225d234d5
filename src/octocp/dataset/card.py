"""The data card: what is in a data set, how it was made, and how to load it."""

from __future__ import annotations

from statistics import median
from typing import Any

from octocp.dataset.stats import ALL, Group, Stats

SIZES = ((1000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"), (1_000_000, "100K<n<1M"))


def card(stats: Stats, manifest: dict[str, Any], *, parquet: bool) -> str:
    """Return the card as Markdown, with the head that model and data hubs read.

    Parameters
    ----------
    manifest : dict
        ``name`` and, where known, ``spec`` (the spec as plain data) and ``history`` (what to say of how it was made).
    parquet : bool
        Whether the folder has Parquet shards.
    """
    spec = manifest.get("spec", {})
    total = stats.families.get(ALL, Group())
    licence = spec.get("licence", "Apache-2.0")
    size = next((name for most, name in SIZES if total.rows < most), "n>1M")
    lines = [
        "---",
        _yaml({"pretty_name": manifest["name"], "license": licence.lower()}, flow=False).rstrip(),
        "tags: [scheduling, pipeline-parallelism, constraint-programming, combinatorial-optimization]",
        f"size_categories: [{size}]",
        "---",
        "",
        f"# {manifest['name']}",
        "",
        *([spec["description"].strip(), ""] if spec.get("description") else []),
        f"{total.rows:,} pipeline-parallel training steps: instance, plan, proven bound, and what known schedules make",
        f"of it. {total.statuses['optimal']:,} are proven optimal, {total.statuses['infeasible']:,} proven infeasible; "
        f"{total.confirmed:,} of these proofs were",
        "repeated by the joint model alone with another seed. Every plan has passed an independent checker.",
        "",
        "## Families",
        "",
        *_families(stats),
        "",
        "## Gap",
        "",
        "(value - lower bound) / value, of rows with a plan:",
        "",
        "| gap | rows | |",
        "|---|---:|---|",
        *_histogram(total),
        "",
        "## Features",
        "",
        "| feature | rows |",
        "|---|---:|",
        *(f"| {name} | {count:,} |" for name, count in sorted(total.features.items())),
        "",
        "## Known schedules",
        "",
        "How far above the optimum, over the rows that are proven optimal:",
        "",
        *distances(stats, [ALL]),
        "",
        "## Load it",
        "",
        *_loading(parquet),
        "",
        "## Columns",
        "",
        *COLUMNS,
        "",
        "## Licence and sources",
        "",
        f"{licence}. Costs of published profiles carry their source in the instance (`model.provenance`); those of",
        "architectures follow from sizes by formula, those of mixes are random.",
        "",
        "## How it was made",
        "",
        f"By {'; '.join(f'{name} ({count:,} rows)' for name, count in stats.versions.most_common())}, "
        "one solve with one worker per row.",
        *([manifest["history"].strip()] if manifest.get("history") else []),
    ]
    if spec:
        lines += ["This is the spec; `octocp dataset build` makes the same instances of it:", "", "```yaml"]
        lines += [_yaml(spec).rstrip(), "```"]
    return "\n".join(lines) + "\n"


def _yaml(data: dict[str, Any], *, flow: bool | None = None) -> str:
    import yaml

    text: str = yaml.safe_dump(data, sort_keys=False, default_flow_style=flow, width=110, allow_unicode=True)
    return text


def _families(stats: Stats) -> list[str]:
    lines = [
        "| family | rows | optimal | feasible | infeasible | unknown | proven | median time | longest |",
        "|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for name, group in stats.families.items():
        counts = " | ".join(f"{group.statuses[key]:,}" for key in ("optimal", "feasible", "infeasible", "unknown"))
        lines.append(
            f"| {name} | {group.rows:,} | {counts} | {100 * group.proven / group.rows:.1f} % "
            f"| {median(group.seconds):.2f} s | {max(group.seconds):.1f} s |"
        )
    return lines


def _histogram(group: Group) -> list[str]:
    counts = group.histogram()
    most = max((count for _, count in counts), default=0) or 1
    return [f"| {name} | {count:,} | {'█' * round(30 * count / most)} |" for name, count in counts]


def distances(stats: Stats, families: list[str]) -> list[str]:
    """Return the table of how far the known schedules are from the optimum, as lines of Markdown."""
    titles = " | ".join(
        f"{family}: mean | 95 % | worst" if len(families) > 1 else "mean | 95 % | worst" for family in families
    )
    lines = [
        f"| schedule | {titles} | optimal | has a plan |",
        f"|---|{'---:|---:|---:|' * len(families)}---:|---:|",
    ]
    for method in stats.methods():
        cells: list[str] = []
        for family in families:
            found = stats.summary(method, family)
            shares = (
                ("-",) * 3 if found is None else tuple(f"{100 * s:.1f} %" for s in (found.mean, found.p95, found.worst))
            )
            cells += shares
        whole = stats.summary(method, ALL)
        rows = len(stats.distances[method][ALL])
        share = ("-", "0 %") if whole is None else (f"{whole.optimal:,}", f"{100 * whole.plans / rows:.0f} %")
        lines.append(f"| {method} | {' | '.join(cells)} | {share[0]} | {share[1]} |")
    return lines


def _loading(parquet: bool) -> list[str]:
    lines = [
        "```python",
        'rows = pandas.read_json("rows.jsonl.gz", lines=True)',
        'rows = polars.read_ndjson("rows.jsonl.gz", schema_overrides={"instance": polars.String})',
        'rows = datasets.load_dataset("json", data_files="rows.jsonl.gz", split="train")  # Hugging Face',
    ]
    if parquet:
        lines += [
            'rows = pandas.read_parquet("shards")',
            'rows = polars.read_parquet("shards/*.parquet")',
            'rows = datasets.load_dataset("parquet", data_files="shards/*.parquet", split="train")',
        ]
    lines += [
        'rows = octocp.dataset.load_rows("FOLDER")  # typed: row.instance, row.plan(), row.problem()',
        "```",
        "",
        "`instance` is JSON text in Parquet and with polars. pandas reads whole numbers as `float64` where a column",
        "has gaps, such as `value`.",
    ]
    return lines


COLUMNS = [
    "Times are ticks of `tick_us` microseconds, sizes GB. `octocp dataset check` computes all of it anew but proofs by",
    "search, which it holds against the plans, the analytic bounds and the second proofs.",
    "",
    "| column | meaning |",
    "|---|---|",
    "| `id`, `hash`, `family`, `features` | name; equal for equal problems; where it is from; what it has |",
    "| `instance` | the whole instance (`octocp.instance/1`), its model inside |",
    "| `layers`, `devices`, `microbatches`, `objective`, `tick_us` | its size, its objective and its time grid |",
    "| `status`, `reason` | `optimal`, `feasible`, `infeasible` (proven) or `unknown`; why there is no plan |",
    "| `value`, `makespan`, `span` | the objective, and both of what it can be |",
    "| `lower_bound`, `bound_name`, `gap` | of every plan; the argument; (value - lower bound) / value |",
    "| `partition`, `placement` | layers per stage; device of each stage |",
    "| `orders`, `starts`, `ends` | per device, its ops in order (`B2.0`: B of stage 2, microbatch 0), and when |",
    "| `peak_memory_gb` | per device |",
    "| `method`, `found_by`, `seed`, `workers`, `time_limit`, `seconds`, `versions` | how it came about |",
    "| `heuristics` | known schedules on the same instance: `method`, `status`, `value`, `rule` (of the partition) |",
    "| `double_check` | the second proof: `status`, `value`, `lower_bound`, `bound_name`, `settings`, `seconds` |",
]
