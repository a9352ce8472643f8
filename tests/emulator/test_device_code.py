"""CUDA C++ on the emulated device: threads, warps, shared memory, inline PTX, arithmetic."""

from __future__ import annotations

import textwrap

from .test_driver import run


def check(kernel: str, code: str, *, arguments: str = "double* x") -> None:
    """Compile a body, and run Python that launches it as ``k``; 64 doubles are at ``x``."""
    start = f"""
kernels = Kernels(driver, r'''
{textwrap.dedent(kernel)}
''')
host = np.random.default_rng(1).normal(size=64)
x = driver.on_device(host)
"""
    run(start + textwrap.dedent(code))


def test_threads_blocks_and_shared_memory() -> None:
    kernel = """
        struct __align__(16) Pair { double a, b; };
        // a transposed tile, shared memory of a template, and three dimensions
        template <int N> static __device__ double reversed(double v, int i) {
            __shared__ double row[N];
            row[i] = v;
            __syncthreads();
            const double result = row[N - 1 - i];
            __syncthreads();
            return result;
        }
        extern "C" __global__ void
        __launch_bounds__(8 * 4 * 2, 1) tile(const Pair p, double* __restrict__ x, int* seen) {
            __shared__ double s[8][8 + 1];
            extern __shared__ __align__(16) char raw[];
            double* const more = (double*)raw;
            const int i = threadIdx.x + 8 * (threadIdx.y + 4 * threadIdx.z);
            s[i / 8][i % 8] = x[i];
            more[i] = p.a;
            __syncthreads();
            x[i] = reversed<64>(s[i % 8][i / 8] * more[63 - i] + p.b, i);
            atomicAdd(&seen[blockIdx.x + gridDim.x * blockIdx.y], 1);
        }
        __constant__ double table[64] = {1.5};
        extern "C" __global__ void constants(double* x) { x[threadIdx.x] = table[threadIdx.x]; }
        // without a barrier: the neighbour's value is not there yet, for some of them
        extern "C" __global__ void early(double* x) {
            __shared__ double s[64];
            s[threadIdx.x] = x[threadIdx.x];
            x[threadIdx.x] = s[63 - threadIdx.x];
        }
    """
    code = """
        seen = driver.on_device(np.zeros(6, np.int32))
        pair = (ctypes.c_double * 2)(2.0, 0.5)
        kernels.launch("tile", 1, (8, 4, 2), pair, x, seen, shared=512)
        want = (2 * host.reshape(8, 8).T.ravel() + 0.5)[::-1]
        assert (driver.fetch(x, host) == want).all()
        kernels.launch("tile", (3, 2, 1), (8, 4, 2), pair, x, seen, shared=512)
        counts = driver.fetch(seen, np.empty(6, np.int32))
        assert (counts == [128, 64, 64, 64, 64, 64]).all(), counts
        table, size = ctypes.c_void_p(), ctypes.c_size_t()
        references = ctypes.byref(table), ctypes.byref(size)
        driver.cuModuleGetGlobal_v2(*references, kernels.module, b"table")
        assert size.value == 512
        kernels.launch("constants", 1, 64, x)
        assert driver.fetch(x, host).tolist() == [1.5] + 63 * [0]
        driver.cuMemcpyHtoD_v2(table, host.ctypes.data_as(ctypes.c_void_p), size)
        kernels.launch("constants", 1, 64, x)
        assert (driver.fetch(x, host) == host).all()
        kernels.launch("early", 1, 64, x)
        missing = np.isnan(driver.fetch(x, host)).sum()
        assert 10 < missing < 54, missing
    """
    check(kernel, code)


