"""Log-probabilities by kernels, against the reference."""

import torch

from kernels.sample import logprobs_ref
from kernels.sampler_tables import SamplerFlavour
from tests.kernels.conftest import Place
from tests.kernels.sampler_cases import UNWRITTEN, Row, draw

FULL = SamplerFlavour.FULL


def test_rows_get_what_they_ask_for_of_the_raw_distribution(place: Place) -> None:
    generator = torch.Generator().manual_seed(0)
    logits_RV = (torch.randn(5, 300, generator=generator) * 3 + 4).to(place.device, place.dtype)
    logits_RV[3, [9, 250, 31]] = 20  # ties: the lowest ids come first
    counts = [0, 1, 6, 5, 21]
    rows = [
        Row(seed=row, num_logprobs_plus_one=count, biases={7: 50.0} if row == 2 else {}, presence=2.0)
        for row, count in enumerate(counts)
    ]
    drawn = draw(logits_RV, rows, flavour=FULL)
    assert drawn.token_ids[2] == 7
    logits_RV = logits_RV.float().cpu()
    expected_ids, expected = logprobs_ref(logits_RV, torch.tensor(drawn.token_ids), 20)
    for row, count in enumerate(counts):
        assert (drawn.logprob_ids_BK[row, count:] == UNWRITTEN).all()
        assert (drawn.logprobs_BK[row, count:] == UNWRITTEN).all()
        # float32 sums of 300 weights.
        torch.testing.assert_close(
            drawn.logprobs_BK[row, :count], expected[row, :count], rtol=1e-5, atol=1e-5
        )
        own = logits_RV[row].log_softmax(-1)[drawn.logprob_ids_BK[row, :count].long()]
        torch.testing.assert_close(drawn.logprobs_BK[row, :count], own, rtol=1e-5, atol=1e-5)
        assert len(set(drawn.logprob_ids_BK[row, 1:count].tolist())) == max(count - 1, 0)
    assert drawn.logprob_ids_BK[4, 0] == expected_ids[4, 0]
    assert drawn.logprob_ids_BK[3, 1:4].tolist() == [9, 31, 250]


def test_a_small_vocabulary_is_told_whole(place: Place) -> None:
    logits_RV = torch.tensor([[0.25, 0.25, 0.5, 0.0]]).log().to(place.device, place.dtype)
    drawn = draw(logits_RV, [Row(temperature=0.0, num_logprobs_plus_one=5)], flavour=FULL, chunk_size=2)
    assert drawn.logprob_ids_BK[0, :5].tolist() == [2, 2, 0, 1, 3]
    torch.testing.assert_close(
        drawn.logprobs_BK[0, :5], torch.tensor([0.5, 0.5, 0.25, 0.25, 0.0]).log(), rtol=2e-3, atol=2e-3
    )
