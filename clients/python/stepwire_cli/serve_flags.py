"""The flags of ``stepwire serve``.

Knows nothing about what the services make of them: those not given are not passed on.
"""

from dataclasses import dataclass
from typing import Annotated

import typer

_WORKER = "Worker"
_SCHEDULER = "Scheduler"


@dataclass(frozen=True, kw_only=True)
class ServeFlags:
    """Start a worker and a scheduler on this machine; Ctrl-C drains and stops both.

    Options that are not given keep the services' own defaults: python -m worker_svc --help and
    python -m scheduler_svc --help explain all of them.
    """

    model: Annotated[str, typer.Option(help="Model folder in Hugging Face format, or a hub id.")]
    # What is passed on always has the service's own variable here: its flag would beat it there.
    host: Annotated[str, typer.Option(help="Address to listen on.", envvar="STEPWIRE_SCHEDULER_HOST")] = (
        "127.0.0.1"
    )
    port: Annotated[
        int, typer.Option(help="Port to listen on; 0 picks a free one.", envvar="STEPWIRE_SCHEDULER_PORT")
    ] = 50051
    device: Annotated[
        str, typer.Option(help="cpu or cuda.", envvar="STEPWIRE_WORKER_DEVICE", rich_help_panel=_WORKER)
    ] = "cpu"
    tensor_parallel_size: Annotated[
        int,
        typer.Option(min=1, help="GPUs, or processes, that share the model.", rich_help_panel=_WORKER),
    ] = 1
    worker_port: Annotated[
        int,
        typer.Option(
            help="Port of the worker; 0 picks a free one.",
            envvar="STEPWIRE_WORKER_PORT",
            rich_help_panel=_WORKER,
        ),
    ] = 0
    dtype: Annotated[str | None, typer.Option(help="Of weights and KV cache.", rich_help_panel=_WORKER)] = (
        None
    )
    attention_backend: Annotated[
        str | None, typer.Option(help="Which kernels compute attention.", rich_help_panel=_WORKER)
    ] = None
    block_size: Annotated[
        int | None, typer.Option(help="Tokens a block of the KV cache holds.", rich_help_panel=_WORKER)
    ] = None
    num_blocks: Annotated[
        int | None, typer.Option(help="Blocks of the KV cache.", rich_help_panel=_WORKER)
    ] = None
    kv_cache_gib: Annotated[
        float | None,
        typer.Option(help="Size of the KV cache, or --num-blocks.", rich_help_panel=_WORKER),
    ] = None
    max_num_seqs: Annotated[
        int | None, typer.Option(help="Most requests that run at once.", rich_help_panel=_WORKER)
    ] = None
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(help="Most tokens of one step.", rich_help_panel=_WORKER)
    ] = None
    max_model_len: Annotated[
        int | None,
        typer.Option(help="Most tokens of one request, prompt and output.", rich_help_panel=_WORKER),
    ] = None
    torch_threads: Annotated[
        int | None, typer.Option(help="Threads torch computes with on the CPU.", rich_help_panel=_WORKER)
    ] = None
    worker_metrics_port: Annotated[
        int | None,
        typer.Option(help="Port of the worker's Prometheus metrics; 0 picks one.", rich_help_panel=_WORKER),
    ] = None
    served_model_name: Annotated[
        str | None, typer.Option(help="Name that clients know the model by.", rich_help_panel=_SCHEDULER)
    ] = None
    frontends: Annotated[
        int | None, typer.Option(help="Front end processes on the one port.", rich_help_panel=_SCHEDULER)
    ] = None
    max_steps_in_flight: Annotated[
        int | None,
        typer.Option(help="Steps sent to the worker ahead of their results.", rich_help_panel=_SCHEDULER),
    ] = None
    max_num_waiting: Annotated[
        int | None,
        typer.Option(help="Requests that may wait for their turn.", rich_help_panel=_SCHEDULER),
    ] = None
    drain_seconds: Annotated[
        float,
        typer.Option(
            help="How long a stop waits for running requests.",
            envvar="STEPWIRE_SCHEDULER_DRAIN_SECONDS",
            rich_help_panel=_SCHEDULER,
        ),
    ] = 30.0
    metrics_port: Annotated[
        int | None,
        typer.Option(
            help="Port of the Prometheus metrics; 0 picks a free one.",
            # It is looked at before the worker starts.
            envvar="STEPWIRE_SCHEDULER_METRICS_PORT",
            rich_help_panel=_SCHEDULER,
        ),
    ] = None
    tls_cert: Annotated[
        str | None,
        typer.Option(
            help="PEM file of the certificate that clients are shown.",
            # What these two say changes how the server is asked whether it is ready.
            envvar="STEPWIRE_SCHEDULER_TLS_CERT",
            rich_help_panel=_SCHEDULER,
        ),
    ] = None
    tls_key: Annotated[
        str | None, typer.Option(help="PEM file of its private key.", rich_help_panel=_SCHEDULER)
    ] = None
    tenants_file: Annotated[
        str | None,
        typer.Option(
            help="TOML file of tenants and their tokens' hashes.",
            envvar="STEPWIRE_SCHEDULER_TENANTS_FILE",
            rich_help_panel=_SCHEDULER,
        ),
    ] = None
    max_message_mib: Annotated[
        int | None, typer.Option(help="Largest gRPC message to or from clients, in MiB.")
    ] = None
    otlp_endpoint: Annotated[
        str | None, typer.Option(help="Where spans go: http://HOST:4317.", rich_help_panel=_SCHEDULER)
    ] = None
    log_level: Annotated[str | None, typer.Option(help="debug, info, warning or error.")] = None
    log_format: Annotated[str | None, typer.Option(help="text or json.")] = None
