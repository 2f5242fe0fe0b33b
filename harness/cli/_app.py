"""The commands and their options."""

from __future__ import annotations

from harness.cli import (
    _baseline,
    _compare,
    _demo,
    _doctor,
    _engine,
    _evidence,
    _extract,
    _gate,
    _model,
    _patches,
    _plan,
    _preflight,
    _reclaim,
    _rehearse,
    _surface,
    _verify,
)
from harness.cli._root import app
from harness.cli._streams import hold_standard

__all__ = ["app", "main"]

app.command("demo")(_demo.demo)
app.command("extract")(_extract.extract)
app.command("verify")(_verify.verify)
app.command("compare")(_compare.compare)
app.command("doctor")(_doctor.doctor)
app.command("preflight", epilog=_preflight.EPILOG)(_preflight.preflight)
app.command("gate")(_gate.gate)
app.command("plan")(_plan.plan)
app.command("rehearse")(_rehearse.rehearse)
app.add_typer(_engine.app, name="engine")
app.command("reclaim")(_reclaim.reclaim)
app.add_typer(_baseline.app, name="baseline")
app.add_typer(_model.app, name="model")
app.add_typer(_patches.app, name="patches")
app.add_typer(_evidence.app, name="evidence")
app.add_typer(_surface.app, name="surface")
# The group's former name.
app.add_typer(_surface.app, name="seams", hidden=True)


def main() -> None:
    """Run the command line."""
    hold_standard()
    app()
