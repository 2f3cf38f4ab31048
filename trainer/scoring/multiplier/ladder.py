"""The baseline's ladder: its loss as a curve of compute, and the noise of one run about it.

With x = ln(C / C_full), the curve is L_b(x) = b0 + b1 x + b2 x^2, by least squares over all baseline runs. The noise
sigma is pooled over replicates: runs of the same rung that differ in their seed only.

A small model's curve bends more than a parabola over a factor of 16. Then the outer rungs bias the fit at the full
budget: the coverage of 95 % intervals was 50 %. So the parabola over all rungs must agree, at the full budget, with the
one through the three rungs nearest to it; otherwise only those three are fitted.

Arrays may have leading axes: `benchmarks/multiplier/simulation.py` fits thousands of ladders at once with this code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

RUNG_GAP = 1.10
"""Runs belong to different rungs if the next larger compute is over 10 % away. Rungs are a factor of two apart, and
FLOPs under a budget of time vary by a few per cent between nodes. Differences inside a rung are corrected for with the
curve, so they neither widen sigma nor bend the fit."""

DEGREE = 2
MISFIT_LEVEL = 0.20
"""Significance level at which the outer rungs are left out. Generous: leaving them out needlessly costs a little
precision, keeping them wrongly costs the coverage of the interval."""
MAX_ABS_X = 50.0  # beyond e^50 times the full budget, a crossing is an artifact of an almost flat curve


def assign_rungs(compute: Array) -> npt.NDArray[np.intp]:
    """Return for each compute [n] the number of its rung, counted from the smallest."""
    order = np.argsort(compute, kind="stable")
    steps = np.diff(np.log(compute[order])) > np.log(RUNG_GAP)
    labels = np.empty(len(compute), dtype=np.intp)
    labels[order] = np.concatenate([[0], np.cumsum(steps)])
    return labels


@dataclass(frozen=True)
class Ladder:
    """The fitted curve and its errors. Losses in bits per byte, x in ln(compute / full)."""

    full: float  # compute at which x is 0: the track's budget
    runs: int
    degree: int  # 2 with three rungs or more, 1 with two, 0 with one
    coefficients: Array  # [..., 3]: b0, b1, b2; zero above `degree`
    inverse: Array
    """[..., 3, 3]: (X'X)^-1, so that sigma^2 times it is S, the covariance of the coefficients. Zero above `degree`."""
    lowest: Array  # [...]: x of the first run that was fitted
    highest: Array
    sigma: Array  # [...]: standard deviation of one run about the curve. NaN if no rung has two runs.
    freedom: int  # degrees of freedom of sigma: runs less rungs
    is_narrowed: npt.NDArray[np.bool_]  # [...]: whether only the three rungs nearest the full budget were fitted

    @classmethod
    def fit(cls, compute: Array, loss: Array, full: float) -> Ladder:
        """Fit `loss` [..., n] at `compute` [n]."""
        x, labels = np.log(compute) - np.log(full), assign_rungs(compute)
        count = int(labels.max()) + 1
        degree, shape = min(DEGREE, count - 1), loss.shape[:-1]
        coefficients, inverse = fit_parabola(x, loss, degree)
        fitted = cls(
            full=full,
            runs=len(x),
            degree=degree,
            coefficients=coefficients,
            inverse=inverse,
            lowest=np.full(shape, x.min()),
            highest=np.full(shape, x.max()),
            sigma=compute_pooled_deviation(loss - coefficients @ build_monomials(x).T, labels, count),
            freedom=len(x) - count,
            is_narrowed=np.zeros(shape, dtype=np.bool_),
        )
        return fitted if count <= DEGREE + 1 else fitted.replace_if_refuted(fitted.fit_nearest_rungs(x, labels, loss))

    def fit_nearest_rungs(self, x: Array, labels: npt.NDArray[np.intp], loss: Array) -> Ladder:
        """Fit only the three rungs nearest the full budget; sigma is still pooled over all rungs."""
        near = select_nearest_rungs(x, labels, DEGREE + 1)
        coefficients, inverse = fit_parabola(x[near], loss[..., near], self.degree)
        return replace(
            self,
            coefficients=coefficients,
            inverse=inverse,
            lowest=np.full_like(self.lowest, x[near].min()),
            highest=np.full_like(self.highest, x[near].max()),
        )

    def replace_if_refuted(self, narrow: Ladder) -> Ladder:
        """Return this fit, or the narrow one if the two differ at the full budget by more than their noise.

        Hausman's test: this fit is efficient if it is right, so the variance of the difference is the difference of the
        variances, and both need no covariance.
        """
        x = np.zeros(())  # the full budget
        with np.errstate(divide="ignore", invalid="ignore"):
            error = self.sigma * np.sqrt(narrow.leverage(x) - self.leverage(x))
            refuted = np.abs(narrow.loss_at(x) - self.loss_at(x)) / error > self.quantile(1 - MISFIT_LEVEL / 2)
        return replace(
            self,
            coefficients=np.where(refuted[..., None], narrow.coefficients, self.coefficients),
            inverse=np.where(refuted[..., None, None], narrow.inverse, self.inverse),
            lowest=np.where(refuted, narrow.lowest, self.lowest),
            highest=np.where(refuted, narrow.highest, self.highest),
            is_narrowed=refuted,
        )

    def loss_at(self, x: Array) -> Array:
        b0, b1, b2 = self.split_coefficients()
        return b0 + x * (b1 + x * b2)

    def slope_at(self, x: Array) -> Array:
        """L_b'(x): bits per byte per e-fold of compute; negative if compute helps."""
        _, b1, b2 = self.split_coefficients()
        return b1 + 2 * b2 * x

    def split_coefficients(self) -> tuple[Array, Array, Array]:
        return self.coefficients[..., 0], self.coefficients[..., 1], self.coefficients[..., 2]

    def leverage(self, x: Array) -> Array:
        """g' (X'X)^-1 g with g = (1, x, x^2): variance of the curve at x, in units of sigma^2."""
        return self.quadratic_form(build_monomials(x))

    def slope_variation(self, x: Array) -> Array:
        """Coefficient of variation of the slope at x. NaN if sigma is unknown."""
        direction = np.stack([np.zeros_like(x), np.ones_like(x), 2 * x], axis=-1)
        with np.errstate(divide="ignore", invalid="ignore"):
            return self.sigma * np.sqrt(self.quadratic_form(direction)) / np.abs(self.slope_at(x))

    def quadratic_form(self, vectors: Array) -> Array:
        """v' (X'X)^-1 v for each v in `vectors` [..., 3]."""
        return np.maximum(np.einsum("...i,...ij,...j->...", vectors, self.inverse, vectors), 0.0)

    @property
    def is_falling(self) -> npt.NDArray[np.bool_]:
        """Whether the loss falls from the first rung to the last."""
        return self.slope_at((self.lowest + self.highest) / 2) < 0

    @property
    def has_noise(self) -> npt.NDArray[np.bool_]:
        """Whether sigma is known and above rounding errors: identical replicates measure no noise."""
        return self.sigma > 1e-12 * np.abs(self.coefficients[..., 0])

    def find_crossing(self, loss: Array) -> Array:
        """Solve L_b(x) = loss on the falling branch of the curve. NaN if it never has this loss.

        Both roots are written without cancellation, and so that b2 = 0 needs no special case.
        """
        b0, b1, b2 = self.split_coefficients()
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = -np.sqrt(b1 * b1 - 4 * b2 * (b0 - loss))  # of the curve at the crossing
            x = np.where(b1 <= 0, 2 * (b0 - loss) / (-b1 - slope), (slope - b1) / (2 * b2))
        return np.where((np.abs(x) < MAX_ABS_X) & (slope < 0) & self.is_falling, x, np.nan)

    def is_inside(self, x: Array) -> npt.NDArray[np.bool_]:
        """Whether x lies between the first and the last rung."""
        return (x >= self.lowest - 1e-9) & (x <= self.highest + 1e-9)

    def quantile(self, level: float) -> float:
        """Quantile `level` of Student's t with sigma's degrees of freedom."""
        return compute_t_quantile(self.freedom, level)


def compute_t_quantile(freedom: int, level: float) -> float:
    """Return the quantile `level` of Student's t; NaN without degrees of freedom."""
    from scipy.special import stdtrit  # here, because each process of the site imports this module

    return float(stdtrit(freedom, level)) if freedom else float("nan")


def build_monomials(x: Array) -> Array:
    """g = (1, x, x^2) for each x: how the curve at x changes with its coefficients. [...] to [..., 3]."""
    return np.stack([np.ones_like(x), x, x * x], axis=-1)


def fit_parabola(x: Array, loss: Array, degree: int) -> tuple[Array, Array]:
    """Return least-squares coefficients [..., 3] of `loss` [..., n] at `x` [n], and (X'X)^-1; zero above `degree`."""
    q, r = np.linalg.qr(build_monomials(x)[:, : degree + 1])
    root = np.linalg.inv(r)
    coefficients, inverse = np.zeros((*loss.shape[:-1], DEGREE + 1)), np.zeros((DEGREE + 1, DEGREE + 1))
    coefficients[..., : degree + 1] = loss @ (root @ q.T).T
    inverse[: degree + 1, : degree + 1] = root @ root.T
    return coefficients, inverse


def select_nearest_rungs(x: Array, labels: npt.NDArray[np.intp], count: int) -> npt.NDArray[np.bool_]:
    """Return which runs [n] are of the `count` rungs nearest x = 0; of two equally near ones the larger is first."""
    means = {int(label): float(x[labels == label].mean()) for label in np.unique(labels)}
    chosen = sorted(means, key=lambda label: (round(abs(means[label]), 6), -means[label]))[:count]
    return np.isin(labels, chosen)


def compute_pooled_deviation(residual: Array, labels: npt.NDArray[np.intp], count: int) -> Array:
    """Return the pooled standard deviation within rungs of `residual` [..., n]; NaN if no rung has two runs."""
    freedom = len(labels) - count
    if not freedom:
        return np.full(residual.shape[:-1], np.nan)
    member = (labels[:, None] == np.arange(count)).astype(float)
    means = residual @ (member / member.sum(axis=0))
    return np.sqrt(((residual - means @ member.T) ** 2).sum(axis=-1) / freedom)
