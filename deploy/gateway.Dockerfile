# The gateway smg: OpenAI's HTTP in front, gRPC to the scheduler behind. Build from the top of the repository:
#   docker build -f deploy/gateway.Dockerfile --build-context wheels=deploy/wheels -t stepwire-gateway:0.1.0 .
#
# BASE_IMAGE  Debian or Ubuntu with Python 3.11 or newer and its venv module
# wheels      build context: a folder of wheels that pip may take before it asks an index
ARG BASE_IMAGE=python:3.12.12-slim-bookworm

FROM ${BASE_IMAGE} AS build
WORKDIR /build
RUN python3 -m venv /opt/pip && python3 -m venv --without-pip /opt/venv
COPY constraints.txt ./
RUN --mount=type=bind,from=wheels,target=/wheels \
    /opt/pip/bin/pip --python /opt/venv/bin/python install --no-cache-dir --find-links /wheels \
        -c constraints.txt smg

FROM ${BASE_IMAGE}
RUN useradd --create-home --uid 10001 stepwire
COPY --from=build /opt/venv /opt/venv
USER 10001:10001
WORKDIR /home/stepwire
EXPOSE 8000
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["/opt/venv/bin/python", "-c", "import urllib.request as r; r.urlopen('http://127.0.0.1:8000/health', timeout=3)"]
ENTRYPOINT ["/opt/venv/bin/smg", "launch"]
