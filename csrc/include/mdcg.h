/* C interface of libmdcg: evaluate a .mdcg package (energy, forces, virial) without Python.
 *
 * Every function that can fail returns a status and leaves one sentence in mdcg_last_error() of the
 * calling thread. No function throws, prints or exits. Lengths are in Å, energies in eV. A model
 * may be used by one thread at a time, and different models by different threads at the same time.
 *
 * OpenMP threads share the work; results are the same to the last bit for any number of threads.
 * GNU OpenMP ends the process if the system refuses a thread. Before the number of threads grows,
 * the library therefore tries to start as many, and returns MDCG_ERROR_MEMORY if they are refused.
 * Other processes of the user can still take the last threads after this trial. */
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

/* This number changes when a function or the meaning of a field changes, but not when a field is
 * added at the end of a struct. Structs start with their size: set all bytes to 0, then `size`,
 * then what is needed. A caller that was compiled with an older header (a smaller size) is refused.
 * A caller with a newer header is refused only if it sets a field that this library does not know.
 */
#define MDCG_ABI_VERSION 2

typedef enum mdcg_status {
    MDCG_OK = 0,
    MDCG_ERROR_ARGUMENT = 1,    /* a null pointer, a size, an index, a type, a struct's size */
    MDCG_ERROR_FILE = 2,        /* missing, damaged, or of a newer version */
    MDCG_ERROR_UNSUPPORTED = 3, /* a layer, device or option that this library does not support */
    MDCG_ERROR_COMPILER = 4,    /* generated kernels were requested and cannot be made */
    MDCG_ERROR_MEMORY = 5,
    MDCG_ERROR_COMMUNICATION = 6, /* a callback returned non-zero */
    MDCG_ERROR_NUMERIC = 7,       /* energy or forces are not finite */
    MDCG_ERROR_INTERNAL = 8,      /* a fault of this library */
    MDCG_ERROR_DEVICE = 9,        /* no driver, no such device, or a device that was lost */
    MDCG_ERROR_INTERRUPTED = 10   /* the function given to mdcg_set_interrupt asked for it */
} mdcg_status;

typedef struct mdcg_model mdcg_model;

typedef struct mdcg_options {
    size_t size;         /* sizeof(mdcg_options) */
    const char* device;  /* "cpu", "cuda" (the first), "cuda:N", "hip" or "hip:N" (AMD);
                            null: "cpu" */
    const char* kernels; /* null or "auto": kernels of the cache; if they are missing, Python is
                            started to make them, and if it cannot, generic kernels run (on devices
                            that is an error). "generic": only with device "cpu". "generated": an
                            error instead of generic kernels. Or the name of a .mdcg-kernels file,
                            whose code then runs. */
    int threads;         /* 0: OpenMP's own choice */
    double skin;         /* Å by which edges of lists made here (make_edges) may be longer than the
                            cutoff, so that lists last for some steps; 0: 1, negative: no skin */
    const char* precision; /* null or "": that of the package; "fp32" or "float32", "fp64" or
                              "float64": the same, or an error */
    /* A functional that the package names, such as "pbe": opens the dispersion of the package
     * (mdcg-patch --dispersion) in place of its network. It is another model, whose results are to
     * be added to those of the network. It finds its neighbours itself: set make_edges and, if
     * there are ranks, give copies of nodes and ghosts up to info.r_max. Null: the network. */
    const char* dispersion;
    const char* damping;      /* with dispersion: null or "bj" (Becke and Johnson), or "zero" */
    double dispersion_cutoff; /* with dispersion: cutoff of pairs, Å; 0: 21.17 (40 Bohr) */
    /* Memory that an evaluation may take: a share of that of the device, as "90 %", or a size, as
     * "120 GB" (or MB, TB, MiB, GiB). A system that is given with a cell or is open, has make_edges
     * set and needs more is evaluated in domains, one after the other. On CPUs the sizes of domains
     * are estimates. Null or "": all memory, and no domains. Dispersion is not divided. */
    const char* memory;
    int memory_models; /* number of models on this device that share `memory`; 0: 1 */
    /* Non-zero: in cells that change, as at constant pressure, a long-range sum goes over the waves
     * of the first cell that this model evaluates, with the same integers, so that the energy is
     * smooth. Cells that are strained by more than 25 % from it (the norm of the strain tensor
     * (F^T F - 1) / 2: 22 % of one length, or 13 % of all three), and batches, are refused. 0:
     * waves enter and leave the sum with the cell, as in the original model. */
    int fixed_waves;
} mdcg_options;

