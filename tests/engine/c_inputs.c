/* A host in C that gives inputs:  c_inputs PACKAGE CHARGE SPIN  prints what the package reads, and
 * the energy of a molecule with these values, of two molecules of a batch, and with the defaults.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mdcg.h"

int main(int argc, char** argv) {
    double positions[18] = {0, 0, 0, 0.9, 0.3, 0, -0.4, 0.8, 0}, energy, energies[2];
    const int32_t types[6] = {1, 0, 0, 1, 0, 0};
    const int64_t first_node[3] = {0, 3, 6};
    double inputs[6];
    mdcg_model* model;
    mdcg_info info = {0};
    mdcg_system system = {0};
    mdcg_batch batch = {0};
    mdcg_results results = {0};
    if (argc != 4 || mdcg_open(argv[1], NULL, &model) != MDCG_OK) return 2;
    info.size = sizeof info;
    if (mdcg_describe(model, &info) != MDCG_OK || info.num_inputs != 3) return 3;
    for (int i = 0; i < info.num_inputs; ++i)
        printf("%s %g\n", info.input_names[i], info.input_defaults[i]);
    for (int i = 0; i < info.num_inputs; ++i) {
        const char* name = info.input_names[i];
        inputs[i] = strcmp(name, "charge") == 0 ? atof(argv[2])
                    : strcmp(name, "spin") == 0 ? atof(argv[3])
                                                : NAN;
        inputs[3 + i] = i == 0 ? -1.0 : NAN;
    }
    system.size = sizeof system;
    system.num_local = system.num_nodes = 3;
    system.positions = positions;
    system.types = types;
    system.make_edges = 1;
    results.size = sizeof results;
    results.energy = &energy;
    if (mdcg_evaluate(model, &system, NULL, &results) != MDCG_ERROR_ARGUMENT) return 4;
    printf("%s\n", mdcg_last_error());
    system.inputs = inputs;
    if (mdcg_evaluate(model, &system, NULL, &results) != MDCG_OK) printf("%s\n", mdcg_last_error());
    printf("%.17g\n", energy);
    memcpy(positions + 9, positions, 9 * sizeof *positions);
    batch.size = sizeof batch;
    batch.num_systems = 2;
    batch.first_node = first_node;
    batch.positions = positions;
    batch.types = types;
    batch.inputs = inputs;
    results.energy = energies;
    if (mdcg_evaluate_batch(model, &batch, &results) != MDCG_OK) printf("%s\n", mdcg_last_error());
    printf("%.17g %.17g\n", energies[0], energies[1]);
    mdcg_close(model);
    return 0;
}
