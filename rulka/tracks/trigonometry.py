"""Sine and cosine with the same bits on every processor.

libm's and NumPy's choose another algorithm for each instruction set, and these differ in the last bit. Here each
operation is one IEEE 754 multiplication or addition, in a fixed order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from rulka.machine.kernels import cached_njit

# pi / 2 in three parts. The first two have 33 bits, so that their products with a whole number below 2^20 are exact.
_QUARTER_1, _QUARTER_2, _QUARTER_3 = 1.57079632673412561417e00, 6.07710050630396597660e-11, 2.02226624879595063154e-21
# Coefficients of sine and cosine on [-pi / 4, pi / 4], as in fdlibm's k_sin.c and k_cos.c.
_S1, _S2, _S3 = -1.66666666666666324348e-01, 8.33333333332248946124e-03, -1.98412698298579493134e-04
_S4, _S5, _S6 = 2.75573137070700676789e-06, -2.50507602534068634195e-08, 1.58969099521155010221e-10
_C1, _C2, _C3 = 4.16666666666666019037e-02, -1.38888888888741095749e-03, 2.48015872894767294178e-05
_C4, _C5, _C6 = -2.75573143513906633035e-07, 2.08757232129817482790e-09, -1.13596475577881948265e-11


def sin_cos(angle_rad: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns sine and cosine of angles of any shape, to 1 ulp of 1; angles are below 1,000,000 radians."""
    angle = np.array(angle_rad, np.float64)
    both = np.empty((2, angle.size))
    _fill(angle.ravel(), both)
    return both[0].reshape(angle.shape), both[1].reshape(angle.shape)


@cached_njit
def _fill(angle: NDArray[np.float64], both: NDArray[np.float64]) -> None:
    for i in range(angle.size):
        quarter = np.rint(angle[i] / (_QUARTER_1 + _QUARTER_2))
        x = angle[i] - quarter * _QUARTER_1 - quarter * _QUARTER_2 - quarter * _QUARTER_3
        xx = x * x
        sine = x + x * xx * (_S1 + xx * (_S2 + xx * (_S3 + xx * (_S4 + xx * (_S5 + xx * _S6)))))
        cosine = 1.0 - 0.5 * xx + xx * xx * (_C1 + xx * (_C2 + xx * (_C3 + xx * (_C4 + xx * (_C5 + xx * _C6)))))
        turns = int(quarter) % 4
        both[0, i] = (sine, cosine, -sine, -cosine)[turns]
        both[1, i] = (cosine, -sine, -cosine, sine)[turns]
