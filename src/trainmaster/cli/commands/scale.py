"""`tm scale`: change the number of members of a role."""

from __future__ import annotations

import click

from trainmaster.cli.options.given import job_argument, json_option, print_json, wants_json


@click.command("scale")
@job_argument
@click.argument("sizes", nargs=-1, required=True, metavar="ROLE=N...")
@json_option
def command(job: str, sizes: tuple[str, ...]) -> None:
    """Have roles with `replicas: {min, max}` grow or shrink to N members, as soon as there are containers for them.

    The job grows no further than that until it is scaled again; ROLE=auto gives the number back to the job's own rules. Where its tasks
    restart together, the others begin anew from their checkpoint.
    """
    from trainmaster.client.jobs.actions import scale

    size_by_role = dict(map(_read, sizes))
    if len(size_by_role) < len(sizes):
        raise click.BadParameter("a role is named twice", param_hint="ROLE=N")
    for role, size in size_by_role.items():
        scale(job, role, size)
        if not wants_json():
            goal = "goes to its own number" if size is None else f"goes to {size}"
            click.echo(f"{job}: {role} {goal}; see tm status {job}")
    if wants_json():
        print_json({"job": job, "sizes": size_by_role})


def _read(text: str) -> tuple[str, int | None]:
    from trainmaster.core.foreign import number_in

    role, mark, size = text.partition("=")
    if not role or not mark or (size != "auto" and number_in(size) is None):
        raise click.BadParameter(f"{text!r} is not like worker=4 or worker=auto", param_hint="ROLE=N")
    return role, None if size == "auto" else int(size)
