/* What the C interface promises, checked from C:  c_api PACKAGE  prints "ok" or what is wrong. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mdcg.h"

#define ATOMS 40
#define MAX_NODES (27 * ATOMS)
#define MAX_EDGES 40000

static int failures = 0;

static void check(int condition, const char* what) {
    if (condition) return;
    ++failures;
    printf("FAILED: %s (last error: %s)\n", what, mdcg_last_error());
}

/* A status and a part of its sentence. */
static void refuses(mdcg_status got, mdcg_status expected, const char* sentence, const char* what) {
    check(got == expected, what);
    check(strstr(mdcg_last_error(), sentence) != NULL, what);
}

static double positions[3 * MAX_NODES], cell[9] = {7.0, 0, 0, 1.0, 6.5, 0, -0.5, 0.7, 6.8};
static int32_t types[MAX_NODES], owner[MAX_NODES], sender[MAX_EDGES], receiver[MAX_EDGES];
static const int periodic[3] = {1, 1, 1};
static int64_t num_nodes, num_edges;
static int calls;

static unsigned long state = 12345;
static double uniform(void) {
    state = state * 1103515245UL + 12345UL;
    return (double)(state >> 16 & 0x7fff) / 32768.0;
}

/* Atoms in the cell, then all images that are close enough, as ghosts. */
static void make_system(int num_types, double r_max) {
    num_nodes = 0;
    while (num_nodes < ATOMS) {
        const double a = uniform(), b = uniform(), c = uniform();
        double* p = positions + 3 * num_nodes;
        int close = 0;
        for (int d = 0; d < 3; ++d) p[d] = a * cell[d] + b * cell[3 + d] + c * cell[6 + d];
        for (int64_t j = 0; j < num_nodes; ++j) {
            const double x = p[0] - positions[3 * j], y = p[1] - positions[3 * j + 1];
            const double z = p[2] - positions[3 * j + 2];
            close |= x * x + y * y + z * z < 0.6;
        }
        if (close) continue;
        owner[num_nodes] = (int32_t)num_nodes;
        types[num_nodes] = (int32_t)(num_nodes % num_types);
        ++num_nodes;
    }
    for (int image = 0; image < 27; ++image) {
        const int m[3] = {image / 9 - 1, image / 3 % 3 - 1, image % 3 - 1};
        if (image == 13) continue;
        for (int i = 0; i < ATOMS; ++i) {
            for (int d = 0; d < 3; ++d)
                positions[3 * num_nodes + d] =
                    positions[3 * i + d] + m[0] * cell[d] + m[1] * cell[3 + d] + m[2] * cell[6 + d];
            types[num_nodes] = types[i];
            owner[num_nodes++] = i;
        }
    }
    num_edges = 0;
    for (int r = 0; r < ATOMS; ++r)
        for (int s = 0; s < num_nodes; ++s) {
            const double x = positions[3 * r] - positions[3 * s];
            const double y = positions[3 * r + 1] - positions[3 * s + 1];
            const double z = positions[3 * r + 2] - positions[3 * s + 2];
            const double square = x * x + y * y + z * z;
            if (s == r || square > 1.3 * r_max * r_max || num_edges == MAX_EDGES) continue;
            sender[num_edges] = s;
            receiver[num_edges++] = r;
        }
    check(num_edges < MAX_EDGES, "room for edges");
}

static int forward(void* context, void* rows, int width, int item_bytes) {
    const size_t bytes = (size_t)width * (size_t)item_bytes;
    ++*(int*)context;
    for (int64_t n = ATOMS; n < num_nodes; ++n)
        memcpy((char*)rows + (size_t)n * bytes, (char*)rows + (size_t)owner[n] * bytes, bytes);
    return 0;
}

static int reverse(void* context, void* rows, int width, int item_bytes) {
    ++*(int*)context;
    for (int64_t n = ATOMS; n < num_nodes; ++n)
        for (int k = 0; k < width; ++k) {
            if (item_bytes == 4)
                ((float*)rows)[owner[n] * width + k] += ((float*)rows)[n * width + k];
            else
                ((double*)rows)[owner[n] * width + k] += ((double*)rows)[n * width + k];
        }
    return 0;
}

static int failing(void* context, void* rows, int width, int item_bytes) {
    (void)context, (void)rows, (void)width, (void)item_bytes;
    return 17;
}

static mdcg_system ghosts(void) {
    mdcg_system system = {0};
    system.size = sizeof system;
    system.num_local = ATOMS;
    system.num_nodes = num_nodes;
    system.positions = positions;
    system.types = types;
    system.num_edges = num_edges;
    system.sender = sender;
    system.receiver = receiver;
    return system;
}

