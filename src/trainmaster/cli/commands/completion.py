"""`tm completion`: completion of commands, options and jobs for a shell."""

from __future__ import annotations

import click

from trainmaster.cli.options.given import json_option, print_json, wants_json


@click.command("completion")
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@json_option
@click.pass_context
def command(ctx: click.Context, shell: str) -> None:
    """Print what a shell needs to complete `tm`.

    \b
    bash: eval "$(tm completion bash)"        in ~/.bashrc
    zsh:  eval "$(tm completion zsh)"         in ~/.zshrc
    fish: tm completion fish | source         in ~/.config/fish/config.fish
    """
    from click.shell_completion import get_completion_class

    completer = get_completion_class(shell)
    assert completer is not None, "click knows these shells"
    script = completer(ctx.find_root().command, {}, "tm", "_TM_COMPLETE").source()
    if wants_json():
        print_json({"shell": shell, "script": script})
    else:
        click.echo(script)
