"""C++ source of one pass of a symmetric contraction: vectors of channels, node by node."""

from __future__ import annotations

from collections.abc import Sequence

from ...plan.contraction import HostContractionPlan
from ...plan.host import ITEMSIZE
from ...problem import SymmetricContractionProblem
from ..common.emit import HostKernel, host_head
from ..common.expression import Statement
from .program import ContractionSpec, arguments, contraction_groups, group_function

__all__ = ["COLUMNS", "emit_contraction_host"]

# Columns of the coefficients' gradient per task of the sum over nodes.
COLUMNS = 512

_PARAMETERS = (
    "const V* x, const V* a, const T* c, const T* b, int64_t cs, const V* g, V* o, V* dx, T* dc, "
    "int64_t ds"
)

# C++ that converts rows [channels][components] to vectors of channels, and back.
_ROWS = """\
template <int N, int D>
MDCG_INLINE void load_rows(const T* p, V* v) {
    for (int d = 0; d < D; d += L) {
        V r[L];
        const int width = D - d < L ? D - d : L;
        for (int l = 0; l < L; ++l) r[l] = V{};
        if (width == L) {
            for (int l = 0; l < N; ++l) r[l] = load<L>(p + l * D + d);
        } else {
            for (int l = 0; l < N; ++l) r[l] = load<D % L ? D % L : L>(p + l * D + d);
        }
        transpose(r);
        for (int i = 0; i < width; ++i) v[d + i] = r[i];
    }
}

template <int N, int D>
MDCG_INLINE void store_rows(T* p, const V* v) {
    for (int d = 0; d < D; d += L) {
        V r[L];
        const int width = D - d < L ? D - d : L;
        for (int i = 0; i < L; ++i) r[i] = i < width ? v[d + i] : V{};
        transpose(r);
        if (width == L) {
            for (int l = 0; l < N; ++l) store<L>(p + l * D + d, r[l]);
        } else {
            for (int l = 0; l < N; ++l) store<D % L ? D % L : L>(p + l * D + d, r[l]);
        }
    }
}
"""

# C++ that finds a node's coefficients: a pointer if it has one species, else a mix in a buffer.
_SPECIES = """\
static int64_t only_species(const T* y, int64_t n_species) {
    int64_t found = -1;
    for (int64_t s = 0; s < n_species; ++s) {
        if (y[s] == 0) continue;
        if (found >= 0 || y[s] != 1) return -1;
        found = s;
    }
    return found;
}

static void mix(const T* y, int64_t n_species, const T* w, T* sum) {
    for (int64_t i = 0; i < WIDTH; ++i) sum[i] = 0;
    for (int64_t s = 0; s < n_species; ++s) {
        if (y[s] == 0) continue;
        for (int64_t i = 0; i < WIDTH; ++i) sum[i] += y[s] * w[s * WIDTH + i];
    }
}
"""

# C++ that sums the gradient of a species' coefficients, 64 nodes at a time for precision.
_SUM = """\
extern "C" void mdcg_sum(const int64_t* arg, int64_t task, char*) {
    const int64_t blocks = (WIDTH + COLUMNS - 1) / COLUMNS;
    const int64_t s = task / blocks, first = task % blocks * COLUMNS;
    const int64_t n = WIDTH - first < COLUMNS ? WIDTH - first : COLUMNS;
    const int64_t n_species = arg[0];
    const T* const y = (const T*)arg[1];
    const T* const rows = (const T*)arg[2];
    const int64_t* const node = (const int64_t*)arg[3];
    const int64_t* const ptr = (const int64_t*)arg[4];
    T* const out = (T*)arg[5] + s * WIDTH + first;
    T part[COLUMNS];
    for (int64_t i = 0; i < n; ++i) out[i] = 0;
    for (int64_t p = ptr[s]; p < ptr[s + 1]; p += 64) {
        const int64_t end = p + 64 < ptr[s + 1] ? p + 64 : ptr[s + 1];
        for (int64_t i = 0; i < n; ++i) part[i] = 0;
        for (int64_t q = p; q < end; ++q) {
            const T weight = y[node[q] * n_species + s];
            const T* const row = rows + node[q] * WIDTH + first;
            for (int64_t i = 0; i < n; ++i) part[i] += weight * row[i];
        }
        for (int64_t i = 0; i < n; ++i) out[i] += part[i];
    }
}
"""


