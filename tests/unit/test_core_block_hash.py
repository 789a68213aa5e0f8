"""Block hashes against digests made with coreutils' sha256sum."""

import numpy as np

from scheduler_svc.core.block_hash import block_hash, extend_block_hashes, root_hash
from scheduler_svc.core.types import BlockHash

ROOT = "27cec128fef5a7098c5dd6eedc03413867d149ea6989a24b6d2f4210935658fa"
ROOT_OF_ACME = "1c782ae54c92e20bb7ef188cdf38defca17092fae1a5007d96ad2c2592f54a57"
FIRST_BLOCK = "70cfd0bfc8c62691b92caa92e22144d2dd46f81e73437e40e45643241d23046d"
TOKENS = (1, 65_535, 65_536, 151_911)
"""FIRST_BLOCK is the sum of ROOT's bytes and of these ids, four little-endian bytes each."""


def _extend(hashes: list[BlockHash], token_ids: tuple[int, ...], num_blocks: int, salt: str = "") -> None:
    array = np.array(token_ids, np.int32)
    extend_block_hashes(hashes, array, num_blocks=num_blocks, block_size=4, cache_salt=salt)


def _hashes(token_ids: tuple[int, ...], cache_salt: str = "") -> list[str]:
    hashes: list[BlockHash] = []
    _extend(hashes, token_ids, len(token_ids) // 4, cache_salt)
    return [each.hex() for each in hashes]


def test_roots_are_tagged_digests() -> None:
    assert root_hash("").hex() == ROOT
    assert root_hash("acme").hex() == ROOT_OF_ACME


def test_a_block_covers_its_parent_and_four_bytes_a_token() -> None:
    assert _hashes(TOKENS) == [FIRST_BLOCK]


def test_ids_that_differ_above_16_bits_differ() -> None:
    assert _hashes((1, 2, 3, 4)) != _hashes((65_537, 2, 3, 4))
    assert _hashes((1, 2, 3, 4)) != _hashes((1, 2, 3, 4 + (1 << 24)))


def test_a_chain_depends_on_every_earlier_token() -> None:
    plain, changed = _hashes((1, 2, 3, 4, 5, 6, 7, 8)), _hashes((9, 2, 3, 4, 5, 6, 7, 8))
    assert len(plain) == len(changed) == 2
    assert not set(plain) & set(changed)


def test_a_salt_changes_the_whole_chain() -> None:
    chains = [_hashes((1, 2, 3, 4, 5, 6, 7, 8), salt) for salt in ("", "a", "b")]
    assert len({each for chain in chains for each in chain}) == 6


def test_a_salt_equals_no_other_key_of_the_same_bytes() -> None:
    """Salts spelt as a token block, as a tag or as a whole key must not reach what these reach."""
    block_bytes = np.array([1, 2, 3, 4], np.int32).tobytes()
    assert root_hash(block_bytes.decode()) != block_hash(root_hash(""), block_bytes)
    assert root_hash("stepwire.root") != root_hash("")
    assert root_hash("stepwire.cache_salt\0a") != root_hash("a")


def test_extending_goes_on_from_what_is_there_and_leaves_the_partial_block() -> None:
    tokens = (*TOKENS, 5, 6, 7, 8, 9)
    hashes: list[BlockHash] = []
    _extend(hashes, tokens, 1)
    assert [each.hex() for each in hashes] == [FIRST_BLOCK]
    _extend(hashes, tokens, 2)
    _extend(hashes, tokens, 1)
    assert [each.hex() for each in hashes] == _hashes((*TOKENS, 5, 6, 7, 8))
