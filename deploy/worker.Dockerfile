# A worker service. Build from the top of the repository, or with docker-compose.yml:
#   docker build -f deploy/worker.Dockerfile --build-context wheels=deploy/wheels -t stepwire-worker:0.1.0 .
#
# BASE_IMAGE   Debian or Ubuntu with Python 3.11 or newer and its venv module
# TORCH_INDEX  one more package index, of torch builds for the hardware: without one, PyPI's torch for Linux
#              brings its own CUDA libraries
# EXTRAS       what to install of pyproject.toml's extras
# PACKAGES     Debian packages to add: Triton compiles its launchers with a C compiler when it runs
# wheels       build context: a folder of wheels that pip may take before it asks an index
ARG BASE_IMAGE=python:3.12.12-slim-bookworm

FROM ${BASE_IMAGE} AS requirements
ARG EXTRAS=worker
WORKDIR /build
COPY pyproject.toml deploy/list_requirements.py ./
COPY clients/python/pyproject.toml clients/python/
RUN python3 list_requirements.py ${EXTRAS} > /requirements.txt

FROM ${BASE_IMAGE} AS build
ARG TORCH_INDEX=
WORKDIR /build
# pip stays behind in a place of its own: the image holds what runs, and cannot install more.
RUN python3 -m venv /opt/pip && python3 -m venv --without-pip /opt/venv
COPY constraints.txt ./
RUN --mount=type=bind,from=wheels,target=/wheels \
    /opt/pip/bin/pip install --no-cache-dir --find-links /wheels -c constraints.txt setuptools
COPY --from=requirements /requirements.txt ./
# torch's own tests and headers, 150 MB, stay behind as well.
RUN --mount=type=bind,from=wheels,target=/wheels \
    /opt/pip/bin/pip --python /opt/venv/bin/python install --no-cache-dir --find-links /wheels \
        ${TORCH_INDEX:+--extra-index-url ${TORCH_INDEX}} -c constraints.txt -r requirements.txt \
    && rm -rf /opt/venv/lib/python3*/site-packages/torch/test /opt/venv/lib/python3*/site-packages/torch/include
COPY pyproject.toml README.md LICENSE ./
COPY protos/gen protos/gen
COPY clients/python clients/python
COPY kernels kernels
COPY model model
COPY service service
COPY telemetry telemetry
COPY worker_svc worker_svc
RUN /opt/pip/bin/pip wheel --no-build-isolation --no-deps --wheel-dir /dist ./clients/python . \
    && /opt/pip/bin/pip --python /opt/venv/bin/python install --no-cache-dir --no-deps /dist/*.whl

FROM ${BASE_IMAGE}
ARG PACKAGES=
RUN test -z "${PACKAGES}" \
    || (apt-get update && apt-get install -y --no-install-recommends ${PACKAGES} && rm -rf /var/lib/apt/lists/*)
RUN useradd --create-home --uid 10001 stepwire && install -d -o 10001 -g 10001 /home/stepwire/.triton
COPY --from=build /opt/venv /opt/venv
COPY deploy/healthcheck.py /opt/healthcheck.py
USER 10001:10001
WORKDIR /home/stepwire
EXPOSE 50061
HEALTHCHECK --interval=10s --timeout=5s --start-period=300s --retries=3 \
    CMD ["/opt/venv/bin/python", "/opt/healthcheck.py", "127.0.0.1:50061", ""]
ENTRYPOINT ["/opt/venv/bin/python", "-m", "worker_svc"]
