"""The command ``redsem-async doctor``. The checks are in `doctor/`."""

import json
from dataclasses import asdict

import typer

from ._options import LOCAL, AsJson, IsCluster, Prefix, Url
from ._target import FAILED, Target, printable, run
from .doctor._finding import Finding, Verdict


def doctor(
    *,
    url: Url = LOCAL,
    prefix: Prefix = "redsem",
    cluster: IsCluster = False,
    as_json: AsJson = False,
) -> None:
    """Check whether semaphores work on this Redis, and recommend what to change.

    Creates temporary semaphores and keys with random names, and deletes them. Exits with 1 if
    there is a problem.
    """
    from .doctor._examine import examine

    target = Target(url, prefix, cluster)
    findings: list[Finding] = []

    async def report() -> None:
        async for finding in examine(target):
            findings.append(finding)
            if not as_json:
                typer.echo(f"{finding.verdict:<8} {finding.about}: {printable(finding.text)}")
                if finding.advice:
                    typer.echo(f"{'':<8} -> {printable(finding.advice)}")

    run(report(), target)
    healthy = all(finding.verdict is not Verdict.PROBLEM for finding in findings)
    if as_json:
        data = {"ok": healthy, "findings": [asdict(finding) for finding in findings]}
        typer.echo(json.dumps(data, indent=2))
    if not healthy:
        raise typer.Exit(FAILED)
