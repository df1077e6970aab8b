"""The command line: `seqshift`."""

import typer

from seqshift.cli_plan import plan_command
from seqshift.cli_simulate import simulate_command
from seqshift.cli_simulate_routing import SimulateCommand
from seqshift.demo.command import demo

app = typer.Typer(no_args_is_help=True, add_completion=False)


@app.callback()
def root() -> None:
    """Sequence migration between data-parallel ranks, and sticky-session routing."""


app.command("plan")(plan_command)
app.command()(demo)
app.command("simulate", cls=SimulateCommand)(simulate_command)


def main() -> None:
    """Entry point of the console script."""
    app()
