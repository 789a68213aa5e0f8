"""Reads and writes lines of 16 bytes at addresses that may be another GPU's: four 32-bit words at once.

A word that is EMPTY has not come yet. Words are what the hardware writes whole, so a line needs no flag
beside it. Triton's interpreter has no assembly: there, what is awaited must have come. Knows nothing about
why something is awaited.

Words are a tuple of four tensors: word i of every line. Numbers are a tuple of eight, with IS_HALVES, where
a word holds two bfloat16, else of four, one float32 a word.
"""

import triton
import triton.language as tl

EMPTY_WORD = -1
"""NaN, in both halves or the whole, with a payload that no arithmetic gives."""
EMPTY = tl.constexpr(EMPTY_WORD)
NOT_EMPTY = tl.constexpr(-65538)
"""NaN in the same places: 0xFFFEFFFE."""
WORDS = tl.constexpr(4)
LINE_BYTES = tl.constexpr(16)
HIGH_HALF = tl.constexpr(-65536)
LOAD = tl.constexpr("""{
    .reg .pred is_line;
    setp.ne.s32 is_line, $5, 0;
    mov.b32 $0, 0; mov.b32 $1, 0; mov.b32 $2, 0; mov.b32 $3, 0;
    @is_line ld.volatile.global.v4.b32 {$0, $1, $2, $3}, [$4];
}""")
AWAIT = tl.constexpr("""{
    .reg .pred is_missing;
    mov.b32 $0, $5; mov.b32 $1, $6; mov.b32 $2, $7; mov.b32 $3, $8;
look_again:
    setp.eq.s32 is_missing, $0, -1;
    setp.eq.or.s32 is_missing, $1, -1, is_missing;
    setp.eq.or.s32 is_missing, $2, -1, is_missing;
    setp.eq.or.s32 is_missing, $3, -1, is_missing;
    @!is_missing bra has_come;
    ld.volatile.global.v4.b32 {$0, $1, $2, $3}, [$4];
    bra look_again;
has_come:
}""")
STORE = tl.constexpr("""{
    .reg .pred is_line;
    setp.ne.s32 is_line, $2, 0;
    mov.b32 $0, 0;
    @is_line st.volatile.global.v4.b32 [$1], {$3, $4, $5, $6};
}""")


@triton.jit
def load_line(at, is_line, HAS_PTX: tl.constexpr):
    """Return the words at these addresses, 0 where there is no line."""
    if HAS_PTX:
        words = tl.inline_asm_elementwise(
            LOAD,
            "=&r,=&r,=&r,=&r,l,r",
            [at, is_line.to(tl.int32)],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32),
            is_pure=False,
            pack=1,
        )
    else:
        words = tl.tuple([])
        for i in tl.static_range(WORDS):
            word_at = at.to(tl.pointer_type(tl.int32)) + i
            words = words + tl.tuple([tl.load(word_at, mask=is_line, other=0)])
    return words


@triton.jit
def await_line(at, words, HAS_PTX: tl.constexpr):
    """Return the words at these addresses once none is EMPTY; given are those that lie there so far."""
    if HAS_PTX:
        words = tl.inline_asm_elementwise(
            AWAIT,
            "=&r,=&r,=&r,=&r,l,r,r,r,r",
            [at, words[0], words[1], words[2], words[3]],
            dtype=(tl.int32, tl.int32, tl.int32, tl.int32),
            is_pure=False,
            pack=1,
        )
    return words


@triton.jit
def store_line(at, is_line, words, HAS_PTX: tl.constexpr):
    """Write the words to these addresses, where there is a line."""
    if HAS_PTX:
        tl.inline_asm_elementwise(
            STORE,
            "=&r,l,r,r,r,r,r",
            [at, is_line.to(tl.int32), words[0], words[1], words[2], words[3]],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
    else:
        for i in tl.static_range(WORDS):
            tl.store(at.to(tl.pointer_type(tl.int32)) + i, words[i], mask=is_line)


@triton.jit
def never_empty(words):
    """Return words none of which is EMPTY; what was stays NaN."""
    kept = tl.tuple([])
    for i in tl.static_range(WORDS):
        kept = kept + tl.tuple([tl.where(words[i] == EMPTY, NOT_EMPTY, words[i])])
    return kept


@triton.jit
def empty_line(LINES: tl.constexpr):
    """Return words that have not come."""
    word = tl.full((LINES,), EMPTY, tl.int32)
    return tl.tuple([word, word, word, word])


@triton.jit
def line_numbers(words, IS_HALVES: tl.constexpr):
    """Return the numbers of lines in float32."""
    numbers = tl.tuple([])
    for i in tl.static_range(WORDS):
        if IS_HALVES:
            numbers = numbers + tl.tuple([(words[i] << 16).to(tl.float32, bitcast=True)])
            numbers = numbers + tl.tuple([(words[i] & HIGH_HALF).to(tl.float32, bitcast=True)])
        else:
            numbers = numbers + tl.tuple([words[i].to(tl.float32, bitcast=True)])
    return numbers


@triton.jit
def line_words(numbers, IS_HALVES: tl.constexpr):
    """Return the words of lines of these numbers, rounded."""
    words = tl.tuple([])
    for i in tl.static_range(WORDS):
        if IS_HALVES:
            low = numbers[2 * i].to(tl.bfloat16).to(tl.int16, bitcast=True).to(tl.int32)
            high = numbers[2 * i + 1].to(tl.bfloat16).to(tl.int16, bitcast=True).to(tl.int32)
            words = words + tl.tuple([(low & 0xFFFF) | (high << 16)])
        else:
            words = words + tl.tuple([numbers[i].to(tl.int32, bitcast=True)])
    return words


@triton.jit
def add_numbers(left, right, IS_HALVES: tl.constexpr):
    """Return the sums of lines' numbers."""
    sums = tl.tuple([])
    for i in tl.static_range(2 * WORDS if IS_HALVES else WORDS):
        sums = sums + tl.tuple([left[i] + right[i]])
    return sums
