"""`octocp compare`: known schedules, schedules of one's own and the solver, side by side."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from octocp.cli.inputs import load, naming, naming_option
from octocp.cli.options import DEFAULT_TIME_LIMIT, Json, Seed, TimeLimit, Workers
from octocp.cli.output import complain, ensure_writable, note, write, write_json
from octocp.errors import InfeasibleError, InputError, NoPlanError

if TYPE_CHECKING:
    from octocp.cli.progress import Interruption, Watch
    from octocp.comparison import Added, Comparison
    from octocp.schema import Instance

MOST_DRAWN = 3
PLOT_SUFFIXES = (".svg", ".png")

# Shown as it is: typer would run the lines together.
HELP = """Compare known schedules, your own and the solver.

GPipe, 1F1B and its interleaved, eager, zero-bubble, V-shaped and other kin, each with the partitions that people use,
and OctoPipe's tuner. A known schedule's own name means the uniform partition; -balanced, one that evens out the work;
-memory and -megatron, shown where they are better, one that 1F1B can hold and Megatron's; -best, with
--best-partition, the best there is for its orders.

With a folder, or several instances: how each method stands over all of them, and its performance profile.
"""


def compare(
    instances: Annotated[
        list[str],
        typer.Argument(metavar="INSTANCE...", help="Instance files, names that `octocp instances` lists, or folders."),
    ],
    time_limit: TimeLimit = DEFAULT_TIME_LIMIT,
    workers: Workers = None,
    seed: Seed = 0,
    methods: Annotated[
        str | None,
        typer.Option(metavar="A,B,...", help="Only these known schedules (1f1b), or single rows (1f1b-balanced)."),
    ] = None,
    no_solver: Annotated[bool, typer.Option("--no-solver", help="Leave the solver out.")] = False,
    best_partition: Annotated[
        bool,
        typer.Option("--best-partition", help="Also find the best partition for each known schedule's orders."),
    ] = False,
    add: Annotated[
        list[str] | None,
        typer.Option(
            "--add",
            metavar="FILE[@N,N,...]",
            help="A schedule of your own as one more row; may be repeated. One instance only. @ and the layers of each "
            "stage, for a PyTorch CSV, which does not say.",
        ),
    ] = None,
    save: Annotated[
        list[str] | None,
        typer.Option(metavar="ROW=FILE", help="Write a row's plan; may be repeated. One instance only."),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Draw it, as .svg or .png: timelines, bubbles and memory, or the profile."),
    ] = None,
    rows: Annotated[
        str | None,
        typer.Option(metavar="A,B,C", help="Rows to draw, three at most. [default: the best known and the solver]"),
    ] = None,
    as_json: Json = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Write all rows as CSV to stdout.")] = False,
) -> None:
    """Compare; `HELP` is what --help shows."""
    if as_json and as_csv:
        raise typer.BadParameter("--json and --csv both write to stdout; leave one out")
    if rows is not None and plot is None:
        raise typer.BadParameter("--rows says what --plot draws; add --plot FILE")
    drawn, wanted = _names(rows, "--rows"), _names(methods, "--methods")
    if len(drawn) > MOST_DRAWN:
        raise typer.BadParameter(f"--rows has {len(drawn)} rows; {MOST_DRAWN} at most")
    if plot is not None:
        _ensure_drawable(plot)
    saved = _to_save(save or [])
    named, many = _resolve(instances)
    if many and add:
        raise typer.BadParameter("--add is for one instance; several are given")
    if many and save:
        raise typer.BadParameter("--save is for one instance; several are given")
    if many and rows is not None:
        raise typer.BadParameter("--rows is for one instance; of several, --plot draws the profile")
    for written in [*([plot] if plot else []), *saved.values()]:
        # Of `--add FILE@4,3`, what stands before the @ is the file.
        for read in [*named, *(file.partition("@")[0] for file in add or [])]:
            if Path(read).is_file():
                ensure_writable(written, reads=Path(read))
    loaded = [load(name) for name in named]
    added = _read_own(*loaded[0], add or [])

    from octocp import api
    from octocp.cli.progress import Watch, interruptible, shown
    from octocp.comparison import Choice

    _ensure_known("--rows", drawn, added)
    _ensure_known("--save", list(saved), added)
    with naming_option("--methods"):
        Choice(wanted)
    watch = Watch(loaded[0][0].tick_us)
    run = partial(
        api.compare_all,
        time_limit=time_limit,
        workers=workers,
        seed=seed,
        solver=not no_solver,
        methods=wanted,
        best_partition=best_partition,
        added=added,
        on_event=watch,
    )
    with interruptible() as interruption:
        with shown(watch, quiet=False):
            done = _run(loaded, run, watch, interruption, many=many)
        interruption.settle()
        if interruption.happened:
            _tell_interrupted(done, len(loaded), many)
        try:
            _write(done, many=many, as_json=as_json, as_csv=as_csv, solver=not no_solver, only=bool(wanted))
        finally:
            # That nobody reads the table is no reason to lose the files.
            _save(done[0], saved)
            if plot is not None:
                _draw(done, plot, drawn, many=many)


def _names(text: str | None, option: str) -> list[str]:
    if text is None:
        return []
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise typer.BadParameter(f"{option} is a list of names with commas between them")
    return names


def _ensure_drawable(path: Path) -> None:
    """Find out before any long work that a picture cannot be made."""
    from importlib.util import find_spec

    if path.suffix.lower() not in PLOT_SUFFIXES:
        raise InputError("is no picture", file=str(path), place="--plot", right="a name that ends in .svg or .png")
    if path.suffix.lower() == ".png" and find_spec("matplotlib") is None:
        raise InputError(
            "PNG needs matplotlib, which is not installed", right='pip install "octocp[plot]", or a name in .svg'
        )
    ensure_writable(path)


def _resolve(references: list[str]) -> tuple[list[str], bool]:
    """Return the instances meant, folders opened, and whether there may be several."""
    from octocp.cli.inputs import instances_in

    found: list[str] = []
    folders = False
    for reference in references:
        inside = instances_in(reference)
        folders = folders or inside is not None
        found += [reference] if inside is None else inside
    return list(dict.fromkeys(found)), folders or len(references) > 1


def _to_save(given: list[str]) -> dict[str, Path]:
    """Read ROW=FILE, and find out before any long work that a file cannot be written."""
    saved: dict[str, Path] = {}
    for text in given:
        row, equals, file = text.partition("=")
        if not (row and equals and file):
            raise typer.BadParameter(f"--save is ROW=FILE, e.g. 1f1b=1f1b.plan.json, and not {text!r}")
        if row in saved or Path(file) in saved.values():
            raise typer.BadParameter(f"--save has {row if row in saved else file} twice")
        saved[row] = Path(file)
        ensure_writable(saved[row])
    return saved


def _save(comparison: Comparison, saved: dict[str, Path]) -> None:
    from octocp.comparison import plan_of
    from octocp.schema.files import write_plan

    for name, path in saved.items():
        with naming_option("--save"):
            plan = plan_of(comparison, name)
        write_plan(plan, path)
        note(f"Written to {path}.")


def _read_own(instance: Instance, source: Path, files: list[str]) -> list[Added]:
    from octocp.comparison import file_and_partition, read_added

    added: list[Added] = []
    for given in files:
        file, partition = file_and_partition(given)
        if not file.exists():
            raise InputError("no such file", file=str(file), place="--add")
        with naming(source):
            one = read_added(instance, file, [each.name for each in added], partition)
        added.append(one)
        for text in one.notes:
            note(f"{file}: {text}")
    return added


def _ensure_known(option: str, names: list[str], added: list[Added]) -> None:
    """Find out before any long work that there will be no row of a name."""
    from octocp.comparison import Choice

    own = {each.name for each in added}
    with naming_option(option):
        Choice([name for name in names if name not in own])


def _run(
    loaded: list[tuple[Instance, Path]],
    run: Callable[..., Comparison],
    watch: Watch,
    interruption: Interruption,
    *,
    many: bool,
) -> list[Comparison]:
    """Compare on each instance in turn; an interruption ends it after the one at hand."""
    from octocp.comparison import Comparison

    done: list[Comparison] = []
    for number, (instance, source) in enumerate(loaded, 1):
        before = f"{number} of {len(loaded)}, {source.stem}: " if many else ""

        def step(text: str, before: str = before, tick_us: float = instance.tick_us) -> None:
            watch.begin(before + text, tick_us)

        try:
            with naming(source):
                done.append(run(instance, on_step=step))
        except InfeasibleError as error:
            if not many:
                raise
            complain(f"warning: {error}")
            done.append(Comparison(instance, reason=str(error)))
        except KeyboardInterrupt:
            if not done:
                raise
        if interruption.happened:
            break
    return done


def _tell_interrupted(done: list[Comparison], total: int, many: bool) -> None:
    if many:
        note(f"Interrupted: {len([each for each in done if each.complete])} of {total} instances are done.")
    elif not done[0].complete:
        note("Interrupted: only the methods that were done have a row.")
    else:
        note("Interrupted: the solver's row is the best plan found so far.")


def _write(done: list[Comparison], *, many: bool, as_json: bool, as_csv: bool, solver: bool, only: bool) -> None:
    from octocp.comparison import data

    if as_csv:
        write(data.csv_text(done))
    elif as_json:
        write_json(data.all_data(done) if many else data.rows_data(done[0]))
    else:
        from octocp.cli import compare_tables

        if many:
            compare_tables.write_standings(done)
        else:
            compare_tables.write_rows(done[0], solver=solver, only=only)


def _draw(done: list[Comparison], path: Path, drawn: list[str], *, many: bool) -> None:
    from octocp.comparison.pictures import profile_scene, rows_scene
    from octocp.report.export import draw
    from octocp.schema.files import write_whole

    if not any(each.best is not None for each in done):
        raise NoPlanError(f"{path} is not drawn: no method has a plan")
    title = "performance profile" if many else done[0].instance.name
    with naming_option("--rows"):
        scene = profile_scene(done) if many else rows_scene(done[0], drawn)
    write_whole(draw(scene, title, path.suffix.lower().removeprefix(".")), path)
    note(f"Written to {path}.")
