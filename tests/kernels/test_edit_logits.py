"""Biases, penalties and masks by kernels: the edited logits, and tokens drawn from them."""

import pytest
import torch

from kernels.edit_logits import edit_logits
from kernels.sampler_tables import SamplerFlavour, allocate_lane_sampling, allocate_sampler_workspace
from tests.kernels.conftest import Place
from tests.kernels.sampler_cases import Row, draw, draw_ref

FULL = SamplerFlavour.FULL


def _logits(num_rows: int, vocab_size: int, place: Place) -> torch.Tensor:
    generator = torch.Generator().manual_seed(vocab_size)
    return (torch.randn(num_rows, vocab_size, generator=generator) * 2).to(place.device, place.dtype)


def test_edits_are_those_worked_out_by_hand(place: Place) -> None:
    # Prompt: 0, 1, 1; output: 2, 2, 3, 1. A bias comes first, a mask last.
    history = [0, 1, 1, 2, 2, 3, 1]
    tables = allocate_lane_sampling(2, place.device)
    pool_LP = torch.full((2, 20), 6, dtype=torch.int32, device=place.device)
    pool_LP[1, : len(history)] = torch.tensor(history).int()
    for name, value in (("repetition", 2.0), ("frequency", 0.5), ("presence", 0.25)):
        getattr(tables, f"{name}_L")[1] = value
    for name, count in (("num_prompt", 3), ("min_tokens", 5), ("num_stop_ids", 1), ("num_biases", 3)):
        getattr(tables, f"{name}_L")[1] = count
    tables.stop_token_ids_LY[1, 0] = 5
    tables.bias_token_ids_LX[1, :3] = torch.tensor([2, 4, 4]).int()
    tables.bias_values_LX[1, :3] = torch.tensor([4.0, 1.0, 2.0])
    logits_BV = torch.tensor([[4.0, -4.0, 2.0, 1.0, 0.0, 9.0, 8.0]] * 3).to(place.device, place.dtype)
    lanes_B = torch.tensor([1, -1, 0], dtype=torch.int32, device=place.device)
    positions_B = torch.tensor([6, 6, 6], dtype=torch.int32, device=place.device)
    workspace = allocate_sampler_workspace(3, 7, flavour=FULL, device=place.device)
    for _ in range(2):  # a second time: the counts were put back
        edit_logits(logits_BV, lanes_B, positions_B, tables, pool_LP, workspace)
        assert workspace.edited_logits_RV is not None
        edited = workspace.edited_logits_RV[0].tolist()
        assert edited == [2.0, -8.75, 1.75, -0.25, 3.0, float("-inf"), 8.0]
        assert workspace.is_edited_R.tolist() == [1, 0, 0]
        assert workspace.counts_GV is not None
        assert not workspace.counts_GV.any()


def test_a_stop_id_is_masked_until_min_tokens(place: Place) -> None:
    logits_RV = torch.zeros(3, 40).to(place.device, place.dtype)
    logits_RV[:, 11] = 5
    rows = [
        Row(temperature=0.0, position=position, num_prompt=10, min_tokens=4, stop_ids=[11, 0])
        for position in (9, 12, 13)
    ]
    assert draw(logits_RV, rows, flavour=FULL).token_ids == [1, 1, 11]


@pytest.mark.parametrize("vocab_size", [90, 301])
def test_draws_from_edited_logits_are_those_of_the_reference(vocab_size: int, place: Place) -> None:
    rows = [
        Row(temperature=0.0),
        Row(temperature=0.0, presence=1.5, frequency=0.3, num_prompt=50, position=150),
        Row(temperature=0.7, repetition=1.3, num_prompt=20, position=120, seed=3),
        Row(temperature=1.0, repetition=0.5, presence=-2.0, num_prompt=180, position=179, top_k=4, seed=4),
        Row(temperature=2.0, biases={5: 6.0, 80: -100.0, 0: 3.0}, seed=5),
        Row(temperature=2.0, biases={9: 5.5}, frequency=2.0, num_prompt=1, position=199, top_p=0.8, seed=6),
        Row(temperature=1.5, stop_ids=list(range(30)), min_tokens=20, num_prompt=5, position=8, min_p=0.2),
        Row(temperature=1.1, top_p=0.9, seed=7),
    ]
    logits_RV = _logits(len(rows), vocab_size, place)
    histories = torch.randint(0, vocab_size, (len(rows), 200), generator=torch.Generator().manual_seed(1))
    histories[1, 60:110] = logits_RV[1].argmax()  # one token often
    drawn = draw(logits_RV, rows, flavour=FULL, histories=histories)
    assert drawn.token_ids == draw_ref(logits_RV, rows, histories=histories)
    assert drawn.workspace.counts_GV is not None
    assert not drawn.workspace.counts_GV.any()


def test_more_rows_than_editors_share_their_counts(place: Place) -> None:
    num_rows = 5
    tables = allocate_lane_sampling(num_rows, place.device)
    tables.frequency_L.fill_(1)
    pool_LP = torch.arange(num_rows, dtype=torch.int32, device=place.device)[:, None].repeat(1, 9)
    logits_BV = torch.zeros(num_rows, 8, device=place.device, dtype=place.dtype)
    rows_B = torch.arange(num_rows, dtype=torch.int32, device=place.device)
    workspace = allocate_sampler_workspace(num_rows, 8, flavour=FULL, device=place.device, num_editors=2)
    edit_logits(logits_BV, rows_B, rows_B + 1, tables, pool_LP, workspace)
    assert workspace.edited_logits_RV is not None
    expected_BV = torch.zeros(num_rows, 8)
    for row in range(num_rows):
        expected_BV[row, row] = -(row + 2)
    assert torch.equal(workspace.edited_logits_RV.cpu(), expected_BV)


def test_another_flavours_workspace_is_refused() -> None:
    workspace = allocate_sampler_workspace(1, 8, flavour=SamplerFlavour.SAMPLED, device="cpu")
    rows_B = torch.zeros(1, dtype=torch.int32)
    with pytest.raises(ValueError, match="flavour FULL"):
        edit_logits(
            torch.zeros(1, 8), rows_B, rows_B, allocate_lane_sampling(1, "cpu"), rows_B[None], workspace
        )
