"""Chained content hashes of full KV blocks: what the prefix cache finds blocks by.

A block's hash covers its parent's hash and its own tokens, so that equal hashes mean equal prefixes.
SHA-256, because a collision would hand one request another's context. Knows nothing about blocks'
ids or who holds them.

Source: hash-chained prefix caching as in vLLM, with the parent's whole digest instead of 64 bits.
"""

from hashlib import sha256
from struct import iter_unpack

from scheduler_svc.core.types import BlockHash, Int32Array, Request


def root_hash(cache_salt: str) -> BlockHash:
    """Give the parent hash of a request's first block.

    Each kind of extra key carries a tag of its own, so that a salt can never equal the absence of
    one, nor another kind of key with the same bytes.
    """
    if not cache_salt:
        return BlockHash(sha256(b"stepwire.root").digest())
    return BlockHash(sha256(b"stepwire.cache_salt\0" + cache_salt.encode()).digest())


def block_hash(parent_hash: BlockHash, token_bytes: bytes) -> BlockHash:
    """Hash one full block.

    Args:
        parent_hash: the hash of the block before it, or ``root_hash``.
        token_bytes: the block's token ids as little-endian int32.
    """
    return BlockHash(sha256(parent_hash + token_bytes).digest())


def hash_first_blocks(request: Request, num_blocks: int, *, block_size: int) -> list[BlockHash]:
    """Make the hashes of a request that holds no lane cover its first blocks; return all there are."""
    if request.hash_block_size != block_size:
        request.block_hashes.clear()
        request.hash_block_size = block_size
    extend_block_hashes(
        request.block_hashes,
        request.token_ids,
        num_blocks=num_blocks,
        block_size=block_size,
        cache_salt=request.cache_salt,
    )
    return request.block_hashes


def extend_block_hashes(
    block_hashes: list[BlockHash],
    token_ids: Int32Array,
    *,
    num_blocks: int,
    block_size: int,
    cache_salt: str,
) -> None:
    """Make a request's list of hashes cover its first ``num_blocks`` blocks.

    A 32k-token prompt in blocks of 16 costs 1 ms, once.

    Args:
        block_hashes: hashes of its first blocks; grows in place.
        token_ids: the request's tokens, of which the first ``num_blocks * block_size`` are known.
        num_blocks: how many full blocks to cover.
        block_size: tokens a block holds.
        cache_salt: the request's salt.
    """
    num_known, num_bytes = len(block_hashes), block_size * token_ids.itemsize
    if num_known >= num_blocks:
        return
    parent = block_hashes[-1] if block_hashes else root_hash(cache_salt)
    data = token_ids[num_known * block_size : num_blocks * block_size].tobytes()
    assert len(data) >= (num_blocks - num_known) * num_bytes, "only blocks of known tokens have a hash"
    # block_hash() without its calls, which would cost a third of the loop.
    block_hashes += [
        parent := sha256(parent + token_bytes).digest()  # type: ignore[misc, assignment]
        for (token_bytes,) in iter_unpack(f"{num_bytes}s", data)
    ]