static mdcg_system in_cell(void) {
    mdcg_system system = {0};
    system.size = sizeof system;
    system.num_local = system.num_nodes = ATOMS;
    system.positions = positions;
    system.types = types;
    system.cell = cell;
    system.periodic = periodic;
    system.make_edges = 1;
    return system;
}

static void check_opening(const char* path) {
    mdcg_model* model = (mdcg_model*)&failures;
    mdcg_options options = {0};
    refuses(mdcg_open("/nonexistent.mdcg", NULL, &model), MDCG_ERROR_FILE, "/nonexistent.mdcg",
            "a file that is not there");
    check(model == NULL, "no model after a failure");
    refuses(mdcg_open(NULL, NULL, &model), MDCG_ERROR_ARGUMENT, "path is null", "no path");
    refuses(mdcg_open(path, NULL, NULL), MDCG_ERROR_ARGUMENT, "model is null", "no model");
    refuses(mdcg_open(path, &options, &model), MDCG_ERROR_ARGUMENT, "mdcg_options.size is 0",
            "a size that was not set");
    options.size = sizeof options;
    options.kernels = "fast";
    refuses(mdcg_open(path, &options, &model), MDCG_ERROR_ARGUMENT, "'fast'", "unknown kernels");
    options.kernels = NULL;
    options.device = "tpu";
    refuses(mdcg_open(path, &options, &model), MDCG_ERROR_UNSUPPORTED, "'tpu'", "unknown device");
    options.device = "cpu";
    options.threads = -1;
    refuses(mdcg_open(path, &options, &model), MDCG_ERROR_ARGUMENT, "threads is -1", "threads");
    {
        /* structs of a newer header */
        struct {
            mdcg_options known;
            int more;
        } newer;
        memset(&newer, 0, sizeof newer);
        newer.known.size = sizeof newer;
        check(mdcg_open(path, &newer.known, &model) == MDCG_OK, "a newer struct, not used");
        mdcg_close(model);
        newer.more = 1;
        refuses(mdcg_open(path, &newer.known, &model), MDCG_ERROR_ARGUMENT, "does not know",
                "a newer struct, used");
    }
    mdcg_close(NULL);
}

/* Sizes of structs: the own one, and such as a newer header may have. */
static void check_sizes(mdcg_model* model, const mdcg_system* system) {
    struct {
        mdcg_info known;
        char more[24];
    } info;
    struct {
        mdcg_system known;
        char more[24];
    } given;
    double energy;
    mdcg_results results = {0};
    results.size = sizeof results;
    results.energy = &energy;
    for (size_t size = 0; size <= sizeof info; ++size) {
        const int fits = size >= sizeof(mdcg_info) && size % 8 == 0;
        memset(&info, 0, sizeof info);
        info.known.size = size;
        if (fits)
            check(mdcg_describe(model, &info.known) == MDCG_OK, "a size of mdcg_info");
        else
            refuses(mdcg_describe(model, &info.known), MDCG_ERROR_ARGUMENT, "mdcg_info.size is",
                    "a wrong size of mdcg_info");
    }
    for (size_t size = 0; size <= sizeof given; ++size) {
        const int fits = size >= sizeof(mdcg_system) && size % 8 == 0;
        memset(&given, 0, sizeof given);
        given.known = *system;
        given.known.size = size;
        if (fits)
            check(mdcg_evaluate(model, &given.known, NULL, &results) == MDCG_OK,
                  "a size of mdcg_system");
        else
            refuses(mdcg_evaluate(model, &given.known, NULL, &results), MDCG_ERROR_ARGUMENT,
                    "mdcg_system.size is", "a wrong size of mdcg_system");
    }
}

