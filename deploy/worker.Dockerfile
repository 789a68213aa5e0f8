# A worker service. TORCH_INDEX names an index of torch builds for the image's hardware: without one,
# PyPI's torch for Linux brings its own CUDA libraries. Build from the top of the repository:
#   docker build -f deploy/worker.Dockerfile -t stepwire-worker .
ARG BASE_IMAGE=python:3.12-slim
FROM ${BASE_IMAGE}
ARG TORCH_INDEX=

WORKDIR /opt/stepwire
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY protos/gen protos/gen
COPY clients/python clients/python
COPY worker_svc worker_svc
COPY telemetry telemetry
COPY model model
COPY kernels kernels
RUN python3 -m venv /opt/venv \
    && /opt/venv/bin/pip install --no-cache-dir -c constraints.txt \
        ${TORCH_INDEX:+--extra-index-url ${TORCH_INDEX}} ./clients/python ".[worker]"
COPY deploy/healthcheck.py /opt/healthcheck.py

RUN useradd --create-home --uid 10001 stepwire
USER stepwire
# Away from the sources: what runs is what was installed.
WORKDIR /home/stepwire
EXPOSE 50061
HEALTHCHECK --interval=5s --timeout=3s --start-period=300s --retries=3 \
    CMD ["/opt/venv/bin/python", "/opt/healthcheck.py", "127.0.0.1:50061", ""]
ENTRYPOINT ["/opt/venv/bin/python", "-m", "worker_svc"]
