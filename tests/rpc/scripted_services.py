"""Sources of a worker and a scheduler that only do what ``stepwire serve`` can see of them.

Both are found before the real packages where their folder comes first on the path. Knows nothing about tests.
"""

FAKE_WORKER = """
import signal, sys, threading
from pathlib import Path
LOG = Path(sys.argv[sys.argv.index("--model") + 1]) / "log"
def note(text):
    with LOG.open("a") as log:
        log.write(text + chr(10))
note("worker " + " ".join(sys.argv[1:]))
print("weights loaded")
print("a broken start", file=sys.stderr)
print('{"process": "worker"}', file=sys.stderr)
MODE = sys.argv[sys.argv.index("--dtype") + 1]
if MODE == "refuses":
    sys.exit(2)
if MODE == "dies_early":
    print("no such tensor", file=sys.stderr)
    sys.exit(3)
ended = threading.Event()
def take_sigterm(*_):
    note("worker SIGTERM")
    if MODE != "stubborn":
        ended.set()
signal.signal(signal.SIGTERM, take_sigterm)
print("worker listening on 127.0.0.1:4242")
if MODE == "chatty":
    talk = LOG.parent / "talk"
    while not talk.exists() and not ended.wait(0.01):
        pass
    for output in (sys.stdout, sys.stderr):
        print(("x" * 999 + chr(10)) * 1000, file=output)
    note("worker talked")
if MODE in ("dies_once", "dies_always"):
    die = LOG.parent / "die"
    while not die.exists() and not ended.wait(0.01):
        pass
    if not ended.is_set():
        if MODE == "dies_once":
            die.unlink()
        signal.raise_signal(signal.SIGKILL)
ended.wait()
note("worker ended")
"""
FAKE_SCHEDULER = """
import sys
if "--check-only" in sys.argv:
    sys.exit("scheduler error: it has tenants" if "--tenants-file" in sys.argv else 0)
import os, signal, threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
import grpc
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from stepwire.v1.generation_service_pb2_grpc import add_GenerationServiceServicer_to_server
from tests.rpc.fake_generation_service import FakeGenerationService
LOG = Path(sys.argv[sys.argv.index("--model") + 1]) / "log"
def note(text):
    with LOG.open("a") as log:
        log.write(text + chr(10))
note("scheduler " + " ".join(sys.argv[1:]))
server = grpc.server(ThreadPoolExecutor())
add_GenerationServiceServicer_to_server(FakeGenerationService(), server)
health_servicer = health.HealthServicer()
health_pb2_grpc.add_HealthServicer_to_server(health_servicer, server)
port = server.add_insecure_port("127.0.0.1:" + sys.argv[sys.argv.index("--port") + 1])
note(f"scheduler pid {os.getpid()}")
ended = threading.Event()
num_signals_to_end = 2 if "drains" in sys.argv else 1
def take_sigterm(*_):
    global num_signals_to_end
    note("scheduler SIGTERM")
    num_signals_to_end -= 1
    if not num_signals_to_end:
        ended.set()
    elif num_signals_to_end > 0:
        print("draining")
signal.signal(signal.SIGTERM, take_sigterm)
server.start()
print(f"scheduler listening on 127.0.0.1:{port}")
health_servicer.set("ready", health_pb2.HealthCheckResponse.NOT_SERVING)
health_servicer.set("ready", health_pb2.HealthCheckResponse.SERVING)
note("scheduler ready")
ended.wait()
server.stop(grace=None).wait()
note("scheduler ended")
"""