typedef struct mdcg_info {
    size_t size;
    double r_max; /* Å, the largest cutoff of any layer */
    int num_types;
    const char* const* type_names; /* [num_types], owned by the model */
    const int* atomic_numbers;     /* [num_types], or null */
    int double_precision;          /* 1: float64, 0: float32 */
    int num_exchanges;             /* calls of forward per evaluation; 0: ghosts need none */
    const char* manifest;          /* JSON, owned by the model */
    int exchange_bytes;            /* longest row that a communicator gets; 0: none */
    const char* digest;            /* SHA-256 of the contents of the package, 64 hexadecimal digits;
                                      owned by the model */
    int has_energy;                /* 0: the network computes dipoles alone, which are the last
                                      three descriptors of a node; energies and forces are refused */
    int has_charges;               /* 1: the last descriptor of a node is its charge, e */
    /* Numbers that the model reads once for each system, such as total_charge (e) and total_spin
     * (multiplicity 2S+1); see mdcg_system.inputs. Owned by the model. */
    int num_inputs;
    const char* const* input_names; /* [num_inputs] */
    const double* input_defaults;   /* [num_inputs]; NaN: it has none, and must be given */
    int is_long_range; /* 1: a long-range sum is part of the energy, which needs cell and
                          periodic beside edges, and `sum` of a communicator */
    int has_dipoles;   /* 1: the last three descriptors of a node are its dipole, in the unit of the
                          training data */
} mdcg_info;

typedef struct mdcg_device {
    size_t size;
    int number;             /* of the device in this process, as in "cuda:N" or "hip:N" */
    int count;              /* devices that this process sees */
    unsigned char uuid[16]; /* the same in all processes; cards of AMD may share it */
} mdcg_device;

/* Identifies a list of edges, so that a model reads it only once. Set both numbers to 0 at first,
 * `edges` to 0 when the edges change, and `shifts` to 0 when only the shifts change. A successful
 * evaluation writes the numbers. If the model still holds this list, it reads only positions and
 * types; otherwise (after a batch, an error or another system) it reads the arrays again, so pass
 * them in every call. With a communicator, all ranks must evaluate the same systems in the same
 * order and set their numbers to 0 together. */
typedef struct mdcg_list {
    int64_t edges, shifts;
} mdcg_list;

/* Nodes 0 .. num_local-1 receive messages and have energies; num_local .. num_nodes-1 are ghosts,
 * which only send. */