def _transpose(lanes: int) -> str:
    """Print the transpose of a square of vectors, in log2(lanes) steps that exchange halves."""
    lines = ["MDCG_INLINE void transpose(V* r) {"]
    step = 1
    while step < lanes:
        low = [lanes + j - step if j & step else j for j in range(lanes)]
        high = [lanes + j if j & step else j + step for j in range(lanes)]
        for k in range(lanes):
            if k & step:
                continue
            pair = f"r[{k}], r[{k + step}]"
            lines.append(f"    {{ const V s = SHUFFLE({pair}, {', '.join(map(str, low))});")
            lines.append(f"      r[{k + step}] = SHUFFLE({pair}, {', '.join(map(str, high))});")
            lines.append(f"      r[{k}] = s; }}")
        step *= 2
    return "\n".join([*lines, "}"])


def _shuffle(itemsize: int) -> str:
    integer = f"int{8 * itemsize}_t"
    return "\n".join(
        [
            f"typedef {integer} I __attribute__((vector_size(L * sizeof(T))));",
            "#if defined(__clang__)",
            "#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)",
            "#else",
            "#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (I){__VA_ARGS__})",
            "#endif",
        ]
    )


def _reference(name: str) -> str:
    """Return the expression of a value that the statements do not compute."""
    array = name.rstrip("0123456789")
    number = name[len(array) :]
    if array == "dc":
        return f"*(VU*)(dc + {number} * ds)"
    return f"*(const VU*)({array} + {number} * cs)" if array in "bc" else f"{array}[{number}]"


def _group_function(number: int, statements: Sequence[Statement]) -> str:
    def load(name: str) -> str:
        return f"(V)({_reference(name)})"

    def add(target: str) -> str:
        place = _reference(target)
        return f"{place} = (VU)((V){place} + t);"

    return group_function(f"group{number}", _PARAMETERS, statements, load, add)


def _channels(problem: SymmetricContractionProblem, spec: ContractionSpec, groups: int) -> str:
    """Writes the code for one vector of channels of one node."""
    # first component, components and first column of every output block
    blocks, first = [], 0
    for block in problem.irreps_out:
        blocks.append((first, block.ir.dim, first * problem.channels))
        first += block.ir.dim
    dim, number, out = problem.dim_in, problem.num_coefficients, max(problem.dim_out, 1)
    lines = [
        "template <int N>",
        "MDCG_INLINE void channels(int u, const T* px, const T* pa, const T* pc, const T* pb, "
        "const T* pg, T* po, T* pdx, T* pdc) {",
        f"    V x[{dim}], a[{dim}], g[{out}], o[{out}], dx[{dim}];",
        f"    load_rows<N, {dim}>(px + u * {dim}, x);",
    ]
    if "x" in spec.given:
        lines.append(f"    load_rows<N, {dim}>(pa + u * {dim}, a);")
    if spec.kind != "forward":
        for first, width, column in blocks:
            for m in range(width):
                place = f"pg + {column + m} + u * {width}"
                lines.append(f"    g[{first + m}] = load_strided<N, {width}>({place});")
    lines.append(f"    for (int m = 0; m < {out}; ++m) o[m] = V{{}};")
    if "x" in spec.wants:
        lines.append(f"    for (int i = 0; i < {dim}; ++i) dx[i] = V{{}};")
    # a partial last vector reads and writes whole vectors in its own buffers
    tail = f"{max(number, 1)} * L"
    lines += [
        "    constexpr bool WHOLE = N == L;",
        f"    alignas(64) T tc[WHOLE ? 1 : {tail}], tb[WHOLE ? 1 : {tail}], "
        f"tdc[WHOLE ? 1 : {tail}];",
        "    const T* c = pc + u;",
        "    const T* b = pb + u;",
        "    T* dc = pdc + u;",
        f"    int64_t s = {problem.channels};",
        "    if constexpr (!WHOLE) {",
        f"        for (int r = 0; r < {number}; ++r) {{",
        f"            *(V*)(tc + r * L) = load<N>(c + r * {problem.channels});",
    ]
    if "w" in spec.given:
        lines.append(f"            *(V*)(tb + r * L) = load<N>(b + r * {problem.channels});")
    lines += ["        }", "        c = tc; b = tb; dc = tdc; s = L;", "    }"]
    if "w" in spec.wants:
        lines.append(f"    for (int r = 0; r < {number}; ++r) *(VU*)(dc + r * s) = (VU)V{{}};")
    for group in range(groups):
        lines.append(f"    group{group}(x, a, c, b, s, g, o, dx, dc, s);")
    if spec.kind == "forward" or "g" in spec.wants:
        for first, width, column in blocks:
            for m in range(width):
                place = f"po + {column + m} + u * {width}"
                lines.append(f"    store_strided<N, {width}>({place}, o[{first + m}]);")
    if "x" in spec.wants:
        lines.append(f"    store_rows<N, {dim}>(pdx + u * {dim}, dx);")
    if "w" in spec.wants:
        lines += [
            "    if constexpr (!WHOLE)",
            f"        for (int r = 0; r < {number}; ++r)",
            f"            store<N>(pdc + u + r * {problem.channels}, *(V*)(tdc + r * L));",
        ]
    return "\n".join([*lines, "}"])


