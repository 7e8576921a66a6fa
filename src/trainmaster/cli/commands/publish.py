"""`tm publish`: a job as a trace, or as a run of MLflow."""

from __future__ import annotations

import click

from trainmaster.cli.options.given import job_argument, json_option, print_json, wants_json

EVERY = 10.0  # s between two looks at a job that runs


@click.command("publish")
@job_argument
@click.option("--otlp", metavar="URL", help="as an OpenTelemetry trace, to a collector: http://localhost:4318")
@click.option("--mlflow", metavar="URI", help="as an MLflow run, to a tracking server")
@click.option("--experiment", metavar="NAME", default="trainmaster", show_default=True, help="of MLflow")
@click.option("--outputs/--no-outputs", default=True, help="outputs on this machine as MLflow's artifacts")
@click.option("-f", "--follow", is_flag=True, help="metrics as they come, until the job ends")
@json_option
def command(job: str, otlp: str | None, mlflow: str | None, experiment: str, outputs: bool, follow: bool) -> None:
    """Publish JOB to other systems. Publishing it again adds what is new."""
    import time

    from trainmaster.client.jobs.past import Past, own_outputs
    from trainmaster.client.watch.connect import status as status_of

    if otlp is None and mlflow is None:
        raise click.UsageError("say where to: --otlp URL, --mlflow URI, or both", click.get_current_context())
    if otlp is not None and not otlp.startswith(("http://", "https://")):
        raise click.UsageError(
            f"--otlp {otlp} is not an address like http://localhost:4318", click.get_current_context()
        )
    past, published, runs = Past(job), {}, None
    if mlflow is not None:
        from trainmaster.integrations.mlflow_runs import Runs

        runs = Runs(mlflow, experiment)
    while True:
        status, description = status_of(job), past.description()
        if runs is not None:
            published["mlflow"] = runs.publish(status, description, past.metrics(), own_outputs(job) if outputs else {})
        if status["ended"] is not None or not follow:
            break
        time.sleep(EVERY)
    if otlp is not None:
        from trainmaster.integrations.traces import phases, publish

        published["otlp"] = str(publish(list(phases(status, description, past.timeline())), otlp))
    if wants_json():
        print_json(published)
    else:
        for system, text in published.items():
            click.echo(f"{system}: {'run ' + text if system == 'mlflow' else text + ' spans'}")
