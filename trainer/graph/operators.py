"""The operators that a graph may use, and what each costs.

An operator that is not in `OPERATORS` does not load. Costs are counted where torch computes: `aten::linear` is a
*composite* whose parts (a matrix product, an addition) are counted. Floating-point operations of the kinds:

| kind | operations |
|---|---|
| view | none: no number is computed or moved |
| composite | those of its parts |
| element-wise, copy, factory, random, gather | one per element written |
| reduction, scan | one per element read |
| scatter | one per element read or written |
| search | log2 n per value looked up among n |
| sort | n log2 n per row of n |
| fourier | 5 n log2 n per transform of length n (Cooley and Tukey 1965, counted as in FFTW's benchmarks) |
| pooling | one per element of each window |
| product, convolution, ... | a formula of their own: twice the multiplications |

Formulas count elements of single precision. `find_precision_factor` multiplies them for complex and for double ones.

Every formula is linear in the number of rows plus a constant, since `counting` measures two rows and three.

Torch computes some operators, and all backward passes, by others that a graph itself may not name; they are in
`DECOMPOSED_OPERATORS`.
"""

from __future__ import annotations

import importlib
import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from trainer.graph.files import Call, GraphError
from trainer.ops import elementwise  # noqa: F401 (declares the operators)

# --- functions of operators -------------------------------------------------------------------------------------------


NGRAM_MEMORY = "dailytrain::ngram_memory"

MODEL_PARTS = {
    "dailytrain::attention": "attention:attend_window",
    "dailytrain::norm": "elementwise:norm",
    "dailytrain::rotate": "elementwise:rotate",
    "dailytrain::squared_relu": "elementwise:squared_relu",
    "dailytrain::softcap": "elementwise:softcap",
    "dailytrain::cast_for_autocast": "elementwise:cast_for_autocast",
    "dailytrain::balance_load": "balance:balance_load",
    "dailytrain::recurrence": "recurrence:compute_recurrence",
    NGRAM_MEMORY: "ngram_memory:read_ngram_memory",
}
"""Parts of models whose kernel the trainer chooses per device: module and function in `trainer.ops`, imported where a
graph calls it. `trainer.ops.elementwise` declares their arguments. torch.compile reads through their Python."""

SIZE_OPERATORS: dict[str, Callable[..., Any]] = {
    **{f"size::{name}": getattr(operator, name) for name in ("add", "sub", "mul", "floordiv", "mod", "neg")},
    "size::min": torch.sym_min,
    "size::max": torch.sym_max,
}
"""Arithmetic of sizes."""

OWN_OPERATORS = {**SIZE_OPERATORS, "result::item": operator.getitem}
"""Operators that are not torch's own."""

UNINITIALIZED = {"empty": "zeros", "empty_like": "zeros_like", "new_empty": "new_zeros"}
"""Operators that return memory as they find it -> what runs instead: such memory could carry another row's data."""


def find_operator(name: str) -> Callable[..., Any]:
    """Return the function of an operator of the list."""
    if name in MODEL_PARTS:
        module, _, function = MODEL_PARTS[name].partition(":")
        part: Callable[..., Any] = getattr(importlib.import_module(f"trainer.ops.{module}"), function)
        return part
    return OWN_OPERATORS[name] if name in OWN_OPERATORS else find_overload(name)


def find_schema(name: str) -> torch.FunctionSchema:
    """Return the declaration of an operator of torch or a part of models."""
    return find_overload(name)._schema


def find_overload(name: str) -> torch._ops.OpOverload[..., Any]:
    space, _, rest = name.partition("::")
    base, _, overload = rest.partition(".")
    packet = getattr(torch.ops.aten, UNINITIALIZED.get(base, base), None) if space == "aten" else None
    if name in MODEL_PARTS:
        packet = getattr(torch.ops.dailytrain, base)
    found = getattr(packet, overload or "default", None)
    if found is None and base in UNINITIALIZED:
        found = getattr(packet, "default", None)
    # A name can also find an attribute of Python. Operators of TorchScript's interpreter crash outside of it.
    if not isinstance(found, torch._ops.OpOverload) or overload.startswith("prim_"):
        raise GraphError(f"torch has no operator {name}")
    return found


