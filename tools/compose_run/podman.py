"""Makes podman ready on a machine without a container engine, and images where no registry has them.

Installs Debian's packages when it runs as root, and makes the base image with debootstrap. Knows nothing
about compose or the services.
"""

import resource
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.compose_run.engine import BUILD_LIMIT_SECONDS, expect_success, run

PACKAGES = ("podman", "runc", "netavark", "aardvark-dns", "catatonit", "iptables", "debootstrap")
SUITE = "bookworm"
BASE_IMAGE = f"localhost/stepwire-base:{SUITE}"
BASE_PACKAGES = "ca-certificates,python3-venv"
CERTIFICATES = "etc/ssl/certs/ca-certificates.crt"
PROMETHEUS_IMAGE = f"localhost/stepwire-prometheus:{SUITE}"
PROMETHEUS_DOCKERFILE = """ARG BASE_IMAGE
FROM ${BASE_IMAGE}
RUN apt-get update && apt-get install -y --no-install-recommends prometheus
RUN install -d -o nobody /prometheus
USER nobody
ENTRYPOINT ["/usr/bin/prometheus"]
"""
MAX_LIMIT = 16384
"""Files or processes of one container: more than it needs, and less than podman lowers its own limits to."""


def install_podman(environment: Mapping[str, str]) -> None:
    """Install what podman needs of Debian's packages, where some are missing.

    Raises:
        ComposeRunError: if it cannot: naming what is missing.
    """
    _make(["sh", "tools/install_debian.sh", *PACKAGES], environment)


def settings_text(*, has_systemd: bool, limits: Mapping[str, int]) -> str:
    """Return a containers.conf for this machine.

    Args:
        has_systemd: Whether systemd runs; without it control groups are made in their file system.
        limits: Of each kind, how much a process may have at most: podman asks for more by default, which
            only a process that may raise limits can give.
    """
    lines = ["[engine]", 'runtime = "runc"']
    if not has_systemd:
        lines += ['cgroup_manager = "cgroupfs"', 'events_logger = "file"']
    limit_texts = ", ".join(f'"{name}={limit}:{limit}"' for name, limit in limits.items())
    return "\n".join([*lines, "[containers]", f"default_ulimits = [{limit_texts}]", ""])


def write_settings(folder: Path) -> Path:
    """Write a containers.conf for this machine into ``folder``."""
    kinds = {"nofile": resource.RLIMIT_NOFILE, "nproc": resource.RLIMIT_NPROC}
    hard_limits = {name: resource.getrlimit(kind)[1] for name, kind in kinds.items()}
    limits = {
        name: MAX_LIMIT if hard == resource.RLIM_INFINITY else min(hard, MAX_LIMIT)
        for name, hard in hard_limits.items()
    }
    path = folder / "containers.conf"
    has_systemd = Path("/run/systemd/system").is_dir()
    path.write_text(settings_text(has_systemd=has_systemd, limits=limits), encoding="utf-8")
    return path


def make_base_image(environment: Mapping[str, str]) -> str:
    """Make a small Debian with Python by debootstrap, unless an earlier run did; return the image's name.

    It trusts what this machine trusts: builds reach the same package indexes.
    """
    if (
        run(
            ["podman", "image", "exists", BASE_IMAGE], BUILD_LIMIT_SECONDS, environment=environment
        ).returncode
        == 0
    ):
        return BASE_IMAGE
    # Not /tmp: it may be mounted without devices, which debootstrap makes.
    with tempfile.TemporaryDirectory(prefix="stepwire-base-", dir="/var/tmp") as scratch:
        root = Path(scratch, "root")
        archive = Path(scratch, "root.tar")
        include = f"--include={BASE_PACKAGES}"
        _make(["debootstrap", "--variant=minbase", include, SUITE, str(root)], environment)
        if (host_certificates := Path("/", CERTIFICATES)).is_file():
            shutil.copyfile(host_certificates, root / CERTIFICATES)
        for leftover in ("var/cache/apt/archives", "var/lib/apt/lists"):
            shutil.rmtree(root / leftover)
        _make(["tar", "--directory", str(root), "--create", "--file", str(archive), "."], environment)
        # pip in a fresh virtual environment brings certificates of its own otherwise.
        change = f"ENV PIP_CERT=/{CERTIFICATES}"
        _make(["podman", "import", "--change", change, str(archive), BASE_IMAGE], environment)
    return BASE_IMAGE


def make_prometheus_image(environment: Mapping[str, str]) -> str:
    """Build an image with Debian's Prometheus on the base image; return its name."""
    with tempfile.TemporaryDirectory(prefix="stepwire-prometheus-") as folder:
        Path(folder, "Dockerfile").write_text(PROMETHEUS_DOCKERFILE, encoding="utf-8")
        argument = f"BASE_IMAGE={environment['BASE_IMAGE']}"
        command = ["podman", "build", "--build-arg", argument, "--tag", PROMETHEUS_IMAGE, folder]
        _make(command, environment)
    return PROMETHEUS_IMAGE


def _make(command: Sequence[str], environment: Mapping[str, str]) -> None:
    expect_success(run(command, BUILD_LIMIT_SECONDS, environment=environment))
