"""`tm cluster grants`: what an administrator applies once."""

from __future__ import annotations

import click

from trainmaster.cli.options.given import json_option, print_json, wants_json


@click.command("grants")
@click.option("--namespace", default="", help="where jobs will run  [default: the kubeconfig's]")
@click.option("--service-account", "account", default="trainmaster", show_default=True, help="the name of the account")
@json_option
def command(namespace: str, account: str) -> None:
    """Print the service account, role and binding by which masters run on Kubernetes, as YAML.

    A submitter needs the role edit of the namespace, and these objects, which an administrator applies once:
    tm cluster grants --namespace NAME | kubectl apply -f -
    """
    from trainmaster.engines.kubernetes.client import KubernetesClient
    from trainmaster.engines.kubernetes.submit import rights
    from trainmaster.kube.manifest import as_yaml

    where = namespace or KubernetesClient().namespace_of()
    objects = rights.granted(where, account)
    if wants_json():
        print_json(objects)
    else:
        click.echo(as_yaml(objects), nl=False)
