"""`make test-compose`: build the images, run the stack, ask, kill the worker, see the stream go on.

The only module of this folder that reads flags and environment. Knows nothing about how a check is made.
"""

import argparse
import os
import re
import socket
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tools.compose_run import checks
from tools.compose_run.engine import (
    BUILD_LIMIT_SECONDS,
    ComposeRunError,
    Engine,
    expect_success,
    find_docker,
    podman_engine,
    run,
)
from tools.compose_run.http_checks import check_prometheus
from tools.compose_run.podman import install_podman, make_base_image, make_prometheus_image, write_settings
from tools.fetch_smollm2 import DEFAULT_FOLDER, FetchError, fetch

PROJECT = "stepwire-test"
PORTS = ("PORT", "GATEWAY_PORT", "PROMETHEUS_PORT")
FIND_LINKS = re.compile(r"find-links='([^'\s]+)", re.MULTILINE)


@contextmanager
def prepared_engine(environment: Mapping[str, str]) -> Iterator[Engine]:
    """Find a container engine, or make podman ready, with all that the images need to be built."""
    ports = {name: str(_free_port()) for name in PORTS}
    ours = {**environment, **_build_variables(environment), **ports}
    docker = find_docker(PROJECT, ours)
    if docker is not None:
        yield docker
        return
    _tell("no Docker engine answers: taking podman")
    install_podman(environment)
    with tempfile.TemporaryDirectory(prefix="stepwire-compose-") as folder:
        # HEALTHCHECK is kept in images of Docker's format only.
        settings = {"CONTAINERS_CONF": str(write_settings(Path(folder))), "BUILDAH_FORMAT": "docker"}
        ours = {**ours, **settings}
        if "BASE_IMAGE" not in ours:
            _tell("no BASE_IMAGE: making one of Debian's packages")
            ours["BASE_IMAGE"] = make_base_image(ours)
        if "PROMETHEUS_IMAGE" not in ours:
            ours["PROMETHEUS_IMAGE"] = make_prometheus_image(ours)
        yield podman_engine(PROJECT, ours)


def _build_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Let builds take the wheels that this machine's own pip takes; a torch among them needs no index."""
    if "WHEELS" in environment:
        return {}
    answer = run(
        [sys.executable, "-m", "pip", "config", "list"], BUILD_LIMIT_SECONDS, environment=environment
    )
    folders = [folder for folder in FIND_LINKS.findall(expect_success(answer)) if Path(folder).is_dir()]
    if not folders:
        return {}
    has_torch = any(Path(folders[0]).glob("torch-*.whl"))
    return {"WHEELS": folders[0], **({"TORCH_INDEX": ""} if has_torch else {})}


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def check_stack(engine: Engine, *, keep: bool) -> None:
    """Build, start and check the stack, and take it down again."""
    port, gateway_port, prometheus_port = (int(engine.environment[name]) for name in PORTS)
    _tell(f"building the images with {engine.name}")
    engine.run_make("up", "PROFILES=gateway", limit_seconds=BUILD_LIMIT_SECONDS)
    try:
        checks.wait_until_ready(engine)
        _tell("both services are up")
        checks.check_containers(engine)
        _tell("they run without rights, on a read-only root; the scheduler has no torch")
        text = checks.check_resumed_stream(engine, f"127.0.0.1:{port}")
        _tell(f"the worker was killed in the middle, and the same tokens came: {text!r}")
        model_folder = engine.environment["MODEL"]
        checks.check_gateway(gateway_port, model_folder=model_folder, expected_text=text)
        _tell("the gateway answers the same")
        # By its name: with the rest of the profile, an image of Grafana would have to be at hand.
        engine.run_compose("--profile", "monitoring", "up", "--detach", "--no-build", "prometheus")
        check_prometheus(prometheus_port)
        _tell("Prometheus reaches both services")
    except ComposeRunError:
        # Without its profile, compose leaves a service out.
        profiles = ("--profile", "gateway", "--profile", "monitoring")
        print(engine.try_compose([*profiles, "logs"]).stdout, file=sys.stderr)
        raise
    finally:
        if not keep:
            engine.run_make("down")
            engine.run_compose("--profile", "monitoring", "down", "--volumes")
    if not keep:
        checks.check_missing_model(engine, "/nonexistent/model")
        _tell("a missing model folder is told")


def _tell(line: str) -> None:
    print(f"test-compose: {line}", flush=True)


def main() -> int:
    """Run the checks with the model of the environment's MODEL, or the demo's, which is fetched."""
    parser = argparse.ArgumentParser(description="Run docker-compose.yml for real, and kill its worker.")
    parser.add_argument("--keep", action="store_true", help="leave the stack running")
    arguments = parser.parse_args()
    try:
        model = os.environ.get("MODEL")
        if not model:
            fetch(DEFAULT_FOLDER)
        with prepared_engine({**os.environ, "MODEL": model or str(DEFAULT_FOLDER.absolute())}) as engine:
            check_stack(engine, keep=arguments.keep)
    except (ComposeRunError, FetchError) as error:
        print(f"test-compose: {error}", file=sys.stderr)
        return 1
    _tell("passed")
    return 0


if __name__ == "__main__":
    sys.exit(main())
