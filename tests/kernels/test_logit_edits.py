"""Biases, penalties and masks against values worked out by hand."""

import torch

from kernels.logit_edits import (
    LogitEntries,
    PenaltyInputs,
    add_biases_ref,
    apply_penalties_ref,
    mask_ids_ref,
)


def _penalties(
    history: list[list[int]], num_known: list[int], num_prompt: list[int], **values: list[float]
) -> PenaltyInputs:
    num_rows = len(history)
    return PenaltyInputs(
        rows_Q=torch.tensor(values.pop("rows", list(range(num_rows))), dtype=torch.int64),
        history_QW=torch.tensor(history),
        num_known_Q=torch.tensor(num_known),
        num_prompt_Q=torch.tensor(num_prompt),
        presence_Q=torch.tensor(values.get("presence", [0.0] * num_rows)),
        frequency_Q=torch.tensor(values.get("frequency", [0.0] * num_rows)),
        repetition_Q=torch.tensor(values.get("repetition", [1.0] * num_rows)),
    )


def test_repetition_counts_prompt_and_output_and_divides_or_multiplies_by_sign() -> None:
    logits_RV = torch.tensor([[4.0, -4.0, 3.0, -3.0, 0.0]])
    # Prompt: 0, 1; output: 0; then places that are not known.
    apply_penalties_ref(logits_RV, _penalties([[0, 1, 0, 2, 3]], [3], [2], repetition=[2.0]))
    assert logits_RV.tolist() == [[2.0, -8.0, 3.0, -3.0, 0.0]]


def test_frequency_and_presence_count_the_output_only() -> None:
    logits_RV = torch.zeros(1, 4)
    # Prompt: 3, 3; output: 1, 2, 1.
    penalties = _penalties([[3, 3, 1, 2, 1]], [5], [2], frequency=[0.5], presence=[0.25])
    apply_penalties_ref(logits_RV, penalties)
    assert logits_RV.tolist() == [[0.0, -1.25, -0.75, 0.0]]


def test_negative_penalties_raise_logits() -> None:
    logits_RV = torch.zeros(1, 3)
    apply_penalties_ref(logits_RV, _penalties([[0, 2]], [2], [1], frequency=[-2.0], presence=[-1.0]))
    assert logits_RV.tolist() == [[0.0, 0.0, 3.0]]


def test_repetition_comes_before_the_others() -> None:
    logits_RV = torch.tensor([[8.0, 0.0]])
    penalties = _penalties([[0]], [1], [0], repetition=[4.0], frequency=[1.0], presence=[0.5])
    apply_penalties_ref(logits_RV, penalties)
    assert logits_RV.tolist() == [[0.5, 0.0]]


def test_penalties_change_the_listed_rows_only_each_by_its_own_history() -> None:
    logits_RV = torch.ones(4, 3)
    penalties = _penalties([[0, 9], [2, 2]], [1, 2], [0, 0], frequency=[1.0, 2.0], rows=[3, 1])
    apply_penalties_ref(logits_RV, penalties)
    assert logits_RV.tolist() == [[1, 1, 1], [1, 1, -3], [1, 1, 1], [0, 1, 1]]


def test_biases_add_to_their_row_and_id() -> None:
    logits_RV = torch.ones(2, 3)
    entries = LogitEntries(
        rows_X=torch.tensor([0, 1, 1]),
        token_ids_X=torch.tensor([2, 0, 2]),
        values_X=torch.tensor([1.5, -2.0, 100.0]),
    )
    add_biases_ref(logits_RV, entries)
    assert logits_RV.tolist() == [[1, 1, 2.5], [-1, 1, 101]]


def test_masks_replace_logits_even_infinite_ones() -> None:
    logits_RV = torch.tensor([[1.0, float("inf")], [1.0, 2.0]])
    entries = LogitEntries(
        rows_X=torch.tensor([0]), token_ids_X=torch.tensor([1]), values_X=torch.tensor([float("-inf")])
    )
    mask_ids_ref(logits_RV, entries)
    assert logits_RV.tolist() == [[1.0, float("-inf")], [1.0, 2.0]]