def bind_arguments(call: Call) -> dict[str, Any]:
    """Return the arguments of a call by name. Raises `TypeError` if they are not those of the operator."""
    keywords = call.keywords or {}
    if call.operator in MODEL_PARTS or call.operator.startswith("aten::"):
        declared = find_schema(call.operator).arguments
        positional = [argument.name for argument in declared if not argument.kwarg_only]
        names = [argument.name for argument in declared]
        required = [argument.name for argument in declared if not argument.has_default_value()]
    else:
        positional = required = ["value"] if call.operator == "size::neg" else ["left", "right"]
        names = []
    given = dict(zip(positional, call.arguments, strict=False))
    if len(call.arguments) > len(positional) or not set(keywords) <= set(names) - set(given):
        raise TypeError("which takes no such argument")
    given |= keywords
    if missing := [name for name in required if name not in given]:
        raise TypeError(f"which also takes {' and '.join(missing)}")
    return given


Formula = Callable[[tuple[Any, ...], Any], int]
"""Takes an operator's arguments and its result; returns floating-point operations."""


# --- formulas ---------------------------------------------------------------------------------------------------------


def iterate_tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested lists and tuples."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from iterate_tensors(item)


def count_nothing(arguments: tuple[Any, ...], result: Any) -> int:
    return 0


def count_written(arguments: tuple[Any, ...], result: Any) -> int:
    """One per element of the results."""
    return sum(tensor.numel() for tensor in iterate_tensors(result))


def count_read(arguments: tuple[Any, ...], result: Any) -> int:
    """One per element of the arguments."""
    return sum(tensor.numel() for tensor in iterate_tensors(arguments))


def count_touched(arguments: tuple[Any, ...], result: Any) -> int:
    """One per element of the arguments and of the results."""
    return count_read(arguments, result) + count_written(arguments, result)


def find_length(values: Tensor, dimension: int) -> int:
    return values.shape[dimension] if values.dim() else 1


def round_up_log(length: int) -> int:
    """Return log2, rounded up, at least 1."""
    return max(1, math.ceil(math.log2(max(2, length))))


def count_sort(arguments: tuple[Any, ...], result: Any) -> int:
    """self, then flags and the dimension (the last one if there is none): `n log2 n` for each row of n elements."""
    values = arguments[0]
    numbers = [value for value in arguments[1:] if isinstance(value, int) and not isinstance(value, bool)]
    return values.numel() * round_up_log(find_length(values, numbers[0] if numbers else -1))


def count_selection(arguments: tuple[Any, ...], result: Any) -> int:
    """`topk`, `kthvalue`: self, k, dimension, ...: as sorting."""
    values, dimension = arguments[0], arguments[2] if len(arguments) > 2 else -1
    return values.numel() * round_up_log(find_length(values, dimension))


def count_sort_of_all(arguments: tuple[Any, ...], result: Any) -> int:
    """`median`, which may have no dimension: as sorting all elements if so."""
    values = arguments[0]
    return values.numel() * round_up_log(find_length(values, arguments[1]) if len(arguments) > 1 else values.numel())


def count_bucketize(arguments: tuple[Any, ...], result: Any) -> int:
    """self, boundaries."""
    return result.numel() * round_up_log(arguments[1].shape[-1])


def count_searchsorted(arguments: tuple[Any, ...], result: Any) -> int:
    """boundaries, self."""
    return result.numel() * round_up_log(arguments[0].shape[-1])


def count_window(kernel: list[int]) -> int:
    """Return the number of elements of a window of two dimensions; one number stands for both."""
    return int(math.prod(kernel if len(kernel) == 2 else kernel * 2))


def count_pooling(arguments: tuple[Any, ...], result: Any) -> int:
    """self, kernel, ...: one per element of each window."""
    pooled = next(iterate_tensors(result))
    return pooled.numel() * count_window(arguments[1])


def count_pooling_backward(arguments: tuple[Any, ...], result: Any) -> int:
    """gradient, self, kernel, ...: likewise."""
    return arguments[0].numel() * count_window(arguments[2])