def test_warps() -> None:
    kernel = """
        extern "C" __global__ void k(const double* x, double* out, unsigned* bits) {
            const int lane = threadIdx.x % 32, i = threadIdx.x;
            const unsigned all = 0xffffffffu;
            double sum = x[i];
            for (int d = 16; d; d /= 2) sum += __shfl_xor_sync(all, sum, d);
            out[i] = sum;
            double part = x[i];
            for (int d = 4; d; d /= 2) part += __shfl_down_sync(all, part, d, 8);
            out[64 + i] = part;
            out[128 + i] = __shfl_up_sync(all, x[i], 3);
            out[192 + i] = __shfl_sync(all, x[i], 5, 16);
            if (lane < 20) {  // the lanes of a mask, while others do something else
                bits[i] = __ballot_sync(0xfffffu, lane % 3 == 0);
            } else {
                bits[i] = __shfl_sync(0xfff00000u, lane, 25);
            }
            if (lane >= 30) return;  // who has ended is not waited for
            bits[64 + i] = __ballot_sync(all, 1);
            bits[128 + i] = __any_sync(all, lane == 31) * 2 + __all_sync(all, lane < 30);
            __syncthreads();
            bits[192 + i] = __popc(bits[64 + 63 - 2 - i % 30]);
        }
    """
    code = """
        out = driver.on_device(np.zeros(256))
        bits = driver.on_device(np.zeros(256, np.uint32))
        kernels.launch("k", 1, 64, x, out, bits)
        got = driver.fetch(out, np.empty(256)).reshape(4, 64)
        lanes = np.arange(64) % 32
        assert np.allclose(got[0], host.reshape(2, 32).sum(1).repeat(32), rtol=1e-14)
        assert np.allclose(got[1][::8], host.reshape(8, 8).sum(1), rtol=1e-14)
        assert (got[2] == np.where(lanes < 3, host, np.roll(host, 3))).all()
        assert (got[3] == host.reshape(4, 16)[:, 5].repeat(16)).all()
        got = driver.fetch(bits, np.empty(256, np.uint32)).reshape(4, 64)
        assert (got[0] == np.where(lanes < 20, sum(1 << i for i in range(0, 20, 3)), 25)).all()
        alive = lanes < 30
        assert (got[1][alive] == 0x3FFFFFFF).all()
        assert (got[2][alive] == 1).all()
        assert (got[3][alive] == 30).all()
    """
    check(kernel, code)


def test_inline_ptx() -> None:
    kernel = """
        extern "C" __global__ void k(const double* x, double* out, float* sums) {
            __shared__ __align__(16) double s[2][64];
            extern __shared__ __align__(16) double d[];
            const int i = threadIdx.x;
            // two groups of copies, the first waited for
            for (int n = 0; n < 2; ++n) {
                const unsigned to = (unsigned)__cvta_generic_to_shared(&s[n][i]);
                asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
                             :: "r"(to), "l"(x + i), "r"(n ? 0 : 8) : "memory");
                asm volatile("cp.async.commit_group;" ::: "memory");
            }
            asm volatile("cp.async.wait_group %0;" :: "n"(1) : "memory");
            const double first = s[0][i], second = s[1][i];
            asm volatile("cp.async.wait_all;");
            out[i] = first;
            out[64 + i] = second;          // not there yet: NaN
            out[128 + i] = s[1][i];        // zeros, of which nothing is read
            // one half hands over to the other through a named barrier
            if (i < 32) {
                d[i] = x[i];
                asm volatile("bar.arrive 3, 64;" ::: "memory");
            } else {
                asm volatile("bar.sync %0, %1;" :: "n"(3), "r"(64) : "memory");
                out[192 + i] = d[i - 32];
            }
            asm volatile("red.global.add.f32 [%0], %1;" :: "l"(sums), "f"(1.f) : "memory");
            asm volatile("red.global.add.v4.f32 [%0], {%1, %2, %3, %4};"
                         :: "l"(sums + 4), "f"(1.f), "f"(2.f), "f"(3.f), "f"(4.f) : "memory");
            float a, b;
            asm("ld.global.nc.L1::no_allocate.v2.f32 {%0, %1}, [%2];"
                : "=f"(a), "=f"(b) : "l"(sums + 8));
            unsigned lane;
            asm("mov.u32 %0, %%laneid;" : "=r"(lane));
            float* const to = sums + 10;
            if (lane == 0) asm("st.global.v2.f32 [%0], {%1, %2};" :: "l"(to), "f"(b), "f"(a));
            asm volatile("griddepcontrol.wait;" ::: "memory");
            asm volatile("prefetch.global.L2 [%0];" :: "l"(x));
        }
    """
    code = """
        out = driver.on_device(np.zeros(256))
        start = np.arange(16, dtype=np.float32)
        start[:8] = 0
        sums = driver.on_device(start)
        kernels.launch("k", 1, 64, x, out, sums, shared=256)
        got = driver.fetch(out, np.empty(256)).reshape(4, 64)
        assert (got[0] == host).all()
        assert np.isnan(got[1]).all()
        assert (got[2] == 0).all()
        assert (got[3][32:] == host[:32]).all()
        got = driver.fetch(sums, start)
        assert got[:8].tolist() == [64, 0, 0, 0, 64, 128, 192, 256]
        assert got[8:].tolist() == [8, 9, 9, 8, 12, 13, 14, 15]
    """
    check(kernel, code)


