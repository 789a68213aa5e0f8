"""Models that two and four ranks share over gloo: logits and tokens are those of one rank.

float32, so that only the order of sums differs.
"""

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rank_process import RankResult, read_results

Results = dict[tuple[str, int], list[RankResult]]
# Four heads with two KV heads, tied; four with one, not tied, in several files; eight with four, padded ids.
SHAPES = ["qwen3_tiny", "qwen3_untied_sharded", "llama_odd_vocabulary"]
LIMIT_SECONDS = 100.0
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def results(checkpoint_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Each model's results, by its name and the number of ranks."""
    out = tmp_path_factory.mktemp("ranks")
    links = [out / name for name in SHAPES]
    for link in links:
        link.symlink_to(checkpoint_folder(link.name), target_is_directory=True)
    command = [sys.executable, "-m", "tests.rank_process", "cpu", str(out), *map(str, links)]
    # gloo would listen where the machine's name leads.
    environment = os.environ | {"GLOO_SOCKET_IFNAME": "lo"}
    subprocess.run(command, check=True, timeout=LIMIT_SECONDS, env=environment)
    return read_results(out, "cpu")


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", SHAPES)
def test_shared_models_give_what_whole_ones_give(results: Results, name: str, size: int) -> None:
    (whole,) = results[name, 1]
    for shared in results[name, size]:
        error_T = (shared.logits_TV - whole.logits_TV).abs().amax(-1) / whole.logits_TV.abs().amax(-1)
        assert error_T.max() < TOLERANCE
        assert shared.plain == whole.plain
        assert shared.edited == whole.edited
        assert shared.logprobs == [pytest.approx(values, abs=1e-4) for values in whole.logprobs]


@pytest.mark.parametrize("name", SHAPES)
def test_tokens_vary(results: Results, name: str) -> None:
    (whole,) = results[name, 1]
    for lane in zip(*whole.plain, strict=True):
        assert len(set(lane)) > 4, "a model that repeats itself hides a wrong token"
    assert sum(map(len, whole.logprobs)) == 3 * len(whole.edited)


def test_each_rank_holds_its_kv_heads(results: Results) -> None:
    shapes = {
        (name, size): {result.kv_cache_shape[2] for result in results[name, size]}
        for name in SHAPES
        for size in (2, 4)
    }
    assert shapes == {
        ("qwen3_tiny", 2): {1},
        ("qwen3_tiny", 4): {1},
        ("qwen3_untied_sharded", 2): {1},
        ("qwen3_untied_sharded", 4): {1},
        ("llama_odd_vocabulary", 2): {2},
        ("llama_odd_vocabulary", 4): {1},
    }