def count_adaptive_windows(values: Tensor, pooled: Tensor) -> int:
    """Return the elements of all windows of `_adaptive_avg_pool2d`: from `floor(i n / m)` to `ceil((i + 1) n / m)`."""
    sizes = zip(values.shape[-2:], pooled.shape[-2:], strict=True)
    return math.prod(pooled.shape[:-2]) * math.prod(n + m - math.gcd(n, m) for n, m in sizes)


def count_adaptive_pooling(arguments: tuple[Any, ...], result: Any) -> int:
    """self, sizes: one per element of each window."""
    return count_adaptive_windows(arguments[0], result)


def count_adaptive_pooling_backward(arguments: tuple[Any, ...], result: Any) -> int:
    """gradient, self: likewise."""
    return count_adaptive_windows(arguments[1], arguments[0])


def count_trilinear(arguments: tuple[Any, ...], result: Any) -> int:
    """Three factors, the dimensions in which each is repeated, ...: two products and a sum for each combination."""
    shapes = []
    for factor, repeated in zip(arguments[:3], arguments[3:6], strict=True):
        shape = list(factor.shape)
        for dimension in sorted(repeated):
            shape.insert(dimension, 1)
        shapes.append(shape)
    return 3 * math.prod(map(max, *shapes))


def count_fourier(arguments: tuple[Any, ...], result: Any) -> int:
    """`_fft_r2c`, `_fft_c2r`, `_fft_c2c`: self, dimensions, ...: `5 n log2 n` for each transformed row."""
    values, dimensions = arguments[0], arguments[1]
    larger = max((values, result), key=lambda tensor: tensor.numel())
    return sum(5 * larger.numel() * round_up_log(larger.shape[d]) for d in dimensions)


def count_product(left: Tensor, right: Tensor) -> int:
    """`[..., n, k] x [..., k, m]`. With k = 0 it writes zeros."""
    return 2 * left.numel() * right.shape[-1] or math.prod(left.shape[:-1]) * right.shape[-1]


def count_mm(arguments: tuple[Any, ...], result: Any) -> int:
    return count_product(arguments[0], arguments[1])


def count_added_product(arguments: tuple[Any, ...], result: Any) -> int:
    """The product of `addmm`, without the addition."""
    return count_product(arguments[1], arguments[2])


def count_addmm(arguments: tuple[Any, ...], result: Any) -> int:
    return count_added_product(arguments, result) + result.numel()


def count_dot(arguments: tuple[Any, ...], result: Any) -> int:
    return 2 * arguments[0].numel()


def count_addmv(arguments: tuple[Any, ...], result: Any) -> int:
    return 2 * arguments[1].numel() + result.numel()


def count_addr(arguments: tuple[Any, ...], result: Any) -> int:
    """A multiplication and an addition for each element of the outer product."""
    return 2 * result.numel()


def count_scaled_sum(arguments: tuple[Any, ...], result: Any) -> int:
    """`add`, `sub`, `rsub`: a multiplication more where `alpha`, the third argument, is not 1."""
    is_scaled = len(arguments) > 2 and arguments[2] != 1
    return (1 + is_scaled) * result.numel()


def count_multiply_add(arguments: tuple[Any, ...], result: Any) -> int:
    """`addcmul`, `addcdiv`: a product or quotient, a sum, and a multiplication where `value`, the fourth, is not 1."""
    is_scaled = len(arguments) > 3 and arguments[3] != 1
    return (2 + is_scaled) * result.numel()


def count_three_written(arguments: tuple[Any, ...], result: Any) -> int:
    """`lerp`: a difference, a product and a sum. `linalg_cross`: two products and a difference."""
    return 3 * result.numel()


def count_multinomial(arguments: tuple[Any, ...], result: Any) -> int:
    """probabilities, samples, whether a value can be drawn twice.

    With that, all probabilities are summed and divided, and each draw is a search. Without, a random number is drawn
    and divided for each, and they are sorted.
    """
    values, draws_again = arguments[0], len(arguments) > 2 and arguments[2]
    search = round_up_log(find_length(values, -1))
    return 2 * values.numel() + (result.numel() * (1 + search) if draws_again else values.numel() * search)


