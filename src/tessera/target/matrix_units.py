"""What a matrix instruction is, and where the threads that issue it hold its operands: records of plain data.

A table gives, for each bit of the element index within a thread (`register`), of the lane and of the warp,
the step (row, column) that this bit makes; steps are combined with XOR. `tessera.ir.layouts.fragment_layout`
makes a `LinearLayout` of a table.
"""

from __future__ import annotations

from tessera.data import dataclass

Steps = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Fragment:
    """How the threads of one matrix instruction hold one of its operands.

    The record fits any instruction whose map is linear over F2: a replicated operand (Volta, RDNA3) has steps
    (0, 0), a warpgroup's accumulator has `warp` steps, a 64-lane wave has six lane steps, and an operand that
    one thread holds alone (AMX) has register steps only.

    Attributes:
        axes: names of the rows and the columns, out of "m", "n", "k".
        shape: rows and columns of the operand.
        register: step of every bit of the element index within a thread; elements of one operand register
            come first.
        lane: step of every bit of the lane number.
        warp: step of every bit of the warp number, for instructions that several warps issue together.
        packing: elements in one register of the instruction's operand list.
    """

    axes: tuple[str, str]
    shape: tuple[int, int]
    register: Steps
    lane: Steps
    warp: Steps = ()
    packing: int = 1

    @property
    def elements(self) -> int:
        """Elements that each thread holds."""
        return 1 << len(self.register)

    @property
    def registers(self) -> int:
        """Registers of the operand list: 32-bit ones, or 64-bit ones for f64."""
        return self.elements // self.packing


@dataclass(frozen=True)
class MmaInstruction:
    """One matrix multiply-accumulate instruction: D = A·B + C, A is (m, k), B is (k, n), C and D are (m, n).

    Attributes:
        name: unique key, e.g. `m16n8k16_f16_f16_f32`; what it is called in assembly is the backend's to know.
        m: rows of A and D that one issue covers.
        n: columns of B and D that one issue covers.
        k: products summed by one issue.
        a_dtype: dtype of A.
        b_dtype: dtype of B.
        acc_dtype: dtype of C and D.
        needs: the feature of a target that has it.
        a: fragment of A.
        b: fragment of B.
        c: fragment of C and of D.
    """

    name: str
    m: int
    n: int
    k: int
    a_dtype: str
    b_dtype: str
    acc_dtype: str
    needs: str
    a: Fragment
    b: Fragment
    c: Fragment

    @property
    def registers(self) -> tuple[int, int, int]:
        """Operand registers of A, B and C (as many again for D)."""
        return self.a.registers, self.b.registers, self.c.registers


def matrix_product(
    dtypes: tuple[str, str, str],
    needs: str,
    fragments: tuple[Fragment, Fragment, Fragment],
    name: str = "m{m}n{n}k{k}",
) -> MmaInstruction:
    """Fill a record; the instruction's shape follows from the fragments unless its name says otherwise."""
    a, b, c = fragments
    m, k, n = *a.shape, b.shape[1]
    return MmaInstruction(f"{name.format(m=m, n=n, k=k)}_{'_'.join(dtypes)}", m, n, k, *dtypes, needs, a, b, c)


def turned(steps: Steps) -> Steps:
    """Return steps with rows and columns exchanged."""
    return tuple((column, row) for row, column in steps)


def halves(dim: int, count: int, first: int = 1) -> Steps:
    """Return the steps of `count` bits along one dimension, 0 for rows and 1 for columns: 1, 2, 4 and so on.

    Args:
        dim: the dimension.
        count: number of bits.
        first: step of the lowest bit.
    """
    return tuple((0, first << bit) if dim else (first << bit, 0) for bit in range(count))
