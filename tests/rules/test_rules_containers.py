"""Rules on images and compose files: pinned, without rights, watched, and holding all that the code imports.

That they build and run is for `make test-compose` to show. Knows nothing about any engine.
"""

import re
from typing import Any

import pytest
import yaml

from tests.rules.source_tree import REPOSITORY, Module, expect_none, read_file, read_modules

COMPOSE_FILES = ("docker-compose.yml", "docker-compose.gpu.yml")
IMAGES = ("scheduler", "worker", "gateway")
SERVICES_OF_OURS = ("scheduler", "worker")
PACKAGES = {"scheduler_svc", "worker_svc", "service", "telemetry", "model", "kernels"}
PINNED = re.compile(r":v?\d+\.\d+\.\d+(-[\w.-]+)?$")
DEFAULT = re.compile(r"\$\{\w+:?-([^}]*)\}")
COPY = re.compile(r"^COPY (?!--from)(.+) \S+$", re.MULTILINE)


def test_services_agree_with_their_images() -> None:
    services = _services("docker-compose.yml")
    for name in SERVICES_OF_OURS:
        assert services[name]["build"]["dockerfile"] == f"deploy/{name}.Dockerfile"
        assert f'ENTRYPOINT ["/opt/venv/bin/python", "-m", "{name}_svc"]' in _dockerfile(name)
    assert "--worker=worker:50061" in services["scheduler"]["command"]


def test_the_gpu_worker_has_the_flags_of_the_cpu_worker() -> None:
    on_cpu, on_gpu = (_services(file_name)["worker"]["command"] for file_name in COMPOSE_FILES)
    of_torchrun = 4
    assert [flag.replace("=cuda", "=cpu") for flag in on_gpu[of_torchrun:]] == on_cpu


def test_every_service_comes_back_and_has_no_rights() -> None:
    expected = {
        "restart": "unless-stopped",
        "init": True,
        "read_only": True,
        "tmpfs": ["/tmp"],
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
    }
    for name, service in _services("docker-compose.yml").items():
        assert {key: service.get(key) for key in expected} == expected, name


def test_every_service_has_a_health_check() -> None:
    for name, service in _services("docker-compose.yml").items():
        assert "healthcheck" in service or "\nHEALTHCHECK " in _dockerfile(name), name
    for name in SERVICES_OF_OURS:
        assert '"/opt/healthcheck.py"' in _dockerfile(name)


def test_ports_are_published_on_this_machine_only() -> None:
    open_to_others = [
        f"{name}: {port}"
        for name, service in _services("docker-compose.yml").items()
        for port in service.get("ports", [])
        if not port.startswith("127.0.0.1:")
    ]
    expect_none(open_to_others)


def test_every_image_is_pinned() -> None:
    names = [
        DEFAULT.sub(r"\1", name)
        for file_name in COMPOSE_FILES
        for service in _services(file_name).values()
        for name in (service.get("image"), service.get("build", {}).get("args", {}).get("BASE_IMAGE"))
        if name is not None
    ]
    names += [_base_image(name) for name in IMAGES]
    assert len(names) >= 9
    expect_none([name for name in names if not PINNED.search(name)])
    files = (*COMPOSE_FILES, *(f"deploy/{name}.Dockerfile" for name in IMAGES))
    expect_none([name for name in files if "latest" in read_file(name)])


def test_all_images_have_one_base() -> None:
    in_compose = re.findall(r"\$\{BASE_IMAGE:-([^}]*)\}", read_file("docker-compose.yml"))
    assert set(in_compose) == {_base_image(name) for name in IMAGES}


@pytest.mark.parametrize("image", IMAGES)
def test_an_image_holds_what_runs_and_runs_it_as_nobody_special(image: str) -> None:
    stages = re.split(r"^FROM ", _dockerfile(image), flags=re.MULTILINE)[1:]
    assert len(stages) >= 2
    last = stages[-1]
    assert "pip" not in last
    assert "COPY --from=build /opt/venv /opt/venv" in last
    assert last.index("USER 10001:10001") < last.index("ENTRYPOINT")
    assert "--uid 10001" in last


