/* C interface of libmdcg: evaluate a .mdcg package (energy, forces, virial) without Python.
 *
 * Every function that can fail returns a status and leaves one sentence in mdcg_last_error() of the
 * calling thread; none throws, prints or exits. Lengths are in Å, energies in eV. A model may be
 * used by one thread at a time; different models by different threads. Inside, OpenMP threads share
 * the work; results do not depend on their number, to the last bit. GNU OpenMP ends the process
 * where the system refuses a thread: before a team grows, as many threads are therefore started for
 * a trial, and MDCG_ERROR_MEMORY is returned where they are refused. What this cannot prevent: that
 * other processes of the user take the last threads between the trial and the start of the team. */
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

/* Changes when a function or the meaning of a field does; a field that is added at the end of a
 * struct does not change it. Structs start with their size: set all bytes to 0, then `size`, then
 * what is needed. A caller whose header is older (a smaller size) is refused: compile it again. One
 * whose header is newer is refused only if it sets a field that this library does not know. */
#define MDCG_ABI_VERSION 2

typedef enum mdcg_status {
    MDCG_OK = 0,
    MDCG_ERROR_ARGUMENT = 1,    /* a null pointer, a size, an index, a type, a struct's size */
    MDCG_ERROR_FILE = 2,        /* not there, damaged, or of a newer version */
    MDCG_ERROR_UNSUPPORTED = 3, /* a layer or a device this library has not */
    MDCG_ERROR_COMPILER = 4,    /* generated kernels were asked for and cannot be had */
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
    const char* device;  /* "cpu", "cuda" (the first) or "cuda:N"; null: "cpu" */
    const char* kernels; /* null or "auto": those of the cache, which Python is started for where
                            they are missing, or else generic ones (on devices: an error);
                            "generic": on "cpu" alone; "generated": an error where generic ones
                            would run; the name of a .mdcg-kernels file: those, whose code runs */
    int threads;         /* 0: OpenMP's own choice */
    double skin;         /* Å by which lists made here (make_edges) are longer, to be kept for some
                            steps; 0: 1, negative: none */
    const char* precision; /* null or "": that of the package; "fp32" or "float32", "fp64" or
                              "float64": the same, or an error; of float32 packages on devices
                              "tf32" and "bf16": faster products with weights, of numbers rounded
                              to 11 and 8 bits */
    /* Not null: opens the dispersion of the package (mdcg-patch --dispersion) in place of its
     * network: another model, whose results are to be added to those of the
     * network. It finds its neighbours itself: set make_edges, with copies of nodes and ghosts up
     * to info.r_max where there are ranks. "pbe" or another functional that the package names. */
    const char* dispersion;
    const char* damping;      /* null or "bj": of Becke and Johnson; "zero"; only with dispersion */
    double dispersion_cutoff; /* Å, of pairs; 0: 21.17, which is 40 Bohr; only with dispersion */
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
    const char* digest;            /* SHA-256 of all that the package holds, 64 hexadecimal digits;
                                      owned by the model */
    int has_energy;                /* 0: the network gives dipoles alone, which are the last three
                                      descriptors of a node; energies and forces are refused */
} mdcg_info;

typedef struct mdcg_device {
    size_t size;
    int number;             /* of the device in this process, as in "cuda:N" */
    int count;              /* devices that this process sees */
    unsigned char uuid[16]; /* the same for the same device in all processes */
} mdcg_device;

/* Identifies a list of edges, so that a model reads it only once. Set both numbers to 0 at first,
 * `edges` to 0 when edges change, and `shifts` to 0 when only shifts change. A successful
 * evaluation writes the numbers. If the model still holds this list, it reads only positions and
 * types; otherwise (after a batch, an error or another system) it reads the arrays again, so give
 * them in every call. With a communicator, all ranks evaluate the same systems in the same order
 * and set their numbers to 0 together. */
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
    /* Directed edges, each pair in both directions, in any order. Those longer than r_max are left
     * out, so a list with a skin will do. */
    int64_t num_edges;
    const int32_t* sender;   /* [num_edges] */
    const int32_t* receiver; /* [num_edges] < num_local */
    const double* shifts;    /* [num_edges][3] Å added to pos[receiver] - pos[sender];
                                null: none */
    /* Used with make_edges alone. */
    const double* cell;  /* [3][3] Å, rows are vectors; null: an open system */
    const int* periodic; /* [3] which of them repeat; null: all, if there is a cell */
    /* Identifies the list (see mdcg_list); null: it is read in each call. */
    mdcg_list* list;
    /* Non-zero: the full list of neighbours is made here, from positions and cell, and kept while
     * atoms move less than the skin allows; edges must be absent. With a cell, or of an open
     * system, there are no ghosts, no communicator. On devices: with ghosts, a communicator or
     * copies of nodes (below), and no cell, the list is made whenever `list` names no earlier one.
     */
    int make_edges;
    /* Instead of shifts, where few of them differ: edge e has row image[e] of image_shifts. Rows
     * may change while `list` names the same edges, image may not. */
    const int32_t* image; /* [num_edges] < num_images; null: see shifts */
    int64_t num_images;
    const double* image_shifts; /* [num_images][3] Å */
    /* With make_edges: Å by which the list is longer; 0: that of the options, negative: none. */
    double skin;
    /* With make_edges and no cell: copies of nodes, which edges lead to as well, such as periodic
     * images. Copy c is where node copy_node[c] is, less row copy_image[c] of image_shifts, whose
     * first row must be zeros. Rows may change while `list` names the same edges, the copies may
     * not. */
    int64_t num_copies;
    const int32_t* copy_node;  /* [num_copies] < num_nodes */
    const int32_t* copy_image; /* [num_copies] < num_images */
    /* Forces, virial and virials become derivatives of the sum of each local node's energy times
     * its weight here, such as of the positions of atoms for a heat flux; null: of the total
     * energy. */
    const double* energy_weights; /* [num_local] */
} mdcg_system;