def count_convolution(arguments: tuple[Any, ...], result: Any) -> int:
    """input, weight, bias, stride, padding, dilation, transposed, ...: every weight for every output position."""
    values, weight, transposed = arguments[0], arguments[1], arguments[6]
    positions = values if transposed else result
    return 2 * weight.numel() * positions.shape[0] * math.prod(positions.shape[2:])


def count_convolution_backward(arguments: tuple[Any, ...], result: Any) -> int:
    """gradient, input, weight, ..., transposed at 7, output mask last: one convolution for each gradient of the two."""
    gradient, values, weight, transposed = arguments[0], arguments[1], arguments[2], arguments[7]
    positions = values if transposed else gradient
    once = 2 * weight.numel() * positions.shape[0] * math.prod(positions.shape[2:])
    return once * sum(arguments[-1][:2])


def count_distances(arguments: tuple[Any, ...], result: Any) -> int:
    """`_cdist_forward`: three for each coordinate of each pair of points. Without coordinates it writes zeros."""
    return result.numel() * max(1, 3 * arguments[0].shape[-1])


def count_distances_backward(arguments: tuple[Any, ...], result: Any) -> int:
    """gradient, points, other points, p, distances."""
    return 6 * arguments[0].numel() * arguments[1].shape[-1]


def count_factorization(arguments: tuple[Any, ...], result: Any) -> int:
    """`4 n^2 m` for each matrix `n x m`, n the smaller side: the bound of a Householder factorization (Golub and Van
    Loan, section 5.2), which the others do not exceed; at least one per element of the results."""
    rows, columns = arguments[0].shape[-2:]
    return max(4 * arguments[0].numel() * min(rows, columns), count_written(arguments, result))


def count_singular_values(arguments: tuple[Any, ...], result: Any) -> int:
    """`4 m^2 n + 22 n^3` for each matrix `m x n`, n the smaller side, with both factors (Golub and Van Loan, 8.6.4)."""
    values = arguments[0]
    large, small = max(values.shape[-2:]), min(values.shape[-2:])
    matrices = math.prod(values.shape[:-2])
    return max(matrices * (4 * large**2 * small + 22 * small**3), count_written(arguments, result))


def count_eigenvalues(arguments: tuple[Any, ...], result: Any) -> int:
    """`9 n^3` for each symmetric matrix, with its eigenvectors (Golub and Van Loan, 8.3.4)."""
    return max(9 * arguments[0].numel() * arguments[0].shape[-1], count_written(arguments, result))


def count_solve(arguments: tuple[Any, ...], result: Any) -> int:
    """`_linalg_solve_ex`: matrix, right side: a factorization, and two triangular systems."""
    return count_factorization(arguments, result) + 2 * arguments[1].numel() * arguments[0].shape[-1]


def count_factorized_solve(arguments: tuple[Any, ...], result: Any) -> int:
    """`linalg_lu_solve`: factors, pivots, right side: two triangular systems."""
    return max(2 * arguments[2].numel() * arguments[0].shape[-1], count_written(arguments, result))


def count_triangular_solve(arguments: tuple[Any, ...], result: Any) -> int:
    """`linalg_solve_triangular`: `n x n` matrix, right side: `n` for each element of the solution."""
    return result.numel() * arguments[0].shape[-1]


def count_triangular_solve_backward(arguments: tuple[Any, ...], result: Any) -> int:
    """`triangular_solve`: right side, `n x n` matrix."""
    return arguments[0].numel() * arguments[1].shape[-1]


# --- the list ---------------------------------------------------------------------------------------------------------


def list_operators(formula: Formula, names: str) -> dict[str, Formula]:
    return {f"aten::{name}": formula for name in names.split()}


