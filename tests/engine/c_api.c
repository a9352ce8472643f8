/* A host in C:  c_api PACKAGE  evaluates a molecule in a cell and prints "ok" or what is wrong. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "mdcg.h"

static int failures = 0;

static void check(int condition, const char* what) {
    if (condition) return;
    ++failures;
    printf("FAILED: %s (last error: %s)\n", what, mdcg_last_error());
}

/* Structs of a newer header may be used as long as what is new in them is zero. */
static void check_sizes(const char* path) {
    struct {
        mdcg_options known;
        int more;
    } newer;
    mdcg_model* model;
    memset(&newer, 0, sizeof newer);
    check(mdcg_open(path, &newer.known, &model) == MDCG_ERROR_ARGUMENT, "a size that was not set");
    newer.known.size = sizeof newer;
    check(mdcg_open(path, &newer.known, &model) == MDCG_OK, "a newer struct, not used");
    mdcg_close(model);
    newer.more = 1;
    check(mdcg_open(path, &newer.known, &model) == MDCG_ERROR_ARGUMENT && model == NULL,
          "a newer struct, used");
    check(strstr(mdcg_last_error(), "does not know") != NULL, "what is new is named");
}

int main(int argc, char** argv) {
    double positions[9] = {0, 0, 0, 0.9, 0.3, 0, -0.4, 0.8, 0},
           cell[9] = {7, 0, 0, 1, 6.5, 0, 0, 0, 7};
    const int32_t types[3] = {1, 0, 0};
    const int periodic[3] = {1, 1, 1};
    double energy, forces[9], sum = 0;
    mdcg_model* model;
    mdcg_info info = {0};
    mdcg_system system = {0};
    mdcg_results results = {0};
    if (argc != 2) return 2;
    check(mdcg_abi_version() == MDCG_ABI_VERSION, "version of the interface");
    check(strlen(mdcg_version()) > 0, "version");
    check(strcmp(mdcg_last_error(), "") == 0, "no error yet");
    check(strcmp(mdcg_printable("Fe\x1b[31m"), "Fe\\x1b[31m") == 0, "printable text");
    check_sizes(argv[1]);
    if (mdcg_open(argv[1], NULL, &model) != MDCG_OK) {
        printf("%s\n", mdcg_last_error());
        return 1;
    }
    info.size = sizeof info;
    check(mdcg_describe(model, &info) == MDCG_OK, "describe");
    check(info.num_types > 1 && info.r_max > 0 && info.manifest[0] == '{', "what is described");
    check(info.num_exchanges > 0 && info.exchange_bytes % 64 == 0, "a package that exchanges rows");
    check(strlen(info.digest) == 64 && strspn(info.digest, "0123456789abcdef") == 64, "a digest");
    check(mdcg_prepare(model) == MDCG_OK, "prepare");
    system.size = sizeof system;
    system.num_local = system.num_nodes = 3;
    system.positions = positions;
    system.types = types;
    system.cell = cell;
    system.periodic = periodic;
    system.make_edges = 1;
    results.size = sizeof results;
    results.energy = &energy;
    results.forces = forces;
    check(mdcg_evaluate(model, &system, NULL, &results) == MDCG_OK, "evaluate");
    for (int i = 0; i < 9; ++i) sum += fabs(forces[i]);
    check(energy != 0 && isfinite(energy) && sum > 1e-3 && isfinite(sum), "results");
    check(strstr(mdcg_report(model), "\"kernels\"") != NULL, "report");
    check(strstr(mdcg_summary(model), "cpu") != NULL, "summary");
    mdcg_close(model);
    mdcg_close(NULL);
    if (failures == 0) printf("ok\n");
    return failures != 0;
}
