"""The worker service's one frozen configuration, checked when it is made.

Each field's docstring is the help text of its flag. Knows nothing about flags or the environment
(``__main__.py`` reads both) and nothing about models: whether the folder is sound is found at start.
"""

from dataclasses import dataclass

from telemetry.log_lines import LOG_FORMATS
from worker_svc.errors import ConfigError

MAX_STEPS_IN_FLIGHT = 4
LOG_LEVELS = ("debug", "info", "warning", "error")
DEVICES = ("cpu", "cuda")
ATTENTION_BACKENDS = ("auto", "torch", "triton", "flash-attn")
DEFAULT_KV_CACHE_GIB = 2.0
DTYPES = ("auto", "float32", "bfloat16", "float16")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerConfig:
    """All options of the worker service."""

    model: str
    """Model folder in Hugging Face format, or a hub id where the machine reaches a hub."""
    host: str = "127.0.0.1"
    """Address to listen on."""
    port: int = 50061
    """Port to listen on. 0 picks a free one; the start-up line tells it."""
    device: str = "cpu"
    """What to compute on: cpu or cuda."""
    dtype: str = "auto"
    """Of weights and KV cache: float32, bfloat16, float16; auto: float32 on cpu, the checkpoint's on cuda."""
    attention_backend: str = "auto"
    """Which kernels compute attention: torch, triton, flash-attn; auto: torch on cpu, triton on cuda."""
    cuda_graphs: bool = True
    """On cuda, capture steps at start and replay them, instead of launching each kernel."""
    block_size: int = 16
    """Tokens a block of the KV cache holds."""
    num_blocks: int = 0
    """Blocks of the KV cache. 0: as many as --kv-cache-gib holds."""
    kv_cache_gib: float = 0.0
    """Size of a rank's KV cache in GiB, unless --num-blocks is given. 0: 2 GiB, or what a GPU has left."""
    gpu_memory_utilization: float = 0.9
    """On cuda, share of the GPU's memory to use in all: weights, steps and KV cache."""
    max_num_seqs: int = 64
    """Most requests that run at once: lanes, and rows of one step."""
    max_num_batched_tokens: int = 2048
    """Most tokens of one step; at least --max-num-seqs, so that every running request can go on."""
    max_model_len: int = 0
    """Most tokens of one request, prompt and output. 0: the model's, lowered to what the KV cache holds."""
    torch_threads: int = 0
    """Threads that torch computes with on the CPU. 0: torch's own choice."""
    max_steps_in_flight: int = MAX_STEPS_IN_FLIGHT
    """Steps that the engine may send ahead of their results."""
    tls_cert: str = ""
    """PEM file of the certificates that engines are shown, the worker's own first. Empty: no TLS."""
    tls_key: str = ""
    """PEM file of the private key of --tls-cert, unencrypted."""
    tls_client_ca: str = ""
    """PEM file of authorities; engines must show a certificate that one of them signed. Empty: none."""
    reflection: bool = True
    """Answer server reflection, which tells all messages of the contract to whoever may call."""
    stuck_step_seconds: float = 60.0
    """A step that runs for this long after its engine gave it up ends the worker, with exit code 3."""
    metrics_port: int = -1
    """Port of the Prometheus metrics, on --host. 0 picks a free one, and a line tells it. -1: none."""
    silence_limit_seconds: float = 10.0
    """Of several ranks: one that shows no sign of life for this long ends them all, with exit code 3."""
    log_level: str = "info"
    """Least severe messages to log: debug, info, warning or error."""
    log_format: str = "text"
    """How log lines are written: text, or json for an object a line."""

    def __post_init__(self) -> None:
        """Refuse values that no worker could run under."""
        self._check_names()
        self._check_tls()
        self._check_range("port", 0, 65535)
        self._check_range("metrics_port", -1, 65535)
        self._check_range("block_size", 1, 1024)
        self._check_range("max_num_seqs", 1, 65536)
        self._check_range("max_num_batched_tokens", self.max_num_seqs, 2**24)
        self._check_range("max_steps_in_flight", 1, MAX_STEPS_IN_FLIGHT)
        self._check_range("torch_threads", 0, 1024)
        for option in ("num_blocks", "max_model_len"):
            self._check_range(option, 0, 2**31 - 1)
        for option in ("stuck_step_seconds", "silence_limit_seconds"):
            if not 0 < getattr(self, option) < 2**20:
                raise ConfigError.of(option, getattr(self, option), "be above 0 and finite")
        if not 0 <= self.kv_cache_gib < 2**20:
            raise ConfigError.of("kv_cache_gib", self.kv_cache_gib, "be at least 0 and finite")
        if not 0 < self.gpu_memory_utilization <= 1:
            raise ConfigError.of(
                "gpu_memory_utilization", self.gpu_memory_utilization, "be above 0 and at most 1"
            )

    def _check_tls(self) -> None:
        for option, needed in (
            ("tls_cert", "tls_key"),
            ("tls_key", "tls_cert"),
            ("tls_client_ca", "tls_cert"),
        ):
            value = getattr(self, option)
            if value and not getattr(self, needed):
                raise ConfigError.of(option, value, f"come with --{needed.replace('_', '-')}")

    def _check_names(self) -> None:
        if not self.model:
            raise ConfigError.of("model", self.model, "name a model folder or a hub id")
        if not self.host:
            raise ConfigError.of("host", self.host, "name an address to listen on")
        for option, names in (
            ("device", DEVICES),
            ("dtype", DTYPES),
            ("attention_backend", ATTENTION_BACKENDS),
            ("log_level", LOG_LEVELS),
            ("log_format", LOG_FORMATS),
        ):
            if getattr(self, option) not in names:
                raise ConfigError.of(option, getattr(self, option), f"be one of {', '.join(names)}")

    def _check_range(self, option: str, low: int, high: int) -> None:
        value = getattr(self, option)
        if not low <= value <= high:
            raise ConfigError.of(option, value, f"be in [{low}, {high}]")
