# The scheduler service: no torch, no GPU. Build from the top of the repository, or with docker-compose.yml:
#   docker build -f deploy/scheduler.Dockerfile --build-context wheels=deploy/wheels -t stepwire-scheduler:0.1.0 .
#
# BASE_IMAGE  Debian or Ubuntu with Python 3.11 or newer and its venv module
# wheels      build context: a folder of wheels that pip may take before it asks an index
ARG BASE_IMAGE=python:3.12.12-slim-bookworm

FROM ${BASE_IMAGE} AS requirements
WORKDIR /build
COPY pyproject.toml deploy/list_requirements.py ./
COPY clients/python/pyproject.toml clients/python/
RUN python3 list_requirements.py scheduler > /requirements.txt

FROM ${BASE_IMAGE} AS build
WORKDIR /build
# pip stays behind in a place of its own: the image holds what runs, and cannot install more.
RUN python3 -m venv /opt/pip && python3 -m venv --without-pip /opt/venv
COPY constraints.txt ./
RUN --mount=type=bind,from=wheels,target=/wheels \
    /opt/pip/bin/pip install --no-cache-dir --find-links /wheels -c constraints.txt setuptools
COPY --from=requirements /requirements.txt ./
RUN --mount=type=bind,from=wheels,target=/wheels \
    /opt/pip/bin/pip --python /opt/venv/bin/python install --no-cache-dir --find-links /wheels \
        -c constraints.txt -r requirements.txt
COPY pyproject.toml README.md LICENSE ./
COPY protos/gen protos/gen
COPY clients/python clients/python
COPY model model
COPY service service
COPY telemetry telemetry
COPY scheduler_svc scheduler_svc
RUN /opt/pip/bin/pip wheel --no-build-isolation --no-deps --wheel-dir /dist ./clients/python . \
    && /opt/pip/bin/pip --python /opt/venv/bin/python install --no-cache-dir --no-deps /dist/*.whl

FROM ${BASE_IMAGE}
RUN useradd --create-home --uid 10001 stepwire
COPY --from=build /opt/venv /opt/venv
COPY deploy/healthcheck.py /opt/healthcheck.py
USER 10001:10001
WORKDIR /home/stepwire
EXPOSE 50051
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["/opt/venv/bin/python", "/opt/healthcheck.py", "127.0.0.1:50051", ""]
ENTRYPOINT ["/opt/venv/bin/python", "-m", "scheduler_svc"]
