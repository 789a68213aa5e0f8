"""Offers gateways their service beside our own, where the package with its contract is installed.

Knows nothing about what the service does.
"""

import logging
from importlib.util import find_spec

from scheduler_svc.frontend.engine_link import EngineLink
from scheduler_svc.frontend.generate import Generator
from scheduler_svc.frontend.registering import Services, add_service

_CONTRACT_PACKAGE = "smg_grpc_proto"

_log = logging.getLogger(__name__)


def add_gateway_service(server: Services, generator: Generator, *, link: EngineLink) -> list[str]:
    """Add the service to a server; return its name, or nothing where its contract is missing."""
    if find_spec(_CONTRACT_PACKAGE) is None:
        _log.warning("no service for gateways: the package %s is not installed", _CONTRACT_PACKAGE)
        return []
    # Only here: without its contract the service cannot be imported.
    from smg_grpc_proto.generated import vllm_engine_pb2_grpc  # noqa: PLC0415

    from scheduler_svc.frontend.vllm_servicer import SERVICE_NAME, VllmEngineServicer  # noqa: PLC0415

    servicer = VllmEngineServicer(generator, link)
    add_service(vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server, servicer, server=server)
    return [SERVICE_NAME]
