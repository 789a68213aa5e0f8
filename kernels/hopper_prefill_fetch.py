"""What the fetching warp of hopper_prefill_kernel does: it draws pieces of work and loads what they need.

Rings of buffers in shared memory have two barriers a buffer: first those that say that one is full, then
those that say that it is empty. Knows nothing about what is computed.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from kernels.drawn_work import draw_work, end_drawing
from kernels.ring_stage import next_stage
from kernels.told_number import write_number


@gluon.jit
def _find_work(tiles_ptr, number, num_works, NUM_PAIRS: gl.constexpr):
    """Return what the tile list says of a piece of work; a row of -1 where there is none."""
    tile_ptr = tiles_ptr + 4 * (number // NUM_PAIRS)
    is_there = number < num_works
    row = gl.load(tile_ptr, mask=is_there, other=-1)
    first_query = gl.load(tile_ptr + 1, mask=is_there, other=0)
    first_token = gl.load(tile_ptr + 2, mask=is_there, other=0)
    query_len = gl.load(tile_ptr + 3, mask=is_there, other=0)
    return row, first_query, first_token, query_len


@gluon.jit
def _fetch(source, token, column, bars, bufs, stage, empty_phase):
    """Fill a stage as soon as it is empty."""
    mbarrier.wait(bars.index(bufs.shape[0] + stage), empty_phase)
    mbarrier.expect(bars.index(stage), source.block_type.nbytes)
    tma.async_copy_global_to_shared(source, [token, column], bars.index(stage), bufs.index(stage))


@gluon.jit
def _fetch_queries(
    queries, pair, first_query, first_token, query_len, q_bars, q_bufs, work, q_stage, empty_phase
):
    """Tell of a piece of work, and fetch its two heads' queries."""
    NUM_AHEAD: gl.constexpr = q_bufs.shape[0] // 2
    HEAD_DIM: gl.constexpr = q_bufs.shape[2]
    mbarrier.wait(q_bars.index(NUM_AHEAD + q_stage), empty_phase)
    write_number(work.index(4 * q_stage), pair)
    write_number(work.index(4 * q_stage + 1), first_query)
    write_number(work.index(4 * q_stage + 2), first_token)
    write_number(work.index(4 * q_stage + 3), query_len)
    mbarrier.expect(q_bars.index(q_stage), 2 * queries.block_type.nbytes)
    for head in gl.static_range(2):
        place = [first_token + first_query, (pair * 2 + head) * HEAD_DIM]
        tma.async_copy_global_to_shared(
            queries, place, q_bars.index(q_stage), q_bufs.index(2 * q_stage + head)
        )


@gluon.jit
def produce(loads, bufs, bars, NUM_PAIRS: gl.constexpr, GROUP: gl.constexpr):
    """Fetch, for each piece of work, its queries and the tiles of K and V that they see, last first."""
    queries, keys, values, tiles_ptr, counter_ptr, num_works = loads
    q_bufs, key_bufs, value_bufs, work = bufs
    q_bars, key_bars, value_bars = bars[0], bars[1], bars[2]
    NUM_STAGES: gl.constexpr = key_bufs.shape[0]
    NUM_AHEAD: gl.constexpr = q_bufs.shape[0] // 2
    NUM_QUERIES: gl.constexpr = q_bufs.shape[1]
    TILE: gl.constexpr = key_bufs.shape[1]
    HEAD_DIM: gl.constexpr = key_bufs.shape[2]
    number = gl.program_id(0)
    row, first_query, first_token, query_len = _find_work(tiles_ptr, number, num_works, NUM_PAIRS)
    stage, q_stage = 0, 0
    empty_phase, q_phase = 1, 1  # the first round finds all empty
    while row >= 0:
        pair = number % NUM_PAIRS
        column = pair * 2 // GROUP * HEAD_DIM
        num_tiles = gl.cdiv(gl.minimum(first_query + NUM_QUERIES, query_len), TILE)
        token = first_token + (num_tiles - 1) * TILE
        _fetch(keys, token, column, key_bars, key_bufs, stage, empty_phase)
        _fetch_queries(
            queries, pair, first_query, first_token, query_len, q_bars, q_bufs, work, q_stage, q_phase
        )
        q_stage, q_phase = next_stage(q_stage, q_phase, NUM_AHEAD)
        _fetch(values, token, column, value_bars, value_bufs, stage, empty_phase)
        stage, empty_phase = next_stage(stage, empty_phase, NUM_STAGES)
        number = draw_work(counter_ptr)
        row, first_query, first_token, query_len = _find_work(tiles_ptr, number, num_works, NUM_PAIRS)
        for _ in range(1, num_tiles):
            token -= TILE
            _fetch(keys, token, column, key_bars, key_bufs, stage, empty_phase)
            _fetch(values, token, column, value_bars, value_bufs, stage, empty_phase)
            stage, empty_phase = next_stage(stage, empty_phase, NUM_STAGES)
    mbarrier.wait(q_bars.index(NUM_AHEAD + q_stage), q_phase)
    write_number(work.index(4 * q_stage), -1)
    mbarrier.arrive(q_bars.index(q_stage), count=1)
    end_drawing(counter_ptr)