/* Many systems without ghosts that do not interact, such as molecules and crystals of any size:
 * system s has nodes first_node[s] .. first_node[s + 1] - 1. Their edges are found here. */
typedef struct mdcg_batch {
    size_t size;
    int64_t num_systems;
    const int64_t* first_node; /* [num_systems + 1], the first is 0 */
    const double* positions;   /* [num_nodes][3] Å */
    const int32_t* types;      /* [num_nodes] */
    const double* cells;       /* [num_systems][3][3] Å, rows are vectors; null: all are open */
    const int* periodic;       /* [num_systems][3] which of them repeat; null: all, if there are
                                  cells */
    int on_device;             /* non-zero: positions and all results are in the memory of the
                                  model's device, and complete there; nothing of them goes through
                                  the host. Descriptors must be null. */
} mdcg_batch;

/* What is wanted: null pointers are left out, and nothing is computed for them, so with a
 * communicator the same ones must be null on all ranks, also where there are no nodes. An energy
 * alone costs no backward pass. After an error the contents are undefined. */
typedef struct mdcg_results {
    size_t size;
    double* energy;      /* [1] of the local nodes */
    double* energies;    /* [num_local] */
    double* forces;      /* [num_nodes][3]; those of ghosts are to be added to their owners */
    double* virial;      /* [3][3] sum of r (x) f, in eV; stress = -virial / volume */
    double* virials;     /* [num_nodes][3][3], sum to virial */
    double* descriptors; /* [num_local][descriptor width]; see mdcg_descriptor_width */
} mdcg_results;

/* What this rank and another one need of each other; an item of an array, without a size. */
typedef struct mdcg_peer {
    int rank;
    int64_t sent_first, num_sent;    /* of `sent`: those that go there */
    int64_t ghost_first, num_ghosts; /* of the ghosts (0: node num_local): those from there */
    int64_t there_sent_first;        /* of its `sent`: the first that comes here */
    int64_t there_ghost_first;       /* of its ghosts: the first that is from here */
} mdcg_peer;

/* Ghost exchange. `rows` has num_nodes rows of `width` items of `item_bytes` bytes (4: float, 8:
 * double); row n is of node n as the system numbers them. forward: copy rows of owners to their
 * ghosts; reverse: add rows of ghosts to their owners. Both are called from the thread that
 * evaluates, the same number of times and in the same order on every rank, also where num_local or
 * num_edges is 0. They must not throw: a non-zero return ends the evaluation with
 * MDCG_ERROR_COMMUNICATION.
 *
 * On a device all rows are copied to the host for that and back; those that travel alone where the
 * host names them: `sent` are the local nodes whose rows others need, in any order and as often as
 * needed (-1: a row of zeros), the same for the same list of edges. forward_rows: send `sent_rows`,
 * a row for each of `sent`, and fill `ghost_rows`, those of nodes num_local .. num_nodes-1.
 * reverse_rows: send `ghost_rows`, and fill `sent_rows`, which is then added to the owners. Both
 * work on pinned memory. */
typedef struct mdcg_communicator {
    size_t size;
    void* context;
    int (*forward)(void* context, void* rows, int width, int item_bytes);
    int (*reverse)(void* context, void* rows, int width, int item_bytes);
    int64_t num_sent;
    const int64_t* sent;
    int (*forward_rows)(void* context, const void* sent_rows, void* ghost_rows, int row_bytes);
    int (*reverse_rows)(void* context, const void* ghost_rows, void* sent_rows, int row_bytes);
    /* On a device, once per evaluation: *flag becomes 1 on all ranks where it is on any. Null: a
     * step that all would have to repeat, for very short edges, is an error. */
    int (*any)(void* context, int* flag);
    /* On devices of one machine rows need not touch the host: where gather is set, they go straight
     * from one device to the other. forward_rows and reverse_rows must be set, and are not called.
     * Ranks are processes of their own. Each row of `sent` belongs to one of the peers and each
     * ghost, too; no rank is its own. They are the same for the same list of edges. That their
     * numbers fit those of the other rank is not checked. gather: `all` becomes what each of
     * num_ranks has at `mine`, `bytes` from each in the order of ranks; with no bytes it waits for
     * all. Wrong `sent` or `peers`, and no memory or no access for the exchange, are errors on all
     * of them; after any other error of one rank, also while its list of edges is made, the others
     * may wait in gather: end them. */
    int rank, num_ranks;
    int64_t num_peers;
    const mdcg_peer* peers; /* [num_peers] */
    int (*gather)(void* context, const void* mine, void* all, int bytes);
} mdcg_communicator;

