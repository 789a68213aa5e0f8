"""Sums over the programs of a thread block cluster, through each other's shared memory.

Programs that multiply some of the inputs each hold products of the same rows and columns. Each row
belongs to one of the programs: all send it what they have of it, and it adds in the programs' order, so
that a row's sum depends on nothing but the row. What is sent is counted by a barrier where it arrives.
Knows nothing about what is summed.

Shapes: R rows, N columns.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl


@gluon.jit
def cluster_rank():
    """Return which of its cluster's programs this one is."""
    return gl.inline_asm_elementwise(
        "mov.u32 $0, %cluster_ctarank;", "=r", [], dtype=gl.int32, is_pure=True, pack=1
    )


@gluon.jit
def begin_sums(NUM_BYTES: gl.constexpr, SIZE: gl.constexpr):
    """Make room for what arrives, and the barrier that counts it; tell the cluster that they are there.

    Args:
        NUM_BYTES: of a program's products, and so of what it adds: a multiple of 1,024.
        SIZE: of the cluster. 1: there is nothing to do.
    """
    if SIZE > 1:
        _do(_begin_code(NUM_BYTES, NUM_BYTES // SIZE * (SIZE - 1)))


@gluon.jit
def sum_over_cluster(product, rank, SIZE: gl.constexpr, LAYOUT: gl.constexpr, IS_TURNED: gl.constexpr):
    """Return the sums in a layout whose r-th of SIZE parts of the rows is program r's; once a program.

    Args:
        product: at least 32 columns, as tensor cores leave them.
        rank: this program's.
        SIZE: of the cluster: at most half as many as rows.
        LAYOUT: its threads hold four columns, or multiples.
        IS_TURNED: whether what tensor cores left is the product's transpose.
    """
    R: gl.constexpr = product.shape[0]
    N: gl.constexpr = product.shape[1]
    SENT: gl.constexpr = product.type.layout
    PART: gl.constexpr = R * N // SIZE * 4
    row = gl.arange(0, R, gl.SliceLayout(1, SENT))
    owner = (row // (R // SIZE))[:, None] + gl.zeros([R, N], gl.int32, SENT)
    _do("barrier.cluster.wait.acquire.aligned;")
    gl.inline_asm_elementwise(
        _send_code(IS_TURNED),
        "=r,=r,=r,=r,f,f,f,f,r,r,r,r,r,r,r,r",
        [product, _place(R, N, SIZE, SENT) + rank * PART, owner],
        dtype=gl.int32,
        is_pure=False,
        pack=4,
    )
    _do(_wait_code())
    place = _place(R, N, SIZE, LAYOUT)
    total = _receive(place)
    for other in gl.static_range(1, SIZE):
        total += _receive(place + other * PART)
    return total


@gluon.jit
def _place(R: gl.constexpr, N: gl.constexpr, SIZE: gl.constexpr, LAYOUT: gl.constexpr):
    """Return each number's place among its owner's, in bytes: fours swap so that no banks collide."""
    row = gl.arange(0, R, gl.SliceLayout(1, LAYOUT))[:, None] % (R // SIZE)
    column = gl.arange(0, N, gl.SliceLayout(0, LAYOUT))[None, :]
    return (row * N + ((column // 4) ^ (row % 8)) * 4 + column % 4) * 4


@gluon.jit
def _receive(place):
    """Return a thread's numbers, four at once."""
    return gl.inline_asm_elementwise(
        _receive_code(),
        "=f,=f,=f,=f,r,r,r,r",
        [place],
        dtype=gl.float32,
        is_pure=False,
        pack=4,
    )


@gluon.jit
def _do(CODE: gl.constexpr):
    """Run instructions that need no numbers."""
    gl.inline_asm_elementwise(CODE + " mov.u32 $0, 0;", "=r", [], dtype=gl.int32, is_pure=False, pack=1)


@gluon.constexpr_function
def _begin_code(num_bytes, num_sent):
    # Behind it begin, at a multiple of 1,024 bytes, the tiles that the copy engine fills. A barrier that need
    # not show what was written before costs nothing; with .release it would wait for all of the GPU.
    return f"""
        .shared .align 1024 .b8 arrived[1024];
        .shared .align 1024 .b8 sent[{num_bytes}];
        {{
            .reg .pred p;
            .reg .u32 t;
            mov.u32 t, %tid.x;
            setp.eq.u32 p, t, 0;
            @p mbarrier.init.shared::cta.b64 [arrived], 1;
            @p mbarrier.arrive.expect_tx.shared::cta.b64 _, [arrived], {num_sent};
            @p fence.mbarrier_init.release.cluster;
        }}
        barrier.cluster.arrive.relaxed.aligned;
        """


@gluon.constexpr_function
def _send_code(is_turned):
    """Return how a thread sends four numbers at once to where they belong.

    It has two columns beside each other of a row, and of the row 8 further; or, if turned, two rows beside
    each other of a column, and of the column 8 further. What of four columns beside each other others have
    it swaps for what they need.
    """
    if is_turned:
        swap = _swap_code(4, ("$4", "$5"), ("x0", "x1")) + _swap_code(4, ("$6", "$7"), ("x2", "x3"))
        swap += _swap_code(8, ("x0", "x2"), ("y0", "y2")) + _swap_code(8, ("x1", "x3"), ("y1", "y3"))
        place = _choose_code(4, ("$8", "$9"), "a") + _choose_code(4, ("$10", "$11"), "b")
        place += _choose_code(8, ("a", "b"), "a") + "mov.u32 o, $12;"
    else:
        swap = _swap_code(1, ("$4", "$6"), ("y0", "y2")) + _swap_code(1, ("$5", "$7"), ("y1", "y3"))
        place = _choose_code(1, ("$8", "$10"), "a") + _choose_code(1, ("$12", "$14"), "o")
    return f"""
        {{
            .reg .pred p, q;
            .reg .u32 a, b, l, o;
            .reg .f32 x0, x1, x2, x3, y0, y1, y2, y3, z;
            {swap}
            {place}
            and.b32 a, a, -16;
            mov.u32 b, sent;
            add.u32 a, a, b;
            mov.u32 b, %cluster_ctarank;
            setp.eq.u32 q, b, o;
            @q st.shared.v4.f32 [a], {{y0, y1, y2, y3}};
            mapa.shared::cluster.u32 a, a, o;
            mov.u32 b, arrived;
            mapa.shared::cluster.u32 b, b, o;
            @!q st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [a], {{y0, y1, y2, y3}}, [b];
            mov.u32 $0, 0;
            mov.u32 $1, 0;
            mov.u32 $2, 0;
            mov.u32 $3, 0;
        }}
        """


@gluon.constexpr_function
def _is_first(mask):
    return f"mov.u32 l, %laneid; and.b32 l, l, {mask}; setp.eq.u32 p, l, 0;"


@gluon.constexpr_function
def _swap_code(mask, have, get):
    """Return how two threads swap: the first keeps its first number and gets the other's first behind it."""
    return f"""
            {_is_first(mask)}
            selp.f32 z, {have[1]}, {have[0]}, p;
            shfl.sync.bfly.b32 z, z, {mask}, 31, -1;
            selp.f32 {get[0]}, {have[0]}, z, p;
            selp.f32 {get[1]}, z, {have[1]}, p;
    """


@gluon.constexpr_function
def _choose_code(mask, places, chosen):
    return f"{_is_first(mask)} selp.b32 {chosen}, {places[0]}, {places[1]}, p;"


@gluon.constexpr_function
def _wait_code():
    return """
        {
            .reg .pred p;
        again:
            mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [arrived], 0;
            @!p bra again;
        }
        bar.sync 0;
        """


@gluon.constexpr_function
def _receive_code():
    return """
        {
            .reg .u32 a;
            mov.u32 a, sent;
            add.u32 a, a, $4;
            ld.shared.v4.f32 {$0, $1, $2, $3}, [a];
        }
        """