typedef struct mdcg_system {
    size_t size;
    int64_t num_local, num_nodes;
    const double* positions; /* [num_nodes][3] Å */
    const int32_t* types;    /* [num_nodes] index into type_names */
    /* Directed edges, each pair in both directions, in any order. Edges longer than r_max are
     * ignored, so a list with a skin can be used. */
    int64_t num_edges;
    const int32_t* sender;   /* [num_edges] */
    const int32_t* receiver; /* [num_edges] < num_local */
    const double* shifts;    /* [num_edges][3] Å added to pos[receiver] - pos[sender];
                                null: none */
    /* Used with make_edges, and by models with a long-range sum also if edges are given. */
    const double* cell;  /* [3][3] Å, rows are vectors; null: an open system */
    const int* periodic; /* [3] which directions are periodic; null: all, if there is a cell */
    /* Identifies the list (see mdcg_list); null: it is read in each call. */
    mdcg_list* list;
    /* Non-zero: the library makes the full list of neighbours; edges must be absent. Without
     * ghosts, communicator and copies of nodes, it makes the list from positions and cell, and
     * keeps it while atoms move less than the skin allows. On devices there may also be ghosts, a
     * communicator or copies of nodes (below), but then no cell, except for a long-range sum: the
     * list is made whenever `list` does not name the list that the model holds. */
    int make_edges;
    /* Instead of shifts: edge e has the shift image_shifts[image[e]]. The shifts may change while
     * `list` names the same edges, but not `image`. */
    const int32_t* image; /* [num_edges] < num_images; null: see shifts */
    int64_t num_images;
    const double* image_shifts; /* [num_images][3] Å */
    /* With make_edges: skin of the list in Å; 0: that of the options, negative: none. */
    double skin;
    /* With make_edges and no cell: copies of nodes that can be neighbours, such as periodic images.
     * Copy c is at the position of node copy_node[c] minus image_shifts[copy_image[c]]; the first
     * row of image_shifts must be zero. The shifts may change while `list` names the same edges,
     * but not the copies. */
    int64_t num_copies;
    const int32_t* copy_node;  /* [num_copies] < num_nodes */
    const int32_t* copy_image; /* [num_copies] < num_images */
    /* If not null, forces, virial and virials are derivatives of the sum of the energies of local
     * nodes times these weights, such as positions of atoms for a heat flux. */
    const double* energy_weights; /* [num_local] */
    /* The last num_inner local nodes have no ghost within the cutoff and the skin of the list,
     * which is not checked. With a communicator, devices compute them while rows of ghosts are
     * exchanged. 0: none is known. */
    int64_t num_inner;
    /* Inputs of the system, in the order of mdcg_info.input_names; NaN: the default. They may
     * change from call to call, which keeps the list. All ranks must give the same. */
    const double* inputs; /* [num_inputs]; null: all defaults */
} mdcg_system;

/* Many systems without ghosts that do not interact, such as molecules and crystals of any size.
 * System s has nodes first_node[s] .. first_node[s + 1] - 1. The library finds the edges. */
typedef struct mdcg_batch {
    size_t size;
    int64_t num_systems;
    const int64_t* first_node; /* [num_systems + 1], the first is 0 */
    const double* positions;   /* [num_nodes][3] Å */
    const int32_t* types;      /* [num_nodes] */
    const double* cells;       /* [num_systems][3][3] Å, rows are vectors; null: all are open */
    const int* periodic; /* [num_systems][3] which directions are periodic; null: all, if there
                            are cells */
    int on_device;       /* non-zero: positions and all results are in the memory of the
                            model's device, and results are complete when the call returns.
                            Descriptors must be null. */
    /* Inputs of each system; see mdcg_system. Systems with equal inputs are evaluated together; in
     * the memory of a device only those that follow each other. */
    const double* inputs; /* [num_systems][num_inputs]; null: all defaults */
} mdcg_batch;

/* Results with a null pointer are not computed. With a communicator the same pointers must be null
 * on all ranks, also on those without nodes. An energy alone needs no backward pass. After an error
 * the contents are undefined. */
typedef struct mdcg_results {
    size_t size;
    double* energy;      /* [1] eV, sum over the local nodes */
    double* energies;    /* [num_local] eV */
    double* forces;      /* [num_nodes][3] eV/Å; those of ghosts must be added to their owners */
    double* virial;      /* [3][3] sum of r (x) f, in eV; stress = -virial / volume */
    double* virials;     /* [num_nodes][3][3] eV, with `virial` as their sum */
    double* descriptors; /* [num_local][descriptor width]; see mdcg_descriptor_width */
} mdcg_results;

/* The rows that this rank and another one need of each other. Peers are items of an array, without
 * a size. Ghost 0 is node num_local. */
typedef struct mdcg_peer {
    int rank;
    int64_t sent_first, num_sent;    /* the part of `sent` that goes to the other rank */
    int64_t ghost_first, num_ghosts; /* the ghosts that the other rank owns */
    int64_t there_sent_first;        /* where the rows for this rank begin in the other's `sent` */
    int64_t there_ghost_first;       /* where the atoms of this rank begin in the other's ghosts */
} mdcg_peer;