MDCG_API int mdcg_abi_version(void); /* MDCG_ABI_VERSION of the library */
MDCG_API const char* mdcg_version(void);
/* The last failure of the calling thread, one sentence; empty before the first. */
MDCG_API const char* mdcg_last_error(void);
/* The same sentence with names[n] in place of the number of node n, such as the host's number of
 * that atom. `names` has [num_nodes] of the evaluation that failed. Valid until the next call. */
MDCG_API const char* mdcg_last_error_about(const int64_t* names);
/* Text of a file, such as a name, with what a terminal would act on written as escapes: control
 * characters, marks that reorder or hide text, and bytes that are not UTF-8. Valid until the next
 * call of this thread; empty if text is null. */
MDCG_API const char* mdcg_printable(const char* text);
/* Lets the host end long calls, for example after Ctrl-C: poll(context) is called at most every
 * 50 ms by the threads that have called the library, while kernels are compiled and between parts
 * of an evaluation (on devices: before it). If it returns non-zero, the call returns
 * MDCG_ERROR_INTERRUPTED; the model can be evaluated again. With a communicator the other ranks
 * then wait: end them. `poll` null: never, as without this call. For the whole process; to be
 * called while no other function is. */
MDCG_API void mdcg_set_interrupt(int (*poll)(void* context), void* context);
/* tell(context, sentence) receives messages for the user during long calls, such as which process
 * the library waits for. It is called by the threads that have called the library, which itself
 * never prints. `tell` null: no messages, as without this call. For the whole process; to be called
 * while no other function is. */
MDCG_API void mdcg_set_notice(void (*tell)(void* context, const char* sentence), void* context);

/* "cuda" or "cuda:N": is there a driver, and that device? MDCG_ERROR_DEVICE says what is missing.
 */
MDCG_API mdcg_status mdcg_find_device(const char* name, mdcg_device* device);

/* Reads and checks a package, which holds nothing that is executed. `options` null: all defaults.
 * On failure *model is null. */
MDCG_API mdcg_status mdcg_open(const char* path, const mdcg_options* options, mdcg_model** model);
/* Opens another model from the package of `opened`, as it was read then, even if the file has
 * changed: its dispersion, or the same network for another thread or device. */
MDCG_API mdcg_status mdcg_open_same(const mdcg_model* opened, const mdcg_options* options,
                                    mdcg_model** model);
MDCG_API void mdcg_close(mdcg_model* model); /* null does nothing */
/* Loads the kernels now instead of in the first evaluation. Where the cache does not have them,
 * MDCG_PYTHON, or the Python of the environment with this library, is started to make them, once
 * for all processes of a machine that ask for them. */
MDCG_API mdcg_status mdcg_prepare(mdcg_model* model);
MDCG_API mdcg_status mdcg_describe(const mdcg_model* model, mdcg_info* info);
MDCG_API int mdcg_descriptor_width(const mdcg_model* model); /* -1: model is null */
MDCG_API mdcg_status mdcg_set_threads(mdcg_model* model, int threads);
/* `communicator` null: none; needed where there are ghosts and info.num_exchanges is not 0. */
MDCG_API mdcg_status mdcg_evaluate(mdcg_model* model, const mdcg_system* system,
                                   const mdcg_communicator* communicator,
                                   const mdcg_results* results);
/* Evaluates many systems, as many at once as there is memory for: on devices in one pass, lists of
 * neighbours included. Of `results`, energy has [num_systems] items and virial
 * [num_systems][3][3]; rows of nodes are those of the batch. */
MDCG_API mdcg_status mdcg_evaluate_batch(mdcg_model* model, const mdcg_batch* batch,
                                         const mdcg_results* results);
/* JSON: kernels and where each came from, milliseconds of each layer, edges, bytes. On a device
 * steps are captured and replayed: layers' times are of the last step that was not, a system's
 * first. Owned by the model, valid until the next call. */
MDCG_API const char* mdcg_report(mdcg_model* model);
/* One line for logs: architecture, inputs of the structure that the package was made for (such as
 * total_charge=-1), precision, device, threads (of "cpu"), where the kernels came from (named,
 * cached, compiled, generic), and why the cache of kernels is not used, if it is not.
 * Owned by the model, valid until the next call. */
MDCG_API const char* mdcg_summary(mdcg_model* model);

#ifdef __cplusplus
}
#endif
#endif
