/* Molecular dynamics at constant energy from plain C, with a neighbour list of the program itself:
 *
 *   cc dynamics.c -I DIR/include -o dynamics DIR/libmdcg.so -Wl,-rpath,DIR -lm
 *   ./dynamics data/water.mdcg data/water192.xyz 1000 last.xyz
 *
 * where DIR is what `python -c "import mdcg; print(mdcg.__path__[0])"` prints in this folder.
 * A program such as CP2K or GROMACS has positions and a neighbour list already: it needs open_model
 * and evaluate. With ranks, their ghosts follow the local atoms, and mdcg_communicator exchanges.
 * The list has each pair in both directions, up to r_max and a skin. It is made again when an atom
 * has moved by half the skin; until then mdcg reuses the order of its edges. (With make_edges and
 * cell in place of edges, mdcg makes a list itself.) Units: Å, eV, fs, atomic masses. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "mdcg.h"

#define MAX_ATOMS 1000
#define MAX_EDGES 400000

static const double time_step = 0.5, skin = 0.5, temperature = 300.0;
static const double boltzmann = 8.617333262e-5;    /* eV/K */
static const double acceleration = 9.648533212e-3; /* of 1 eV/Å and mass 1, in Å/fs² */
static int num_atoms;
static char names[MAX_ATOMS][8];
static int32_t types[MAX_ATOMS];
static double length[3]; /* of the cell, whose vectors are along x, y and z */
static double mass[MAX_ATOMS], x[3 * MAX_ATOMS], v[3 * MAX_ATOMS], f[3 * MAX_ATOMS];

/* The neighbour list, and where atoms were when it was made. */
static int num_lists, num_edges;
static mdcg_list list; /* identifies the edges, so that the model reads them once */
static int32_t sender[MAX_EDGES], receiver[MAX_EDGES];
static double shifts[3 * MAX_EDGES], listed[3 * MAX_ATOMS];

