"""`tm ui`: the pages of jobs, in a browser."""

from __future__ import annotations

from collections.abc import Sequence

import click

from trainmaster.cli.options.given import JobName, json_option, print_json, wants_json

FILE = click.Path(dir_okay=False)


@click.command("ui")
@click.argument("job", type=JobName(), required=False, metavar="[JOB]")
@click.option("--port", type=click.IntRange(1, 65535), help="the port of 127.0.0.1; else 8470, or the next free one")
@click.option("--no-browser", is_flag=True, help="print the address, and open no browser")
@click.option(
    "--jobs", "place", metavar="URL", default="", help="the jobs whose storages are at URL; else those of this machine"
)
@click.option("--listen", metavar="HOST:PORT", default="", help="serve a team, which may read and change nothing")
@click.option("--tls-cert", type=FILE, default="", help="of --listen: the certificate, as PEM")
@click.option("--tls-key", type=FILE, default="", help="of --listen: its key")
@click.option("--tokens", type=FILE, default="", help="of --listen: the readers, in lines `user token`")
@click.option(
    "--user-header", metavar="NAME", default="", help="of --listen: the header in which a proxy names the reader"
)
@click.option(
    "--trust-proxy", "proxies", metavar="ADDRESS", multiple=True, help="of --listen: a proxy that is believed, each"
)
@json_option
def command(
    job: str | None, port: int | None, no_browser: bool, place: str, listen: str, tls_cert: str, tls_key: str, tokens: str,
    user_header: str, proxies: Sequence[str],
) -> None:  # fmt: skip
    """Show jobs in a browser, live and past, until Ctrl-C. With JOB its page opens, else their list.

    The pages are for the user of this machine alone: the address has a code that signs one browser in, once. The next is printed then.
    """
    from trainmaster.client.ui.places import StoragePlace, ThisMachine
    from trainmaster.client.ui.serving import PORT, PROGRAMS_PORT, TRIES, bound, serve_team, serve_user
    from trainmaster.runtime.network.listeners import PAGES, PAGES_OF_PROGRAMS

    announce = (lambda address, again=False: print_json({"address": address})) if wants_json() else _announce
    if job and (place or listen):
        raise click.UsageError("name a job of this machine, or a place whose jobs are listed")
    if not listen and (tls_cert or tls_key or tokens or user_header or proxies):
        raise click.UsageError("--tls-cert, --tls-key, --tokens, --user-header and --trust-proxy are of --listen")
    if listen:
        from trainmaster.client.ui.team import listening

        team = listening(listen, tls_cert, tls_key, tokens, user_header, proxies)
        serve_team(StoragePlace(place) if place else ThisMachine(acts=False), team, announce)
        return
    jobs = StoragePlace(place) if place else ThisMachine(acts=True)
    if isinstance(jobs, StoragePlace) and jobs.is_empty:
        click.echo(f"{place} has no jobs yet; new ones appear on the page", err=True)
    listener = bound(PAGES, port or PORT, 0 if port else TRIES)
    if (number := listener.getsockname()[1]) != (port or PORT):
        click.echo(f"port {port or PORT} is taken: this is port {number}", err=True)
    programs = None if place else bound(PAGES_OF_PROGRAMS, PROGRAMS_PORT, TRIES)
    if programs and (number := programs.getsockname()[1]) != PROGRAMS_PORT:
        click.echo(f"port {PROGRAMS_PORT} is taken: programs' pages are at port {number}", err=True)
    path = f"/jobs/{job}/" if job else "/"
    serve_user(jobs, listener, programs, path, announce, None if no_browser else _open_browser)


def _announce(address: str, again: bool = False) -> None:
    click.echo(f"for another browser: {address}" if again else address)


def _open_browser(address: str) -> None:
    import os
    import webbrowser

    if any(
        os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER")
    ):  # else a browser of text would take the terminal
        webbrowser.open(address)