def _entry(
    problem: SymmetricContractionProblem, plan: HostContractionPlan, spec: ContractionSpec
) -> tuple[str, int]:
    names = arguments(spec)
    channels, dim = problem.channels, problem.dim_in
    row_in, row_out = channels * dim, channels * problem.dim_out
    lines = ['extern "C" void mdcg_run(const int64_t* arg, int64_t task, char* scratch) {']
    for i, name in enumerate(names):
        kind, cast = ("const int64_t", "") if name.startswith("n_") else ("T* const", "(T*)")
        lines.append(f"    {kind} {name} = {cast}arg[{i}];")
    item = ITEMSIZE[problem.dtype]
    piece = -(-problem.num_coefficients * channels * item // 64) * 64
    pieces = 0

    def coefficients(name: str) -> str:
        nonlocal pieces
        if not spec.mixed:
            return f"const T* const {name}_row = {name} + n * WIDTH;"
        pieces += 1
        lines.append(f"    T* const mixed_{name} = (T*)(scratch + {(pieces - 1) * piece});")
        return (
            f"const T* {name}_row = {name} + species * WIDTH; if (species < 0) "
            f"{{ mix(y + n * n_types, n_types, {name}, mixed_{name}); "
            f"{name}_row = mixed_{name}; }}"
        )

    body = []
    if spec.mixed:
        body.append("const int64_t species = only_species(y + n * n_types, n_types);")
    body.append(coefficients("w"))
    if "w" in spec.given:
        body.append(coefficients("wc"))
    call = [
        f"x + n * {row_in}",
        f"xa + n * {row_in}" if "x" in spec.given else "(const T*)nullptr",
        "w_row",
        "wc_row" if "w" in spec.given else "(const T*)nullptr",
        f"g + n * {row_out}" if spec.kind != "forward" else "(const T*)nullptr",
        f"out + n * {row_out}" if "out" in names else "(T*)nullptr",
        f"dx + n * {row_in}" if "dx" in names else "(T*)nullptr",
        "dw + n * WIDTH" if "dw" in names else "(T*)nullptr",
    ]
    whole, rest = channels // plan.lanes * plan.lanes, channels % plan.lanes
    if whole:
        body.append(f"for (int u = 0; u < {whole}; u += L) channels<L>(u, {', '.join(call)});")
    if rest:
        body.append(f"channels<{rest}>({whole}, {', '.join(call)});")
    lines += [
        f"    const int64_t last = (task + 1) * {plan.nodes_per_task};",
        f"    for (int64_t n = task * {plan.nodes_per_task}; n < last && n < n_rows; ++n) {{",
        *(f"        {line}" for line in body),
        "    }",
        "}",
    ]
    return "\n".join(lines), pieces * piece


def emit_contraction_host(
    problem: SymmetricContractionProblem, plan: HostContractionPlan, spec: ContractionSpec
) -> HostKernel:
    """Generate the C++ text of one kernel; equal arguments give equal text.

    The entry ``mdcg_sum`` adds up gradients of coefficients: arg = n_types, attributes, rows per
    node, nodes by species, where each species starts, result.
    """
    itemsize = ITEMSIZE[problem.dtype]
    groups = contraction_groups(problem, spec)
    entry, scratch_bytes = _entry(problem, plan, spec)
    parts = [
        *host_head(
            problem,
            f"kernel {spec}",
            plan,
            arguments(spec),
            WIDTH=problem.num_coefficients * problem.channels,  # of a species
            COLUMNS=COLUMNS,
        ),
        _shuffle(itemsize),
        _transpose(plan.lanes),
        _ROWS,
        _SPECIES if spec.mixed else "",
        _SUM if spec.mixed and "w" in spec.wants else "",
        *(_group_function(number, statements) for number, statements in enumerate(groups)),
        _channels(problem, spec, len(groups)),
        entry,
        "",
    ]
    return HostKernel(
        source="\n".join(parts),
        arguments=arguments(spec),
        scratch_bytes=scratch_bytes,
        packed_in1=problem.channels * problem.dim_in,
        packed_out=problem.channels * problem.dim_out,
    )
