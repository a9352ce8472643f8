/* C interface of libmdcg: evaluate a .mdcg package (energy, forces, virial) without Python.
 *
 * Every function that can fail returns a status and leaves one sentence in mdcg_last_error() of the
 * calling thread; none throws, prints or exits. Lengths are in Å, energies in eV. A model may be
 * used by one thread at a time; different models by different threads. Inside, OpenMP threads share
 * the work; results do not depend on their number, to the last bit. */
#ifndef MDCG_H
#define MDCG_H

#include <stddef.h>
#include <stdint.h>

#if defined(_WIN32)
#define MDCG_API
#else
#define MDCG_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Changes when a function or a struct does; structs start with their size, so that fields can be
 * added at their end without changing it. */
#define MDCG_ABI_VERSION 1

typedef enum mdcg_status {
    MDCG_OK = 0,
    MDCG_ERROR_ARGUMENT = 1,    /* a null pointer, a size, an index, a type, a struct's size */
    MDCG_ERROR_FILE = 2,        /* not there, damaged, or of a newer version */
    MDCG_ERROR_UNSUPPORTED = 3, /* a layer or a device this library has not */
    MDCG_ERROR_COMPILER = 4,    /* generated kernels were asked for and cannot be had */
    MDCG_ERROR_MEMORY = 5,
    MDCG_ERROR_COMMUNICATION = 6, /* a callback returned non-zero */
    MDCG_ERROR_NUMERIC = 7        /* energy or forces are not finite */
} mdcg_status;

typedef struct mdcg_model mdcg_model;

typedef struct mdcg_options {
    size_t size;         /* sizeof(mdcg_options) */
    const char* device;  /* "cpu"; null: "cpu" */
    const char* kernels; /* null or "auto": bundled, cached, compiled or else generic ones;
                            "generic": run no code of the package; "generated": an error where
                            generic ones would run */
    int threads;         /* 0: OpenMP's own choice */
} mdcg_options;

typedef struct mdcg_info {
    size_t size;
    double r_max; /* of the whole model */
    int num_types;
    const char* const* type_names; /* [num_types], owned by the model */
    const int* atomic_numbers;     /* [num_types], or null */
    int double_precision;          /* 1: float64, 0: float32 */
    int num_exchanges;             /* communications per pass; 0: ghosts need none */
    const char* manifest;          /* JSON */
    int exchange_bytes;            /* longest row that a communicator is given; 0: none */
} mdcg_info;

/* Nodes 0 .. num_local-1 receive messages and have energies; num_local .. num_nodes-1 are ghosts,
 * which only send. */
typedef struct mdcg_system {
    size_t size;
    int64_t num_local, num_nodes;
    const double* positions; /* [num_nodes][3] */
    const int32_t* types;    /* [num_nodes] */
    /* Either edges: those longer than r_max are left out, so a list with a skin will do. */
    int64_t num_edges;
    const int32_t* sender;   /* [num_edges] */
    const int32_t* receiver; /* [num_edges] < num_local */
    const double* shifts;    /* [num_edges][3] added to pos[receiver] - pos[sender];
                                null: none */
    /* or a cell (edges absent, no ghosts): full periodic neighbour list is made here. */
    const double* cell;  /* [3][3] rows are vectors; null: none */
    const int* periodic; /* [3] */
    /* Non-zero: the edges (sender, receiver, shifts, num_edges) are those of the last call, only
     * positions moved: orders and buffers are reused. */
    int same_edges;
} mdcg_system;

/* What is wanted: null pointers are left out, and nothing is computed for them. */
typedef struct mdcg_results {
    size_t size;
    double* energy;      /* [1] of the local nodes */
    double* energies;    /* [num_local] */
    double* forces;      /* [num_nodes][3]; those of ghosts are to be added to their owners */
    double* virial;      /* [3][3] sum of r (x) f, in eV; stress = -virial / volume */
    double* virials;     /* [num_nodes][3][3], sum to virial */
    double* descriptors; /* [num_local][descriptor width]; see mdcg_descriptor_width */
} mdcg_results;

/* Ghost exchange. A row has `width` items of `item_bytes` bytes; row n of node n. forward: copy
 * rows of owners to their ghosts; reverse: add rows of ghosts to their owners. Non-zero return ends
 * the evaluation with MDCG_ERROR_COMMUNICATION. */
typedef struct mdcg_communicator {
    size_t size;
    void* context;
    int (*forward)(void* context, void* rows, int width, int item_bytes);
    int (*reverse)(void* context, void* rows, int width, int item_bytes);
} mdcg_communicator;

MDCG_API int mdcg_abi_version(void);
MDCG_API const char* mdcg_version(void);
MDCG_API const char* mdcg_last_error(void);

/* Reads a package. Nothing in it is executed before the first evaluation. */
MDCG_API mdcg_status mdcg_open(const char* path, const mdcg_options* options, mdcg_model** model);
MDCG_API void mdcg_close(mdcg_model* model);
MDCG_API mdcg_status mdcg_describe(const mdcg_model* model, mdcg_info* info);
MDCG_API int mdcg_descriptor_width(const mdcg_model* model);
MDCG_API mdcg_status mdcg_set_threads(mdcg_model* model, int threads);
MDCG_API mdcg_status mdcg_evaluate(mdcg_model* model, const mdcg_system* system,
                                   const mdcg_communicator* communicator, mdcg_results* results);
/* JSON: kernels and where each came from, milliseconds of each layer, edges, bytes. Owned by the
 * model, valid until the next call. */
MDCG_API const char* mdcg_report(mdcg_model* model);
/* One line for logs: architecture, precision, device, threads, and where the kernels came from
 * (bundle, cache, compiled, generic). Owned by the model, valid until the next call. */
MDCG_API const char* mdcg_summary(mdcg_model* model);

#ifdef __cplusplus
}
#endif
#endif
