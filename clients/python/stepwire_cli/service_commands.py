"""Which command line starts each service, worked out from the flags of ``stepwire serve``.

Knows nothing about processes, and of the services only their names and flags.
"""

from dataclasses import replace

from stepwire_cli.serve_flags import ServeFlags

WORKER = "worker"
WORKER_HOST = "127.0.0.1"
SCHEDULER = "scheduler"

_WORKER_FLAGS = (
    "device",
    "dtype",
    "attention_backend",
    "block_size",
    "num_blocks",
    "kv_cache_gib",
    "max_num_seqs",
    "max_num_batched_tokens",
    "max_model_len",
    "torch_threads",
    "log_level",
    "log_format",
)
_SCHEDULER_FLAGS = (
    "served_model_name",
    "host",
    "port",
    "frontends",
    "max_steps_in_flight",
    "max_num_waiting",
    "drain_seconds",
    "tls_cert",
    "tls_key",
    "tenants_file",
    "max_message_mib",
    "metrics_port",
    "otlp_endpoint",
    "log_level",
    "log_format",
)


def worker_command(flags: ServeFlags, port: int | None = None, *, python: str) -> tuple[str, ...]:
    """Return the command line of the worker: it listens on this machine only, on ``port`` if given."""
    port = flags.worker_port if port is None else port
    own = ["--model", flags.model, "--host", WORKER_HOST, "--port", str(port)]
    if flags.worker_metrics_port is not None:
        own += ["--metrics-port", str(flags.worker_metrics_port)]
    return (python, "-u", "-m", *_ranks(flags), "worker_svc", *own, *_pass_on(flags, _WORKER_FLAGS))


def _ranks(flags: ServeFlags) -> tuple[str, ...]:
    """Return what starts the worker's ranks on this machine, by torchrun; nothing for one."""
    if flags.tensor_parallel_size == 1:
        return ()
    size = str(flags.tensor_parallel_size)
    return ("worker_svc.launch", "--standalone", "--nproc-per-node", size, "-m")


def scheduler_command(
    flags: ServeFlags, port: int | None = None, *, worker_address: str, python: str
) -> tuple[str, ...]:
    """Return the command line of the scheduler that uses the worker at ``worker_address``."""
    flags = flags if port is None else replace(flags, port=port)
    own = ("--model", flags.model, "--worker", worker_address)
    return (python, "-u", "-m", "scheduler_svc", *own, *_pass_on(flags, _SCHEDULER_FLAGS))


def _pass_on(flags: ServeFlags, names: tuple[str, ...]) -> list[str]:
    given = ((name, getattr(flags, name)) for name in names)
    return [
        part
        for name, value in given
        if value is not None
        for part in (f"--{name.replace('_', '-')}", str(value))
    ]
