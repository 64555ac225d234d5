"""`octocp bound`: what no plan can beat, and why."""

from __future__ import annotations

from octocp.cli.inputs import headline, load, naming
from octocp.cli.options import InstanceArgument, Json
from octocp.cli.output import write, write_json, write_table


def bound(instance: InstanceArgument, as_json: Json = False) -> None:
    """Show what no plan can beat, and why.

    Every analytic lower bound of an instance, best first, without solving it.
    """
    from octocp.bounds import all_bounds
    from octocp.costs import build_problem
    from octocp.report.words import bound_words

    loaded, source = load(instance)
    with naming(source):
        found = all_bounds(build_problem(loaded))

    def milliseconds(ticks: int) -> float:
        return ticks * loaded.tick_us / 1000

    if as_json:
        write_json(
            [
                {
                    "name": each.name,
                    "value": each.value,
                    "value_ms": milliseconds(each.value),
                    "detail": each.detail,
                    "explanation": bound_words(each.name, each.detail, applies=each.value > 0),
                }
                for each in found
            ]
        )
        return

    from rich.table import Table

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("bound")
    table.add_column("ticks", justify="right")
    table.add_column("ms", justify="right")
    table.add_column("because")
    for each in found:
        # A bound of 0 says nothing; its detail tells what it would need.
        value = (str(each.value), f"{milliseconds(each.value):.6g}") if each.value else ("-", "-")
        table.add_row(each.name, *value, bound_words(each.name, each.detail, applies=each.value > 0))
    write(headline(loaded) + "\n\n")
    write_table(table)
    best = found[0]
    write(
        f"No plan of {loaded.name} has a {loaded.objective} below {best.value} ticks "
        f"({milliseconds(best.value):.6g} ms).\n"
    )