OPERATORS: dict[str, Formula] = {
    # views
    **list_operators(
        count_nothing,
        "view reshape flatten unflatten transpose permute t mT numpy_T squeeze unsqueeze expand expand_as select "
        "slice narrow split split_with_sizes chunk unbind diagonal movedim swapaxes unfold view_as view_as_complex "
        "view_as_real real imag detach alias contiguous unsafe_split unsafe_chunk tensor_split hsplit vsplit "
        "broadcast_to ravel moveaxis swapdims adjoint mH squeeze_ unsqueeze_ transpose_ lift_fresh sym_size",
    ),
    # element-wise
    **list_operators(
        count_written,
        "mul div true_divide floor_divide remainder fmod neg abs sign sgn square pow sqrt rsqrt exp "
        "exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh erf "
        "erfc erfinv sigmoid logit relu relu6 leaky_relu elu gelu silu softplus hardtanh hardsigmoid hardshrink "
        "softshrink log_sigmoid threshold clamp clamp_min clamp_max clip maximum minimum fmax "
        "fmin floor ceil round trunc frac reciprocal where masked_fill eq ne lt le gt ge "
        "logical_and logical_or logical_not logical_xor bitwise_and bitwise_or bitwise_not bitwise_xor "
        "bitwise_left_shift bitwise_right_shift __and__ __or__ __xor__ __lshift__ __rshift__ isnan isinf isfinite "
        "isclose nan_to_num lgamma digamma sinc hypot heaviside xlogy logaddexp logaddexp2 complex polar angle "
        "conj conj_physical resolve_conj resolve_neg tril triu positive deg2rad rad2deg i0 special_expit "
        "special_erf ldexp copysign glu hardswish mish celu",
    ),
    **list_operators(count_scaled_sum, "add sub rsub"),
    **list_operators(count_multiply_add, "addcmul addcdiv"),
    **list_operators(count_three_written, "lerp linalg_cross"),
    # copies
    **list_operators(
        count_written,
        "clone cat concat concatenate stack hstack vstack column_stack repeat tile roll flip fliplr flipud rot90 "
        "constant_pad_nd reflection_pad1d replication_pad1d copy fill zero slice_scatter select_scatter "
        "diagonal_scatter diag diag_embed im2col upsample_nearest1d upsample_linear1d _to_copy "
        "lift_fresh_copy expand_copy permute_copy diagonal_copy block_diag pixel_shuffle",
    ),
    # tensors of given values
    **list_operators(
        count_written,
        "zeros ones full arange linspace eye zeros_like ones_like full_like new_zeros new_ones new_full empty "
        "empty_like new_empty tril_indices triu_indices scalar_tensor",
    ),
    # reductions and scans
    **list_operators(
        count_read,
        "sum mean prod amax amin max min argmax argmin any all var_mean linalg_vector_norm count_nonzero std var "
        "std_mean logsumexp norm cumsum cumprod cummax cummin logcumsumexp nansum nanmean aminmax diff trapezoid "
        "trace",
    ),
    # reading and writing at positions
    **list_operators(count_written, "embedding gather index index_select take"),
    **list_operators(
        count_touched,
        "index_add index_copy index_fill index_put scatter scatter_add scatter_reduce masked_scatter col2im",
    ),
    **list_operators(count_bucketize, "bucketize"),
    **list_operators(count_searchsorted, "searchsorted"),
    # sorting
    **list_operators(count_sort, "sort mode"),
    **list_operators(count_selection, "topk kthvalue"),
    **list_operators(count_sort_of_all, "median"),
    # products
    **list_operators(count_mm, "mm bmm"),
    **list_operators(count_addmm, "addmm baddbmm addbmm"),
    **list_operators(count_dot, "dot vdot mv"),
    **list_operators(count_addmv, "addmv"),
    **list_operators(count_addr, "addr"),
    # linear algebra
    **list_operators(count_factorization, "linalg_qr linalg_cholesky cholesky linalg_inv"),
    **list_operators(count_triangular_solve, "linalg_solve_triangular"),
    # arithmetic of sizes, and the parts of a result with several tensors
    **dict.fromkeys((*SIZE_OPERATORS, "result::item"), count_nothing),
}
"""Operators that a graph may call -> what they cost. Each covers its overloads and its in-place variant (`add_`)."""