/* Ghost exchange. `rows` has num_nodes rows of `width` items of `item_bytes` bytes (4: float, 8:
 * double); row n belongs to node n of the system. forward: copy rows of owners to their ghosts;
 * reverse: add rows of ghosts to their owners. Both are called from the thread that evaluates, the
 * same number of times and in the same order on every rank, also where num_local or num_edges is 0.
 * They must not throw: a non-zero return ends the evaluation with MDCG_ERROR_COMMUNICATION.
 *
 * Devices copy all rows to the host and back for these functions. They copy fewer if the host gives
 * `sent`, forward_rows and reverse_rows, which are then called instead. `sent` are the local nodes
 * whose rows other ranks need, in any order and as often as needed (-1: a row of zeros); it must
 * not change while the list of edges is the same. forward_rows: send `sent_rows`, a row for each of
 * `sent`, and fill `ghost_rows`, the rows of nodes num_local .. num_nodes-1. reverse_rows: send
 * `ghost_rows`, and fill `sent_rows`, which the library then adds to the owners. Both arrays are in
 * pinned memory. */
typedef struct mdcg_communicator {
    size_t size;
    void* context;
    int (*forward)(void* context, void* rows, int width, int item_bytes);
    int (*reverse)(void* context, void* rows, int width, int item_bytes);
    int64_t num_sent;
    const int64_t* sent; /* [num_sent] */
    int (*forward_rows)(void* context, const void* sent_rows, void* ghost_rows, int row_bytes);
    int (*reverse_rows)(void* context, const void* ghost_rows, void* sent_rows, int row_bytes);
    /* If gather is set, rows go directly from one device to another, which must be in one machine.
     * forward_rows and reverse_rows must be set, but are not called. Each rank is a process. The
     * peers together have each row of `sent` once and each ghost once; no rank is its own peer.
     * They must not change while the list of edges is the same, and must agree with those of the
     * other rank, which is not checked. gather: copy `bytes` at `mine` of each rank to `all`, in
     * the order of ranks; with no bytes it is a barrier. Wrong `sent` or `peers`, and missing
     * memory or access for the exchange, are errors on all ranks. After any other error of one
     * rank, also while its list of edges is made, the others may wait in gather: end them. */
    int rank, num_ranks;
    int64_t num_peers;
    const mdcg_peer* peers; /* [num_peers] */
    int (*gather)(void* context, const void* mine, void* all, int bytes);
    /* Replaces values[i] on every rank by their sum over all ranks. Only needed by models with a
     * long-range sum, which call it once for each sum in an evaluation, on every rank, also on
     * those without atoms. Integers have one sum whatever the order is, so all ranks get the same.
     */
    int (*sum)(void* context, int64_t* values, int64_t count);
} mdcg_communicator;

MDCG_API int mdcg_abi_version(void); /* MDCG_ABI_VERSION of the library */
MDCG_API const char* mdcg_version(void);
/* The last failure of the calling thread, one sentence; empty before the first. */
MDCG_API const char* mdcg_last_error(void);
/* The same sentence with names[n], such as the host's number of an atom, in place of the number of
 * node n. `names`: [num_nodes] of the evaluation that failed. Valid until the next call. */
MDCG_API const char* mdcg_last_error_about(const int64_t* names);
/* Returns `text`, such as a name from a file, with escapes in place of characters that a terminal
 * would act on: control characters, marks that reorder or hide text, and bytes that are not UTF-8.
 * Valid until the next call of this thread; empty if text is null. */
MDCG_API const char* mdcg_printable(const char* text);
/* Lets the host end long calls, for example after Ctrl-C. The threads that have called the library
 * call poll(context) at most every 50 ms, while kernels are compiled and between parts of an
 * evaluation (on devices: before it). If it returns non-zero, the call returns
 * MDCG_ERROR_INTERRUPTED; the model can be evaluated again. With a communicator the other ranks
 * then wait: end them. `poll` null: calls are not interrupted, which is the default. This applies
 * to the whole process; call it while no other function of the library runs. */
