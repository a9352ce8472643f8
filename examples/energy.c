/* Energy and forces of a water molecule from plain C:
 *
 *   cc energy.c -I DIR/include -o energy DIR/libmdcg.so -Wl,-rpath,DIR && ./energy water.mdcg
 *
 * where DIR is what `python -c "import mdcg; print(mdcg.__path__[0])"` prints in this
 * folder. */
#include <stdio.h>
#include <string.h>

#include "mdcg.h"

/* Index of a type by name, -1: the model does not know it. */
static int type_of(const mdcg_info* info, const char* name) {
    for (int t = 0; t < info->num_types; ++t)
        if (strcmp(info->type_names[t], name) == 0) return t;
    return -1;
}

static int failed(const char* what) {
    fprintf(stderr, "%s: %s\n", what, mdcg_last_error());
    return 1;
}

int main(int argc, char** argv) {
    const char* const names[3] = {"O", "H", "H"};
    const double positions[9] = {0.0, 0.0, 0.119, 0.0, 0.763, -0.477, 0.0, -0.763, -0.477};
    int32_t types[3];
    double energy, forces[9];
    mdcg_model* model;

    if (argc != 2) {
        fprintf(stderr, "usage: %s water.mdcg\n", argv[0]);
        return 2;
    }
    if (mdcg_open(argv[1], NULL, &model) != MDCG_OK) return failed("opening");

    mdcg_info info = {0};
    info.size = sizeof info;
    if (mdcg_describe(model, &info) != MDCG_OK) return failed("describing");
    printf("%d types, r_max %g Å\n", info.num_types, info.r_max);
    for (int i = 0; i < 3; ++i) types[i] = type_of(&info, names[i]);

    mdcg_system system = {0};
    system.size = sizeof system;
    system.num_local = system.num_nodes = 3;
    system.positions = positions;
    system.types = types;
    system.make_edges = 1; /* no cell: an open system */

    mdcg_results results = {0};
    results.size = sizeof results;
    results.energy = &energy;
    results.forces = forces;
    if (mdcg_evaluate(model, &system, NULL, &results) != MDCG_OK) return failed("evaluating");

    printf("energy %.6f eV\n", energy);
    for (int i = 0; i < 3; ++i)
        printf("force on %s %9.6f %9.6f %9.6f eV/Å\n", names[i], forces[3 * i], forces[3 * i + 1],
               forces[3 * i + 2]);
    printf("%s\n", mdcg_summary(model));
    mdcg_close(model);
    return 0;
}