static void check_arguments(mdcg_model* model) {
    double energy;
    mdcg_results results = {0};
    mdcg_system system = ghosts();
    mdcg_communicator communicator;
    memset(&communicator, 0, sizeof communicator);
    communicator.size = sizeof communicator;
    communicator.context = &calls;
    communicator.forward = forward;
    communicator.reverse = reverse;
    mdcg_info info = {0};
    results.size = sizeof results;
    results.energy = &energy;
    refuses(mdcg_describe(model, &info), MDCG_ERROR_ARGUMENT, "mdcg_info.size", "info's size");
    refuses(mdcg_evaluate(NULL, &system, NULL, &results), MDCG_ERROR_ARGUMENT, "model is null",
            "no model");
    refuses(mdcg_evaluate(model, NULL, NULL, &results), MDCG_ERROR_ARGUMENT, "mdcg_system is null",
            "no system");
    refuses(mdcg_evaluate(model, &system, NULL, NULL), MDCG_ERROR_ARGUMENT, "mdcg_results is null",
            "no results");
    refuses(mdcg_evaluate(model, &system, NULL, &results), MDCG_ERROR_ARGUMENT, "communicator",
            "ghosts without communicator");
    communicator.reverse = NULL;
    refuses(mdcg_evaluate(model, &system, &communicator, &results), MDCG_ERROR_ARGUMENT,
            "communicator.reverse is null", "half a communicator");
    communicator.reverse = reverse;
    communicator.forward = failing;
    refuses(mdcg_evaluate(model, &system, &communicator, &results), MDCG_ERROR_COMMUNICATION,
            "forward returned 17", "a failing communicator");
    communicator.forward = forward;
    system.num_local = num_nodes + 1;
    refuses(mdcg_evaluate(model, &system, &communicator, &results), MDCG_ERROR_ARGUMENT,
            "num_local", "more local nodes than nodes");
    system = ghosts();
    system.positions = NULL;
    refuses(mdcg_evaluate(model, &system, &communicator, &results), MDCG_ERROR_ARGUMENT,
            "positions is null", "no positions");
    system = ghosts();
    system.make_edges = 1;
    refuses(mdcg_evaluate(model, &system, &communicator, &results), MDCG_ERROR_ARGUMENT,
            "make_edges", "edges twice");
    system = ghosts();
    receiver[3] += ATOMS;
    refuses(mdcg_evaluate(model, &system, &communicator, &results), MDCG_ERROR_ARGUMENT,
            "receiver[3]", "a receiver that is a ghost");
    receiver[3] -= ATOMS;
    types[5] = 1000;
    refuses(mdcg_evaluate(model, &system, &communicator, &results), MDCG_ERROR_ARGUMENT,
            "the type of atom 5 is 1000", "an unknown type");
    {
        const int64_t names[] = {10, 11, 12, 13, 14, 15};
        check(strstr(mdcg_last_error_about(names), "the type of atom 15 is 1000") != NULL, "names");
        check(strcmp(mdcg_last_error_about(NULL), mdcg_last_error()) == 0, "no names");
    }
    types[5] = types[ATOMS + 5];
    system = in_cell();
    {
        const double kept = positions[3];
        positions[3] = NAN;
        refuses(mdcg_evaluate(model, &system, NULL, &results), MDCG_ERROR_ARGUMENT, "atom 1",
                "a position that is nan");
        positions[3] = kept;
    }
    check_sizes(model, &system);
    {
        const double small[9] = {0.02, 0, 0, 0, 0.02, 0, 0, 0, 0.02};
        cell[4] = NAN;
        refuses(mdcg_evaluate(model, &system, NULL, &results), MDCG_ERROR_ARGUMENT,
                "entries that are not finite", "a cell of no numbers");
        cell[4] = 6.5;
        system.cell = small;
        refuses(mdcg_evaluate(model, &system, NULL, &results), MDCG_ERROR_ARGUMENT,
                "periodic images within", "a cell that is much too small");
    }
    system.cell = NULL;
    refuses(mdcg_evaluate(model, &system, NULL, &results), MDCG_ERROR_ARGUMENT, "cell is null",
            "periodic without a cell");
}

