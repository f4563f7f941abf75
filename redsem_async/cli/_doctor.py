"""The command ``redsem-async doctor``. The checks are in `doctor/`."""

import json
from dataclasses import asdict

import click

from ._options import as_json, on_target
from ._target import FAILED, Target, printable, run
from .doctor._finding import Finding, Verdict


@click.command
@as_json
@on_target
def doctor(target: Target, *, as_json: bool) -> None:
    """Check whether semaphores work on this Redis, and recommend what to change.

    Creates temporary semaphores and keys with random names, and deletes them. Exits with 1 if
    there is a problem.
    """
    from .doctor._examine import examine

    findings: list[Finding] = []

    async def report() -> None:
        async for finding in examine(target):
            findings.append(finding)
            if not as_json:
                click.echo(f"{finding.verdict:<8} {finding.about}: {printable(finding.text)}")
                if finding.advice:
                    click.echo(f"{'':<8} -> {printable(finding.advice)}")

    run(report(), target)
    healthy = all(finding.verdict is not Verdict.PROBLEM for finding in findings)
    if as_json:
        data = {"ok": healthy, "findings": [asdict(finding) for finding in findings]}
        click.echo(json.dumps(data, indent=2))
    if not healthy:
        raise click.exceptions.Exit(FAILED)
