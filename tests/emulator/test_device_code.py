"""CUDA C++ on the emulated device: values that are read too early are NaN."""

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