MDCG_API void mdcg_set_interrupt(int (*poll)(void* context), void* context);
/* tell(context, sentence) receives messages for the user during long calls, such as which process
 * the library waits for. It is called by the threads that have called the library. `tell` null: no
 * messages, which is the default. This applies to the whole process; call it while no other
 * function of the library runs. */
MDCG_API void mdcg_set_notice(void (*tell)(void* context, const char* sentence), void* context);

/* Looks for a driver and for device "cuda", "cuda:N", "hip" or "hip:N". MDCG_ERROR_DEVICE says what
 * is missing. */
MDCG_API mdcg_status mdcg_find_device(const char* name, mdcg_device* device);

/* Opens a package. It is checked, and contains no code. `options` null: all defaults. On failure
 * *model is null. */
MDCG_API mdcg_status mdcg_open(const char* path, const mdcg_options* options, mdcg_model** model);
/* Opens another model from the package that `opened` has read, even if the file has changed since:
 * its dispersion, or the same network for another thread or device. */
MDCG_API mdcg_status mdcg_open_same(const mdcg_model* opened, const mdcg_options* options,
                                    mdcg_model** model);
MDCG_API void mdcg_close(mdcg_model* model); /* null does nothing */
/* Loads the kernels now instead of in the first evaluation. If the cache does not have them, Python
 * is started to make them: MDCG_PYTHON, or that of the environment with this library. One process
 * of a machine makes them, and others that need them wait. */
MDCG_API mdcg_status mdcg_prepare(mdcg_model* model);
/* Whether rows can go directly between the devices of all ranks: opens small windows, and reads
 * what the peers of the communicator, of which only the ranks count, have written. Only gather is
 * called. All ranks call this together, and get the same answer: MDCG_OK, MDCG_ERROR_DEVICE if they
 * cannot, or another failure; mdcg_last_error() is about the first rank that has a reason. */
MDCG_API mdcg_status mdcg_check_peers(mdcg_model* model, const mdcg_communicator* communicator);
MDCG_API mdcg_status mdcg_describe(const mdcg_model* model, mdcg_info* info);
MDCG_API int mdcg_descriptor_width(const mdcg_model* model); /* -1: model is null */
MDCG_API mdcg_status mdcg_set_threads(mdcg_model* model, int threads);
/* A communicator is needed if there are ghosts and info.num_exchanges is not 0; else it may be
 * null.
 */
MDCG_API mdcg_status mdcg_evaluate(mdcg_model* model, const mdcg_system* system,
                                   const mdcg_communicator* communicator,
                                   const mdcg_results* results);
/* Evaluates many systems, on devices as many at once as there is memory for, neighbour lists
 * included. In `results`, energy is [num_systems] and virial [num_systems][3][3]; other rows are
 * those of the nodes of the batch. */
MDCG_API mdcg_status mdcg_evaluate_batch(mdcg_model* model, const mdcg_batch* batch,
                                         const mdcg_results* results);
/* JSON: kernels and where each came from, milliseconds of each layer, edges, bytes. Devices capture
 * and replay steps; times of layers are then those of the last step that was not replayed, which is
 * the first of a system. Of a system in domains (see mdcg_options.memory) also their number, the
 * nodes of the largest, and their milliseconds together; the rest is that of the last domain. Owned
 * by the model, valid until the next call. */
MDCG_API const char* mdcg_report(mdcg_model* model);
/* One line for logs: architecture, inputs of the structure that the package was made for (such as
 * total_charge=-1) or that it reads, precision, device, threads (of "cpu"), where the kernels came
 * from (named, cached, compiled, generic), and, if the cache of kernels is not used, the reason.
 * Owned by the model, valid until the next call. */
MDCG_API const char* mdcg_summary(mdcg_model* model);

#ifdef __cplusplus
}
#endif
#endif
