"""`tm chaos`: do harm to a job, to see that it survives."""

from __future__ import annotations

import math

import click

from trainmaster.cli.options.given import Duration, job_argument, json_option, print_json, wants_json


@click.command("chaos")
@job_argument
@click.option(
    "--fault",
    "faults",
    multiple=True,
    metavar="NAME",
    help="a fault to use; may be repeated; default: all that the job can have",
)
@click.option("--every", type=Duration(), default="10s", show_default=True, help="time between two faults, on average")
@click.option("--for", "seconds", type=Duration(), default=None, help="how long; default: until the job ends")
@click.option(
    "--lasting",
    type=Duration(),
    default=None,
    help="how long each pause, slowness, cut or full disk lasts; default: drawn",
)
@click.option("--seed", type=int, default=None, help="of the order of faults; default: a random one, which is printed")
@click.option("--list", "lists", is_flag=True, help="show the faults that JOB can have, and do nothing")
@json_option
def command(
    job: str,
    faults: tuple[str, ...],
    every: float,
    seconds: float | None,
    lasting: float | None,
    seed: int | None,
    lists: bool,
) -> None:
    """Let faults happen to JOB while it runs: processes die, stop for a while, or are slow; links are cut, disks fill up; tasks are ended;
    elastic roles change size.

    The same seed gives the same order of faults. A stopped process goes on at the latest when this command ends, by Ctrl-C too. A cut
    affects only the link between an agent and the master, and the agent makes it: no network of the machine is touched. A disk is filled
    only where the job's directory is on a small file system of its own (at most 1 GiB, mounted within the state directory).
    """
    import random

    from trainmaster.client.chaos import FAULTS, possible, unleash
    from trainmaster.client.jobs.handles import handle_of
    from trainmaster.interrupts import interrupting

    names = possible(job, handle_of(job).engine, faults)
    if lists and wants_json():
        print_json({name: FAULTS[name].text for name in names})
        return
    if lists:
        for name in names:
            click.echo(f"{name:<15} {FAULTS[name].text}")
        return
    seed = random.randrange(2**31) if seed is None else seed
    if not wants_json():
        click.echo(f"seed {seed}")
    limit = math.inf if seconds is None else seconds
    with interrupting():
        for at, name, whom in unleash(job, names, seed, max(every, 0.001), limit, lasting):
            if wants_json():
                print_json({"at": round(at, 3), "fault": name, "hit": whom, "seed": seed})
            else:
                click.echo(f"{at:8.1f} s  {name:<15} {whom}")