COMPOSITES = frozenset(
    (
        *list_operators(
            count_nothing,
            "linear matmul einsum layer_norm group_norm rms_norm batch_norm instance_norm softmax log_softmax "
            "dropout feature_dropout alpha_dropout scaled_dot_product_attention lstm gru rnn_tanh rnn_relu "
            "cosine_similarity pairwise_distance msort conv1d conv2d conv3d conv_transpose1d conv_transpose2d bilinear "
            "outer inner tensordot kron chain_matmul linalg_multi_dot type_as to argsort meshgrid "
            "fft_fft fft_ifft fft_rfft fft_irfft fft_hfft fft_ihfft fft_fft2 fft_ifft2 fft_rfft2 "
            "fft_irfft2 fft_fftn fft_ifftn fft_rfftn fft_irfftn fft_fftshift fft_ifftshift cdist linalg_norm "
            "linalg_matrix_norm nuclear_norm max_pool1d avg_pool1d adaptive_avg_pool1d pad one_hot "
            "cross_entropy_loss nll_loss take_along_dim repeat_interleave rrelu selu prelu _weight_norm "
            "linalg_solve linalg_det det linalg_slogdet slogdet logdet linalg_eigh linalg_eigvalsh linalg_matrix_power "
            "cross special_ndtr",
        ),
        *MODEL_PARTS,
    )
)
"""Operators that a graph may call and that torch computes as others. Those are counted."""

RANDOM_OPERATORS: dict[str, Formula] = {
    **list_operators(
        count_written,
        "rand randn randint randperm rand_like randn_like randint_like bernoulli normal uniform "
        "exponential random geometric log_normal cauchy native_dropout dropout feature_dropout alpha_dropout rrelu",
    ),
    **list_operators(count_multinomial, "multinomial"),
}
"""Operators that draw random numbers: in the initialization and in training, not in evaluation."""

MAY_RETURN_ARGUMENT = {
    "dailytrain::cast_for_autocast": ("x",),
    "dailytrain::ngram_memory": ("table",),
} | {
    f"aten::{name}": tuple(arguments.split())
    for name, arguments in {
        "type_as": "self",
        "meshgrid": "tensors",
        "unsafe_split": "self",
        "unsafe_chunk": "self",
        "einsum": "tensors",
        "chain_matmul": "matrices",
        "conj_physical": "self",
        "dropout": "input",
        "feature_dropout": "input",
        "alpha_dropout": "input",
    }.items()
}
"""Operators whose result may be an argument or a view of it, which their declaration in torch does not say -> the
arguments. A test runs all operators and compares memory."""

UNCHECKED_OVERLOADS = frozenset(
    (
        *(f"aten::{name}.data" for name in ("lstm", "gru", "rnn_tanh", "rnn_relu")),
        *(f"aten::repeat_interleave.{overload}" for overload in ("Tensor", "self_Tensor")),
        "aten::tensor_split.tensor_indices_or_sections",
        "aten::squeeze",
        "aten::squeeze_",
    )
)
"""Overloads that take sizes or addresses from a tensor, which not all of torch's kernels check; and `squeeze` without a
dimension, which drops the rows of a micro-batch of one and makes it another computation."""

UNCHECKED_ARGUMENTS = {
    "aten::searchsorted": "sorter",
    "aten::upsample_nearest1d": "scales",
    "aten::upsample_linear1d": "scales",
}
"""Operators -> an argument from which addresses are computed that not all of torch's kernels check."""

RUNNING_STATISTICS = {
    "aten::batch_norm": ("training", "running_mean", "running_var"),
    "aten::instance_norm": ("use_input_stats", "running_mean", "running_var"),
}
"""Operators that write to arguments, which their declaration does not say -> what switches it on, and the arguments."""