static void check_results(mdcg_model* model, double precision) {
    double energy, energies[ATOMS], forces[3 * MAX_NODES], virial[9];
    double other_energy, other_energies[ATOMS], other_forces[3 * ATOMS], other_virial[9];
    mdcg_results results = {sizeof results, &energy, energies, forces, virial, NULL, NULL};
    mdcg_results others = {sizeof others, &other_energy, other_energies, other_forces, other_virial,
                           NULL,          NULL};
    mdcg_communicator communicator;
    memset(&communicator, 0, sizeof communicator);
    communicator.size = sizeof communicator;
    communicator.context = &calls;
    communicator.forward = forward;
    communicator.reverse = reverse;
    mdcg_system system = in_cell();
    double largest = 0, error = 0, sum = 0, scale = 1;

    check(mdcg_evaluate(model, &system, NULL, &others) == MDCG_OK, "evaluate in a cell");
    for (int i = 0; i < ATOMS; ++i) scale = fmax(scale, fabs(other_energies[i]));
    for (int i = 0; i < ATOMS; ++i) sum += other_energies[i];
    check(fabs(sum - other_energy) <= 1e-12 * scale * ATOMS, "energies sum to the energy");
    mdcg_list list = {0, 0};
    for (int step = 0; step < 2; ++step) {
        const mdcg_list before = list;
        system = ghosts();
        system.list = &list;
        calls = 0;
        check(mdcg_evaluate(model, &system, &communicator, &results) == MDCG_OK, "with ghosts");
        check(calls >= 2, "rows were exchanged");
        check(list.edges != 0 && (step == 0 || list.edges == before.edges), "numbers of the list");
        for (int64_t n = ATOMS; n < num_nodes; ++n)
            for (int d = 0; d < 3; ++d) forces[3 * owner[n] + d] += forces[3 * n + d];
        check(fabs(energy - other_energy) <= precision * scale * ATOMS, "energy with ghosts");
        for (int i = 0; i < ATOMS; ++i) error = fmax(error, fabs(energies[i] - other_energies[i]));
        check(error <= precision * scale, "energies with ghosts");
        error = 0;
        for (int i = 0; i < 3 * ATOMS; ++i) {
            largest = fmax(largest, fabs(other_forces[i]));
            error = fmax(error, fabs(forces[i] - other_forces[i]));
        }
        check(largest > 1e-3 && error <= 10 * precision * largest, "forces with ghosts");
        for (int i = 0; i < 9; ++i)
            check(fabs(virial[i] - other_virial[i]) <= 10 * precision * ATOMS * largest,
                  "virial with ghosts");
    }

    memset(&results, 0, sizeof results);
    results.size = sizeof results;
    results.energy = &energy;
    system = in_cell();
    check(mdcg_evaluate(model, &system, NULL, &results) == MDCG_OK, "the energy alone");
    check(energy == other_energy, "the energy alone is the same");
    check(mdcg_set_threads(model, 1) == MDCG_OK, "another number of threads");
    check(mdcg_evaluate(model, &system, NULL, &results) == MDCG_OK, "with one thread");
    check(energy == other_energy, "the number of threads does not matter");
    refuses(mdcg_set_threads(model, -2), MDCG_ERROR_ARGUMENT, "threads is -2", "threads");
    check(mdcg_set_threads(model, 0) == MDCG_OK, "OpenMP's choice");
    system.num_local = system.num_nodes = 0;
    check(mdcg_evaluate(model, &system, NULL, &results) == MDCG_OK && energy == 0.0, "no atoms");
    memset(&system, 0, sizeof system);
    system.size = sizeof system;
    check(mdcg_evaluate(model, &system, &communicator, &results) == MDCG_OK, "an empty rank");
}

int main(int argc, char** argv) {
    mdcg_model* model;
    mdcg_info info = {0};
    if (argc != 2) return 2;
    check(mdcg_abi_version() == MDCG_ABI_VERSION, "version of the interface");
    check(strlen(mdcg_version()) > 0, "version");
    check(strcmp(mdcg_last_error(), "") == 0, "no error yet");
    check(strcmp(mdcg_printable("Fe\x1b[31m"), "Fe\\x1b[31m") == 0, "printable text");
    check(strcmp(mdcg_printable(NULL), "") == 0, "no text");
    check_opening(argv[1]);
    if (mdcg_open(argv[1], NULL, &model) != MDCG_OK) {
        printf("%s\n", mdcg_last_error());
        return 1;
    }
    info.size = sizeof info;
    check(mdcg_describe(model, &info) == MDCG_OK, "describe");
    check(info.num_types > 0 && info.r_max > 0 && info.manifest[0] == '{', "what is described");
    check(info.num_exchanges > 0 && info.exchange_bytes % 64 == 0, "a package that exchanges rows");
    check(strlen(info.digest) == 64 && strspn(info.digest, "0123456789abcdef") == 64, "a digest");
    check(mdcg_descriptor_width(model) >= 0 && mdcg_descriptor_width(NULL) == -1, "descriptors");
    check(mdcg_prepare(model) == MDCG_OK, "prepare");
    make_system(info.num_types, info.r_max);
    check_results(model, info.double_precision ? 1e-12 : 1e-4);
    check_arguments(model);
    check_results(model, info.double_precision ? 1e-12 : 1e-4);
    check(strstr(mdcg_report(model), "\"kernels\"") != NULL, "report");
    check(strstr(mdcg_summary(model), "cpu") != NULL, "summary");
    check(strcmp(mdcg_report(NULL), "{}") == 0, "report of nothing");
    mdcg_close(model);
    if (failures == 0) printf("ok\n");
    return failures != 0;
}
