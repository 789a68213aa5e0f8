"""Which message types a method of the page of recipes takes and gives.

Knows nothing about the recipes: it looks methods up in the code that is made from the protos.
"""

from typing import Any

from google.protobuf import message_factory
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2
from stepwire.v1 import generation_service_pb2

FILES = (generation_service_pb2.DESCRIPTOR, health_pb2.DESCRIPTOR)


def request_type(method: str | None) -> type[Message] | None:
    """Return what ``package.Service/Method`` takes; None where no method is called."""
    return None if method is None else message_factory.GetMessageClass(_find(method).input_type)


def response_type(method: str | None) -> type[Message] | None:
    """Return what ``package.Service/Method`` gives; None where no method is called."""
    return None if method is None else message_factory.GetMessageClass(_find(method).output_type)


def _find(method: str) -> Any:
    service_name, _, method_name = method.partition("/")
    services = {each.full_name: each for file in FILES for each in file.services_by_name.values()}
    return services[service_name].methods_by_name[method_name]
