# The scheduler service: no torch, no GPU. Build from the top of the repository:
#   docker build -f deploy/scheduler.Dockerfile -t stepwire-scheduler .
ARG BASE_IMAGE=python:3.12-slim
FROM ${BASE_IMAGE}

WORKDIR /opt/stepwire
COPY pyproject.toml constraints.txt README.md LICENSE ./
COPY protos/gen protos/gen
COPY clients/python clients/python
COPY scheduler_svc scheduler_svc
COPY telemetry telemetry
COPY model model
RUN python3 -m venv /opt/venv \
    && /opt/venv/bin/pip install --no-cache-dir -c constraints.txt ./clients/python ".[scheduler]"
COPY deploy/healthcheck.py /opt/healthcheck.py

RUN useradd --create-home --uid 10001 stepwire
USER stepwire
# Away from the sources: what runs is what was installed.
WORKDIR /home/stepwire
EXPOSE 50051
HEALTHCHECK --interval=5s --timeout=3s --start-period=60s --retries=3 \
    CMD ["/opt/venv/bin/python", "/opt/healthcheck.py", "127.0.0.1:50051", ""]
ENTRYPOINT ["/opt/venv/bin/python", "-m", "scheduler_svc"]
