"""`octocp dataset`: data sets of proven optimal schedules, built, checked, summed up, merged and sampled."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from octocp.cli.options import MAX_SEED, Json
from octocp.cli.output import complain, ensure_writable, note, one_line, tell, write, write_json
from octocp.errors import InputError

if TYPE_CHECKING:
    from octocp.cli.progress import Watch
    from octocp.dataset.executors import Executor
    from octocp.dataset.stats import Group, Stats

MAX_JOBS = 10_000

app = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False, add_completion=False)

SourceArgument = Annotated[
    str,
    typer.Argument(
        metavar="DATASET",
        help="A folder or file (.jsonl, .jsonl.gz, .parquet) of one, or groundtruth, the shipped one.",
    ),
]


@app.callback()
def _root() -> None:
    """Build and use data sets of proven optimal schedules; docs/datasets.md has more."""


@app.command("build")
def build(
    spec: Annotated[Path, typer.Argument(metavar="SPEC", help="Which instances: a YAML file (docs/datasets.md).")],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder of the data set; made if it is not there.")
    ],
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs",
            "-j",
            metavar="N",
            min=1,
            max=MAX_JOBS,
            help="Processes, or Slurm jobs at a time. [default: every core; 200 jobs]",
        ),
    ] = None,
    dask: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run on this Dask cluster, e.g. tcp://10.0.0.1:8786.")
    ] = None,
    slurm: Annotated[
        str | None,
        typer.Option(
            metavar="KEY=VALUE,...",
            help="Run as Slurm jobs, with submitit's parameters, e.g. slurm_partition=cpu,mem_gb=4; "
            "cluster=local runs them here.",
        ),
    ] = None,
    double_check: Annotated[
        bool, typer.Option("--double-check", help="Prove every proof again with other settings.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress and no summary.")] = False,
) -> None:
    """Draw the instances of a spec and solve each of them.

    Rows are written as they come; after Ctrl-C, a crash or a power cut the same command goes on where it was.
    """
    if dask is not None and slurm is not None:
        raise typer.BadParameter("--dask and --slurm are two places to run on; leave one out")
    if dask is not None and jobs is not None:
        raise typer.BadParameter("--jobs says nothing to --dask, which uses all of the cluster; leave one out")

    from octocp.cli.progress import interruptible, shown
    from octocp.dataset.build import State, build_file, prepared

    loaded = prepared(spec, output)
    watch = _watch()
    latest = State()

    def show(state: State) -> None:
        nonlocal latest
        latest = state
        watch.begin(
            state.words()
            if state.total or state.step != "instances"
            else f"{loaded.name}: {loaded.count:,} instances, on {place}"
        )

    with interruptible(), _executor(output, jobs, dask, slurm, loaded.solve.time_limit) as executor:
        place = executor.words
        try:
            with shown(watch, quiet):
                built = build_file(spec, output, executor, double_check=double_check, on_state=show)
        except KeyboardInterrupt:
            if latest.total:
                note(f"Interrupted at {latest.words()}; the same command goes on from there.")
            raise
    for text in built.notes:
        note(text)
    if quiet:
        return
    checked = f", {built.confirmed:,} of these proofs repeated" if built.confirmed or double_check else ""
    tell(f"{built.rows:,} rows, {built.proven:,} with a proof{checked}; {built.fresh:,} tasks done by this command.\n")
    tell(f"Written to {output}. To look at it: octocp dataset stats {output}\n")


def _watch() -> Watch:
    from octocp.cli.progress import Watch

    return Watch(1.0)


@contextmanager
def _executor(
    output: Path, jobs: int | None, dask: str | None, slurm: str | None, time_limit: float
) -> Iterator[Executor]:
    """Return where tasks run."""
    if dask is not None:
        from octocp.dataset.on_dask import OnDask

        on_dask = OnDask(dask)
        if on_dask.waits:
            note(on_dask.waits)
        try:
            yield on_dask
        finally:
            on_dask.close()
    elif slurm is not None:
        from octocp.dataset.names import SLURM
        from octocp.dataset.on_slurm import OnSlurm

        # Time for the solve, a second proof, the known schedules, and to start.
        minutes = 5 + int(3 * time_limit / 60)
        yield OnSlurm(output / SLURM, _settings(slurm), minutes=minutes, jobs=jobs)
    else:
        from octocp.dataset.executors import Processes

        yield Processes(jobs or os.cpu_count() or 1)


def _settings(text: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in filter(None, text.split(",")):
        key, sign, value = (each.strip() for each in part.partition("="))
        if not (key and sign and value):
            raise InputError(f"{part!r} is no setting", place="--slurm", right="KEY=VALUE,KEY=VALUE")
        found[key] = value
    return found


@app.command("check")
def check(source: SourceArgument) -> None:
    """Verify a data set row by row; exit code 1 where something is wrong.

    Plans pass the checker; values, memory, hashes, features and known schedules are computed anew. Bounds are held
    against plans, second proofs and the analytic bounds; a proof by search is not repeated here, as it is by
    `build --double-check`. What a folder holds beside its log is compared with the log.
    """
    from octocp.dataset.checking import remarks, violations

    count = 0
    for text in violations(source):
        count += 1
        tell(one_line(text) + "\n")
    rows, told = remarks(source)
    for text in told:
        note(text)
    if count:
        complain(f"{source}: {count} violations in {rows:,} rows")
        raise typer.Exit(1)
    tell(f"Valid: {rows:,} rows.\n")


@app.command("stats")
def stats(
    source: SourceArgument,
    as_json: Json = False,
) -> None:
    """Count rows, proofs and gaps by family, and how far known schedules are from the optimum."""
    from octocp.dataset.reading import read_rows
    from octocp.dataset.stats import collect

    found = collect(data for _, data in read_rows(source))
    if not found.families:
        raise InputError("has no rows", file=source)
    if as_json:
        write_json(_data(found))
    else:
        _write_tables(found)


def _data(found: Stats) -> dict[str, Any]:
    return {
        "families": {name: _group_data(group) for name, group in found.families.items()},
        "distances": [
            {
                "method": method,
                "family": family,
                "mean": one.mean,
                "p95": one.p95,
                "worst": one.worst,
                "optimal": one.optimal,
                "plans": one.plans,
                "rows": one.rows,
            }
            for method in found.methods()
            for family in found.distances[method]
            if (one := found.summary(method, family)) is not None
        ],
    }


def _group_data(group: Group) -> dict[str, Any]:
    return {
        "rows": group.rows,
        **{key: group.statuses[key] for key in ("optimal", "feasible", "infeasible", "unknown")},
        "confirmed": group.confirmed,
        "seconds": sum(group.seconds),
        "gaps": dict(group.histogram()),
        "features": dict(sorted(group.features.items())),
    }


def _write_tables(found: Stats) -> None:
    from statistics import median

    from rich.box import SIMPLE
    from rich.table import Table

    from octocp.cli.output import write_table
    from octocp.dataset.stats import ALL

    table = Table(box=SIMPLE)
    table.add_column("family")
    for name in ("rows", "optimal", "feasible", "infeasible", "unknown", "repeated", "largest gap", "median time"):
        table.add_column(name, justify="right")
    for name, group in found.families.items():
        counts = [f"{group.statuses[key]:,}" for key in ("optimal", "feasible", "infeasible", "unknown")]
        gap = f"{100 * max(group.gaps, default=0):.2f} %"
        table.add_row(name, f"{group.rows:,}", *counts, f"{group.confirmed:,}", gap, f"{median(group.seconds):.2f} s")
    write_table(table)
    table = Table(box=SIMPLE)
    table.add_column("schedule")
    for name in ("mean", "95 %", "worst", "optimal", "has a plan"):
        table.add_column(name, justify="right")
    for method in found.methods():
        one = found.summary(method, ALL)
        if one is None:
            table.add_row(method, "", "", "", "0", "0 %")
            continue
        shares = (f"{100 * share:.1f} %" for share in (one.mean, one.p95, one.worst))
        table.add_row(method, *shares, f"{one.optimal:,}", f"{100 * one.plans / one.rows:.0f} %")
    if found.distances:
        write("Above the optimum, on rows that are proven optimal:\n")
        write_table(table)


@app.command("merge")
def merge(
    sources: Annotated[list[str], typer.Argument(metavar="DATASET...", help="Folders or files of data sets.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DIR", help="A new folder.")],
) -> None:
    """Put data sets together; of equal problems the row that knows most is kept."""
    from octocp.dataset.merging import merge as merge_sets

    rows, dropped, notes = merge_sets(sources, output)
    for text in notes:
        note(text)
    tell(f"{rows:,} rows written to {output}; {dropped:,} were of problems that it has already.\n")


@app.command("sample")
def sample(
    source: SourceArgument,
    count: Annotated[int, typer.Option("--count", "-n", metavar="N", min=1, help="Rows.")] = 10,
    seed: Annotated[int, typer.Option(metavar="N", min=0, max=MAX_SEED, help="The same seed gives the same rows.")] = 0,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE", help="A .jsonl or .jsonl.gz file. [default: stdout]"),
    ] = None,
) -> None:
    """Take some rows of every family and status, as JSON lines."""
    import json

    from octocp.dataset.reading import find, read_rows
    from octocp.dataset.tools import outside_sets
    from octocp.dataset.tools import sample as take
    from octocp.dataset.views import write_jsonl

    path = find(source)
    if output is not None:
        if not output.name.endswith((".jsonl", ".jsonl.gz")):
            raise InputError("is no JSONL file", file=str(output), right="a name that ends in .jsonl or .jsonl.gz")
        outside_sets(output, path)
        ensure_writable(output, reads=path)
    rows = take((data for _, data in read_rows(path)), count, seed)
    if not rows:
        raise InputError("has no rows", file=source)
    if output is None:
        for row in rows:
            write(json.dumps(row, separators=(",", ":")) + "\n")
        return
    write_jsonl(rows, output)
    note(f"{len(rows):,} rows written to {output}.")
