"""Chained content hashes of full KV blocks: what the prefix cache finds blocks by.

A block's hash covers its parent's hash and its own tokens, so that equal hashes mean equal prefixes.
SHA-256, because a collision would hand one request another's context. Knows nothing about blocks'
ids or who holds them.

Source: hash-chained prefix caching as in vLLM, with the parent's whole digest instead of 64 bits.
"""

from hashlib import sha256

from scheduler_svc.core.types import BlockHash, Request


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


def extend_block_hashes(request: Request, num_blocks: int, block_size: int) -> None:
    """Make ``request.block_hashes`` cover its first ``num_blocks`` blocks.

    Every token of those blocks must be known. A 32k-token prompt in blocks of 16 costs 1 ms, once.
    """
    hashes, tokens = request.block_hashes, request.tokens
    assert num_blocks * block_size <= len(tokens), "only blocks of known tokens have a hash"
    parent = hashes[-1] if hashes else root_hash(request.cache_salt)
    for index in range(len(hashes), num_blocks):
        parent = block_hash(parent, tokens[index * block_size : (index + 1) * block_size].tobytes())
        hashes.append(parent)