def test_matrix_instructions() -> None:
    kernel = """
        // row-major A, column-major B, as the fragments are laid out
        extern "C" __global__ void f64(const double* a, const double* b, double* d) {
            const int i = threadIdx.x, g = i / 4, t = i % 4;
            double d0, d1;
            asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, "
                         "{%4, %5};" : "=d"(d0), "=d"(d1)
                         : "d"(a[g * 4 + t]), "d"(b[t * 8 + g]), "d"(1.0), "d"(2.0));
            d[g * 8 + 2 * t] = d0;
            d[g * 8 + 2 * t + 1] = d1;
        }
        static __device__ unsigned short_f(float v) {
            unsigned r;
            asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(r) : "f"(v));
            return r;
        }
        extern "C" __global__ void tf32(const float* a, const float* b, float* d) {
            const int i = threadIdx.x, g = i / 4, t = i % 4;
            float* const p = d + g * 8 + 2 * t;
            asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, "
                         "{%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
                         : "=f"(p[0]), "=f"(p[1]), "=f"(p[64]), "=f"(p[65])
                         : "r"(short_f(a[g * 8 + t])), "r"(short_f(a[(g + 8) * 8 + t])),
                           "r"(short_f(a[g * 8 + t + 4])), "r"(short_f(a[(g + 8) * 8 + t + 4])),
                           "r"(short_f(b[t * 8 + g])), "r"(short_f(b[(t + 4) * 8 + g])), "f"(0.f));
        }
    """
    code = """
        a, b = host[:32].reshape(8, 4), host[32:].reshape(4, 8)
        d = driver.on_device(np.zeros((8, 8)))
        kernels.launch("f64", 1, 32, driver.on_device(a), driver.on_device(b), d)
        want = a @ b + np.tile([1.0, 2.0], 4)
        assert np.allclose(driver.fetch(d, want), want, rtol=1e-14)
        rng = np.random.default_rng(2)
        a, b = (rng.normal(size=s).astype(np.float32) for s in ((16, 8), (8, 8)))
        d = driver.on_device(np.zeros((16, 8), np.float32))
        kernels.launch("tf32", 1, 32, driver.on_device(a), driver.on_device(b), d)
        got = driver.fetch(d, np.empty((16, 8), np.float32))
        error = np.abs(got - a @ b).max()
        assert 1e-6 < error < 5e-3, error  # ten bits
        # exact for numbers that have so few
        a, b = (rng.integers(-9, 9, s).astype(np.float32) for s in ((16, 8), (8, 8)))
        kernels.launch("tf32", 1, 32, driver.on_device(a), driver.on_device(b), d)
        assert (driver.fetch(d, got) == a @ b).all()
    """
    check(kernel, code)


def test_arithmetic_and_atomics() -> None:
    kernel = """
        extern "C" __global__ void k(const double* x, double* out, unsigned long long* n) {
            const int i = threadIdx.x;
            const float f = fabsf(float(x[i])) + 0.5f;
            double s, c;
            sincospi(x[i], &s, &c);
            out[i] = rsqrt(x[i] * x[i] + 1) + __expf(-f) + rsqrtf(f) + fma(x[i], 2.0, 1.0) + s + c;
            const float4 v = make_float4(f, 2 * f, 0, 1);
            out[64 + i] = max(v.x, 1.0) + min(i, 3LL) + __float2int_rn(2.5f) + __int_as_float(
                __float_as_int(v.y));
            out[128 + i] = double(__double2int_rz(x[i] * 1e12)) + __clz(1 << i % 31) + __ffs(i);
            atomicAdd(n, 1ull);
            atomicMax(n + 1, (unsigned long long)i);
            atomicMin((int*)(n + 2), -i);
            if (atomicCAS(n + 3, 0ull, i + 1ull) == 0) n[4] = 17;
            atomicExch(n + 5, 5ull);
        }
    """
    code = """
        out = driver.on_device(np.zeros(192))
        n = driver.on_device(np.zeros(6, np.uint64))
        kernels.launch("k", 1, 64, x, out, n)
        got = driver.fetch(out, np.empty(192)).reshape(3, 64)
        f = np.abs(host) + 0.5
        want = (host**2 + 1) ** -0.5 + np.exp(-f) + f**-0.5 + 2 * host + 1
        want += np.sin(np.pi * host) + np.cos(np.pi * host)
        assert np.abs(got[0] - want).max() < 1e-6, got[0] - want
        i = np.arange(64)
        want = np.maximum(f, 1) + np.minimum(i, 3) + 2 + 2 * f
        assert np.abs(got[1] - want).max() < 1e-6, got[1] - want
        want = np.clip(np.trunc(host * 1e12), -(2**31), 2**31 - 1) + 31 - i % 31
        want += [(k & -k).bit_length() for k in i.tolist()]
        assert (got[2] == want).all(), got[2] - want
        got = driver.fetch(n, np.empty(6, np.uint64))
        assert got[[0, 1, 4, 5]].tolist() == [64, 63, 17, 5], got
        assert got.view(np.int32)[4] == -63
        assert 1 <= got[3] <= 64
    """
    check(kernel, code)