DECOMPOSED_OPERATORS: dict[str, Formula] = {
    **list_operators(
        count_nothing,
        "_unsafe_view _reshape_alias as_strided _conj _neg_view _reshape_copy is_same_size sym_numel item "
        "_linalg_check_errors _efficientzerotensor",
    ),
    **list_operators(
        count_read,
        "native_layer_norm native_layer_norm_backward native_group_norm native_group_norm_backward "
        "native_batch_norm _native_batch_norm_legit native_batch_norm_backward "
        "_fused_rms_norm _fused_rms_norm_backward _softmax _safe_softmax _softmax_backward_data _log_softmax "
        "_log_softmax_backward_data nll_loss_forward nll_loss_backward nll_loss2d_forward nll_loss2d_backward "
        "value_selecting_reduction_backward max_pool2d_with_indices_backward _weight_norm_interface "
        "_weight_norm_interface_backward",
    ),
    **list_operators(
        count_written,
        "threshold_backward gelu_backward silu_backward sigmoid_backward tanh_backward elu_backward "
        "softplus_backward hardtanh_backward hardsigmoid_backward hardswish_backward leaky_relu_backward "
        "log_sigmoid_forward log_sigmoid_backward mish_backward glu_backward _prelu_kernel _prelu_kernel_backward "
        "logit_backward native_dropout_backward rrelu_with_noise rrelu_with_noise_backward "
        "select_backward slice_backward diagonal_backward new_empty_strided empty_strided "
        "empty_permuted constant_pad_nd "
        "reflection_pad1d_backward softshrink_backward hardshrink_backward replication_pad1d_backward "
        "as_strided_scatter slice_scatter select_scatter pixel_unshuffle",
    ),
    **list_operators(
        count_touched,
        "embedding_dense_backward _index_put_impl index_put unfold_backward upsample_nearest1d_backward "
        "upsample_linear1d_backward",
    ),
    **list_operators(count_trilinear, "_trilinear"),
    **list_operators(count_adaptive_pooling, "_adaptive_avg_pool2d"),
    **list_operators(count_adaptive_pooling_backward, "_adaptive_avg_pool2d_backward"),
    **list_operators(count_pooling, "max_pool2d_with_indices avg_pool2d"),
    **list_operators(count_pooling_backward, "avg_pool2d_backward"),
    **list_operators(count_fourier, "_fft_r2c _fft_c2r _fft_c2c"),
    **list_operators(count_convolution, "convolution"),
    **list_operators(count_convolution_backward, "convolution_backward"),
    **list_operators(count_distances, "_cdist_forward _euclidean_dist"),
    **list_operators(count_distances_backward, "_cdist_backward"),
    **list_operators(count_singular_values, "_linalg_svd"),
    **list_operators(count_factorization, "linalg_inv_ex linalg_cholesky_ex geqrf orgqr _linalg_det _linalg_slogdet"),
    **list_operators(count_eigenvalues, "_linalg_eigh"),
    **list_operators(count_solve, "_linalg_solve_ex"),
    **list_operators(count_factorized_solve, "linalg_lu_solve"),
    **list_operators(count_triangular_solve_backward, "triangular_solve"),
}
"""Operators that others turn into, forward or backward. A graph may not name them."""

FORMULAS = OPERATORS | RANDOM_OPERATORS | DECOMPOSED_OPERATORS


def strip_variant(name: str) -> str:
    """Return an operator's entry in the lists: without overload and without the underscore of its in-place variant."""
    base = name.partition(".")[0]
    is_listed = base in FORMULAS or base in COMPOSITES
    return base[:-1] if base.endswith("_") and not base.endswith("__") and not is_listed else base


def is_allowed(name: str) -> bool:
    """Return whether a graph may call the operator `namespace::name.overload`."""
    base, overload = strip_variant(name), name.partition(".")[2].lower()
    # torch 2.11 has overloads that take names of dimensions (`dimname`, `names_dim`); 2.13 has none of them.
    if name.removesuffix(".default") in UNCHECKED_OVERLOADS or "name" in overload:
        return False
    return base in OPERATORS or base in COMPOSITES or base in RANDOM_OPERATORS


def find_precision_factor(name: str, arguments: tuple[Any, ...], result: Any) -> int:
    """Return what an element counts: 4 if complex, as a product of complex numbers has 4 of real ones, twice that in
    double precision. The formula of Fourier transforms counts real operations."""
    # A tensor without dimensions does not decide in which precision torch computes.
    tensors = [*iterate_tensors(result), *(t for t in iterate_tensors(arguments) if t.dim())]
    types = {tensor.dtype for tensor in tensors}
    is_complex = any(dtype.is_complex for dtype in types) and FORMULAS.get(name) is not count_fourier
    return (4 if is_complex else 1) * (2 if types & {torch.float64, torch.complex128} else 1)


def find_formula(operator: Any) -> Formula | None:
    """Return the formula of an operator that torch computes; None if it has none. Point-wise ones need no entry."""
    formula = FORMULAS.get(strip_variant(operator.name()))
    if formula is None and torch.Tag.pointwise in operator.tags:
        return count_written
    return formula