static void stop(const char* what, const char* why) {
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

/* Atoms and cell of an extended XYZ file with the columns species and positions. */
static void read_atoms(const char* path) {
    char line[1024];
    const char* lattice;
    FILE* file = fopen(path, "r");
    if (file == NULL) stop(path, "cannot be opened");
    if (fgets(line, sizeof line, file) == NULL || sscanf(line, "%d", &num_atoms) != 1 ||
        num_atoms < 1 || num_atoms > MAX_ATOMS)
        stop(path, "the first line is not a number of atoms that this program has room for");
    if (fgets(line, sizeof line, file) == NULL || (lattice = strstr(line, "Lattice=")) == NULL ||
        sscanf(lattice, "Lattice=\"%lf 0.0 0.0 0.0 %lf 0.0 0.0 0.0 %lf", &length[0], &length[1],
               &length[2]) != 3)
        stop(path, "the second line has no Lattice=\"a 0.0 0.0 0.0 b 0.0 0.0 0.0 c\"");
    for (int i = 0; i < num_atoms; ++i)
        if (fgets(line, sizeof line, file) == NULL ||
            sscanf(line, "%7s %lf %lf %lf", names[i], &x[3 * i], &x[3 * i + 1], &x[3 * i + 2]) != 4)
            stop(path, "an atom is missing");
    fclose(file);
}

static void write_atoms(const char* path, double energy) {
    FILE* file = fopen(path, "w");
    if (file == NULL) stop(path, "cannot be written");
    fprintf(file, "%d\nLattice=\"%.17g 0.0 0.0 0.0 %.17g 0.0 0.0 0.0 %.17g\" ", num_atoms,
            length[0], length[1], length[2]);
    fprintf(file, "Properties=species:S:1:pos:R:3:forces:R:3 energy=%.17g\n", energy);
    for (int i = 0; i < num_atoms; ++i)
        fprintf(file, "%s %.17g %.17g %.17g %.17g %.17g %.17g\n", names[i], x[3 * i], x[3 * i + 1],
                x[3 * i + 2], f[3 * i], f[3 * i + 1], f[3 * i + 2]);
    if (fclose(file) != 0) stop(path, "cannot be written");
}

/* Opens a package, and finds the type of each atom in it. */
static mdcg_model* open_model(const char* path, double* r_max) {
    mdcg_model* model;
    if (mdcg_abi_version() != MDCG_ABI_VERSION) stop("libmdcg.so", "is not that of mdcg.h");
    if (mdcg_open(path, NULL, &model) != MDCG_OK) stop("opening", mdcg_last_error());
    mdcg_info info = {0};
    info.size = sizeof info;
    if (mdcg_describe(model, &info) != MDCG_OK) stop("describing", mdcg_last_error());
    *r_max = info.r_max;
    for (int i = 0; i < num_atoms; ++i) {
        types[i] = -1;
        for (int t = 0; t < info.num_types; ++t)
            if (strcmp(info.type_names[t], names[i]) == 0) types[i] = t;
        if (types[i] < 0) stop(names[i], "the model does not know this type");
    }
    return model;
}

/* Every pair within `cutoff`, with the nearest image of each sender. Atoms are never wrapped, so
 * the shifts hold as long as the list does. Larger systems need cells here, not all pairs. */
static void make_list(double cutoff) {
    num_edges = 0;
    for (int i = 0; i < num_atoms; ++i)
        for (int j = 0; j < num_atoms; ++j) {
            double square = 0.0, shift[3];
            for (int d = 0; d < 3; ++d) {
                const double along = x[3 * i + d] - x[3 * j + d];
                shift[d] = -length[d] * floor(along / length[d] + 0.5);
                square += (along + shift[d]) * (along + shift[d]);
            }
            if (i == j || square >= cutoff * cutoff) continue;
            if (num_edges == MAX_EDGES) stop("neighbour list", "there is no room for more pairs");
            receiver[num_edges] = i;
            sender[num_edges] = j;
            memcpy(shifts + 3 * num_edges, shift, sizeof shift);
            ++num_edges;
        }
    memcpy(listed, x, sizeof x);
    list.edges = list.shifts = 0;
    ++num_lists;
}

static int list_is_old(void) {
    double square = 0.0;
    for (int k = 0; k < 3 * num_atoms; ++k) {
        square = (k % 3 == 0 ? 0.0 : square) + (x[k] - listed[k]) * (x[k] - listed[k]);
        if (square > 0.25 * skin * skin) return 1;
    }
    return 0;
}

/* Energy, and forces in `f`, at the positions in `x`. */
static double evaluate(mdcg_model* model, double r_max) {
    double energy;
    if (num_lists == 0 || list_is_old()) make_list(r_max + skin);
    mdcg_system system = {0};
    system.size = sizeof system;
    system.num_local = system.num_nodes = num_atoms;
    system.positions = x;
    system.types = types;
    system.num_edges = num_edges;
    system.sender = sender;
    system.receiver = receiver;
    system.shifts = shifts;
    system.list = &list;
    mdcg_results results = {0};
    results.size = sizeof results;
    results.energy = &energy;
    results.forces = f;
    if (mdcg_evaluate(model, &system, NULL, &results) != MDCG_OK)
        stop("evaluating", mdcg_last_error());
    return energy;
}

/* Velocities of the temperature, from sums of random numbers; the total momentum is zero. */
static void draw_velocities(void) {
    double momentum[3] = {0.0, 0.0, 0.0}, total = 0.0;
    for (int i = 0; i < num_atoms; ++i) {
        mass[i] = strcmp(names[i], "H") == 0 ? 1.008 : strcmp(names[i], "O") == 0 ? 15.999 : 0.0;
        if (mass[i] == 0.0) stop(names[i], "this program has the masses of H and O only");
        total += mass[i];
        for (int d = 0; d < 3; ++d) {
            double normal = -6.0; /* twelve uniform numbers have variance 1 */
            for (int k = 0; k < 12; ++k) normal += (double)rand() / RAND_MAX;
            v[3 * i + d] = normal * sqrt(boltzmann * temperature * acceleration / mass[i]);
            momentum[d] += mass[i] * v[3 * i + d];
        }
    }
    for (int k = 0; k < 3 * num_atoms; ++k) v[k] -= momentum[k % 3] / total;
}

int main(int argc, char** argv) {
    if (argc != 5) stop("usage", "dynamics PACKAGE.mdcg WATER.xyz STEPS LAST.xyz");
    double r_max, start = 0.0, largest = 0.0;
    const int steps = atoi(argv[3]);
    read_atoms(argv[2]);
    mdcg_model* model = open_model(argv[1], &r_max);
    for (int d = 0; d < 3; ++d)
        if (length[d] < 2.0 * (r_max + skin)) stop(argv[2], "the cell is too small for one image");
    draw_velocities();
    double energy = evaluate(model, r_max);
    printf("%s\n  step   potential      total (eV)    K\n", mdcg_summary(model));
    for (int step = 0;; ++step) {
        double kinetic = 0.0;
        for (int k = 0; k < 3 * num_atoms; ++k)
            kinetic += 0.5 * mass[k / 3] * v[k] * v[k] / acceleration;
        if (step == 0) start = energy + kinetic;
        largest = fmax(largest, fabs(energy + kinetic - start));
        if (step % 100 == 0 || step == steps)
            printf("%6d %12.6f %12.6f %7.1f\n", step, energy, energy + kinetic,
                   2.0 * kinetic / (3.0 * (num_atoms - 1) * boltzmann));
        if (step >= steps) break;
        /* velocity Verlet: half a kick, drift, new forces, half a kick */
        for (int k = 0; k < 3 * num_atoms; ++k) {
            v[k] += 0.5 * time_step * acceleration * f[k] / mass[k / 3];
            x[k] += time_step * v[k];
        }
        energy = evaluate(model, r_max);
        for (int k = 0; k < 3 * num_atoms; ++k)
            v[k] += 0.5 * time_step * acceleration * f[k] / mass[k / 3];
    }
    printf("total energy within %.4f meV/atom, %d lists in %d steps\n", 1e3 * largest / num_atoms,
           num_lists, steps);
    write_atoms(argv[4], energy);
    mdcg_close(model);
    return 0;
}