@pytest.mark.parametrize("image", SERVICES_OF_OURS)
def test_an_image_is_built_of_the_packages_that_its_service_imports(image: str) -> None:
    copied = {source for line in COPY.findall(_dockerfile(image)) for source in line.split()}
    expect_none(sorted(_imported_packages(f"{image}_svc") - copied))
    assert ("kernels" in copied) == (image == "worker")


@pytest.mark.parametrize("image", IMAGES)
def test_what_is_copied_reaches_the_build(image: str) -> None:
    allowed = tuple(
        line.removeprefix("!") for line in read_file(".dockerignore").splitlines() if line.startswith("!")
    )
    copied = {source for line in COPY.findall(_dockerfile(image)) for source in line.split()}
    kept_out = [
        source
        for source in sorted(copied)
        if not any(source == name or source.startswith(f"{name}/") for name in allowed)
    ]
    expect_none(kept_out)
    expect_none([source for source in sorted(copied) if not (REPOSITORY / source).exists()])


def test_the_gpu_worker_is_one_process_for_each_gpu() -> None:
    worker = _services("docker-compose.gpu.yml")["worker"]
    assert worker["entrypoint"] == ["/opt/venv/bin/python", "-m", "torch.distributed.run"]
    assert worker["command"][:4] == ["--standalone", "--nproc-per-node=${NPROC:-1}", "-m", "worker_svc"]
    (device,) = worker["deploy"]["resources"]["reservations"]["devices"]
    assert device == {"driver": "nvidia", "count": "${NPROC:-1}", "capabilities": ["gpu"]}


def test_grafana_finds_its_data_source_and_its_dashboards() -> None:
    services = _services("docker-compose.yml")
    folder = "./deploy/grafana/provisioning"
    (source,) = yaml.safe_load(read_file(f"{folder}/datasources/prometheus.yml"))["datasources"]
    assert (source["type"], source["url"], source["isDefault"]) == (
        "prometheus",
        "http://prometheus:9090",
        True,
    )
    (provider,) = yaml.safe_load(read_file(f"{folder}/dashboards/stepwire.yml"))["providers"]
    mounts = services["grafana"]["volumes"]
    assert f"./deploy/grafana/dashboards:{provider['options']['path']}:ro" in mounts
    for kind in ("datasources", "dashboards"):
        assert f"{folder}/{kind}:/etc/grafana/provisioning/{kind}:ro" in mounts
    home = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == f"{provider['options']['path']}/stepwire.json"
    assert (REPOSITORY / "deploy/grafana/dashboards/stepwire.json").is_file()


def test_prometheus_finds_the_ports_that_services_tell_their_numbers_on() -> None:
    services = _services("docker-compose.yml")
    jobs = yaml.safe_load(read_file("deploy/prometheus/prometheus.yml"))["scrape_configs"]
    targets = [target for job in jobs for config in job["static_configs"] for target in config["targets"]]
    for target in targets:
        name, port = target.split(":")
        assert f"--metrics-port={port}" in services[name]["command"]
    assert len(targets) == 2
    (mount, _) = services["prometheus"]["volumes"]
    assert mount == "./deploy/prometheus:/etc/prometheus:ro"


def _services(file_name: str) -> dict[str, dict[str, Any]]:
    services: dict[str, dict[str, Any]] = yaml.safe_load(read_file(file_name))["services"]
    return services


def _dockerfile(image: str) -> str:
    return read_file(f"deploy/{image}.Dockerfile")


def _base_image(image: str) -> str:
    match = re.search(r"^ARG BASE_IMAGE=(.*)$", _dockerfile(image), re.MULTILINE)
    assert match is not None
    assert match.start() < _dockerfile(image).index("FROM ${BASE_IMAGE}")
    return match[1]


def _imported_packages(service: str) -> set[str]:
    """Name the packages of ours whose modules a service imports, directly or through others."""
    modules = {_dotted(module): module for module in read_modules(*sorted(PACKAGES))}
    to_read = {name for name in modules if name.split(".")[0] == service}
    found: set[str] = set()
    while to_read:
        found |= to_read
        imported = {name for module in to_read for name in modules[module].imported_names()}
        to_read = (imported & modules.keys()) - found
    return {name.split(".")[0] for name in found}


def _dotted(module: Module) -> str:
    return module.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
