/* Counts what is allocated in steps after a few first ones:  allocations PACKAGE KERNELS THREADS
 * prints one line per way to evaluate. malloc and its kin, and mmap, are those of this file. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "mdcg.h"

#define SIDE 5
#define ATOMS (SIDE * SIDE * SIDE)
#define SPACING 1.7
#define MAX_EDGES (ATOMS * 400)
#define WARM_UP 12
#define STEPS 20

static long count; /* from all threads */

#ifdef TRACE
void trace(void);
#define COUNT (void)(__atomic_add_fetch(&count, 1, __ATOMIC_RELAXED), trace())
#else
#define COUNT (void)__atomic_add_fetch(&count, 1, __ATOMIC_RELAXED)
#endif

/* of glibc */
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t size) {
    COUNT;
    return __libc_malloc(size);
}
void* calloc(size_t items, size_t size) {
    COUNT;
    return __libc_calloc(items, size);
}
void* realloc(void* old, size_t size) {
    COUNT;
    return __libc_realloc(old, size);
}
void* memalign(size_t alignment, size_t size) {
    COUNT;
    return __libc_memalign(alignment, size);
}
void* aligned_alloc(size_t alignment, size_t size) { return memalign(alignment, size); }
int posix_memalign(void** out, size_t alignment, size_t size) {
    *out = memalign(alignment, size);
    return *out == NULL;
}
void* mmap(void* address, size_t size, int protection, int flags, int file, off_t offset) {
    COUNT;
    return (void*)syscall(SYS_mmap, address, size, protection, flags, file, offset);
}

static double sites[3 * ATOMS], positions[3 * ATOMS], cell[9];
static int32_t types[ATOMS], sender[MAX_EDGES], receiver[MAX_EDGES];
static double shifts[3 * MAX_EDGES];
static const int periodic[3] = {1, 1, 1};
static mdcg_model* model;
static mdcg_info info;

static unsigned long state = 4711;
static double uniform(void) {
    state = state * 6364136223846793005UL + 1442695040888963407UL;
    return (double)(state >> 40) / 16777216.0;
}

static void move(double width) {
    for (int i = 0; i < 3 * ATOMS; ++i) positions[i] = sites[i] + width * (2.0 * uniform() - 1.0);
}

/* All pairs of the open cluster closer than `reach`, more or fewer from call to call. */
static int64_t make_edges(double reach) {
    int64_t edges = 0;
    for (int r = 0; r < ATOMS; ++r)
        for (int s = 0; s < ATOMS; ++s) {
            double square = 0.0;
            for (int d = 0; d < 3; ++d) {
                const double x = positions[3 * r + d] - positions[3 * s + d];
                square += x * x;
            }
            if (r == s || square > reach * reach || edges == MAX_EDGES) continue;
            sender[edges] = s;
            receiver[edges++] = r;
        }
    return edges;
}

/* width: how far atoms jump; given: edges from here, 2: the same ones in every step. */
static int measure(const char* name, double width, int given, int all, double r_max) {
    static double energy, energies[ATOMS], forces[3 * ATOMS], virial[9], virials[9 * ATOMS];
    mdcg_results results = {0};
    long found = 0;
    int64_t edges = 0;
    results.size = sizeof results;
    results.energy = &energy;
    if (all) {
        results.energies = energies;
        results.forces = forces;
        results.virial = virial;
        results.virials = all > 1 && !info.is_long_range ? virials : NULL;
    }
    mdcg_list list = {0, 0};
    for (int step = 0; step < WARM_UP + STEPS; ++step) {
        mdcg_system system = {0};
        move(width);
        system.size = sizeof system;
        system.num_local = system.num_nodes = ATOMS;
        system.positions = positions;
        system.types = types;
        if (given) {
            if (given == 1 || step == 0) {
                edges = make_edges(r_max + 0.5);
                list.edges = list.shifts = 0;
            }
            system.list = &list;
            system.num_edges = edges;
            system.sender = sender;
            system.receiver = receiver;
            system.shifts = shifts;
        }
        if (!given || info.is_long_range) {
            system.cell = cell;
            system.periodic = periodic;
        }
        system.make_edges = !given;
        const long before = __atomic_load_n(&count, __ATOMIC_RELAXED);
        if (mdcg_evaluate(model, &system, NULL, &results) != MDCG_OK) {
            fprintf(stderr, "%s: %s\n", name, mdcg_last_error());
            return 1;
        }
        if (step >= WARM_UP) found += __atomic_load_n(&count, __ATOMIC_RELAXED) - before;
    }
    printf("%s: %ld\n", name, found);
    return 0;
}

int main(int argc, char** argv) {
    mdcg_options options = {0};
    int failed = 0;
    if (argc != 4) return 2;
    options.size = sizeof options;
    options.kernels = argv[2];
    options.threads = atoi(argv[3]);
    if (mdcg_open(argv[1], &options, &model) != MDCG_OK) {
        fprintf(stderr, "%s\n", mdcg_last_error());
        return 1;
    }
    info.size = sizeof info;
    failed |= mdcg_describe(model, &info) != MDCG_OK;
    printf("opening: %ld\n", count); /* it is this malloc that everybody calls */
    for (int i = 0; i < ATOMS; ++i) {
        const int at[3] = {i / SIDE / SIDE, i / SIDE % SIDE, i % SIDE};
        for (int d = 0; d < 3; ++d) sites[3 * i + d] = SPACING * (at[d] + 0.1 * uniform());
        types[i] = i % info.num_types;
    }
    for (int d = 0; d < 3; ++d) cell[4 * d] = SPACING * (SIDE + 0.2);
    failed |= measure("cell, list kept", 0.02, 0, 1, info.r_max);
    failed |= measure("cell, new list", 0.35, 0, 1, info.r_max);
    failed |= measure("cell, all results", 0.35, 0, 2, info.r_max);
    failed |= measure("cell, energy alone", 0.35, 0, 0, info.r_max);
    failed |= measure("edges given", 0.35, 1, 1, info.r_max);
    failed |= measure("same edges", 0.2, 2, 1, info.r_max);
    for (int d = 0; d < 3; ++d) cell[4 * d] = 30.0; /* long-range sums take a mesh */
    failed |= measure("large cell", 0.35, 0, 1, info.r_max);
    mdcg_close(model);
    return failed;
}
