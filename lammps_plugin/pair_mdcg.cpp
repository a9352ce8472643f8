// SPDX-License-Identifier: GPL-2.0-only
#include "pair_mdcg.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

#include "atom.h"
#include "citeme.h"
#include "comm.h"
#include "error.h"
#include "force.h"
#include "mdcg_library.h"
#include "memory.h"
#include "neigh_list.h"
#include "neighbor.h"
#include "update.h"
#include "utils.h"

using namespace LAMMPS_NS;
using mdcg_lammps::Library;

static constexpr char CITATION[] =
    "pair_style mdcg: generated Clebsch-Gordan kernels for MACE and NequIP potentials\n\n"
    "@Misc{mdcg,\n"
    " author = {{mdcg developers}},\n"
    " title  = {mdcg: fast MACE and NequIP molecular dynamics through generated\n"
    "           Clebsch-Gordan kernels},\n"
    " note   = {Cite the paper of the potential as well}\n"
    "}\n\n";

// kcal/mol per eV, as in LAMMPS' own conversion of energies
static constexpr double EV_TO_KCAL = 23.06054783;

struct PairMDCG::Impl {
  const Library *library = nullptr;
  mdcg_model *model = nullptr;
  mdcg_info info{};
  std::string device = "auto", file;
  int threads = 0;    // 0: those of LAMMPS
  double energy_unit = 1.0;
  bool announced = false, excluded = false;

  std::vector<int> kind;           // [ntypes + 1] type in the package, -1: NULL
  std::vector<std::int32_t> node;    // [nall] node of an atom, -1: NULL; empty: the same numbers
  std::vector<std::int32_t> atom;    // [num_nodes] atom of a node
  std::int64_t num_local = 0, num_nodes = 0;
  std::vector<std::int32_t> types, sender, receiver;
  std::vector<double> positions, forces, energies, virials;
  bool fresh = true;    // the engine has not seen these edges yet
  int known_local = -1, known_all = -1;

  // rows of the exchange under way
  char *rows = nullptr;
  int row_bytes = 0, row_width = 0, item_bytes = 0;

  std::int64_t node_of(int i) const { return node.empty() ? i : node[i]; }
  int doubles() const { return (row_bytes + 7) / 8; }
  ~Impl()
  {
    if (model) library->close(model);
  }
};

PairMDCG::PairMDCG(LAMMPS *lmp) : Pair(lmp), impl(std::make_unique<Impl>())
{
  single_enable = 0;
  restartinfo = 0;
  one_coeff = 1;
  manybody_flag = 1;
  no_virial_fdotr_compute = 1;
  centroidstressflag = CENTROID_NOTAVAIL;
  try {
    impl->library = &Library::get();
  } catch (const std::exception &e) {
    error->all(FLERR, std::string("pair_style mdcg: ") + e.what());
  }
}

PairMDCG::~PairMDCG()
{
  if (copymode) return;
  if (allocated) {
    memory->destroy(setflag);
    memory->destroy(cutsq);
  }
}

void PairMDCG::settings(int narg, char **arg)
{
  for (int i = 0; i < narg; i += 2) {
    const std::string key = arg[i];
    if (key != "device" && key != "threads")
      error->all(FLERR, "pair_style mdcg: unknown keyword " + key +
                            ", expected: device auto|cpu|cuda, threads N");
    if (i + 1 == narg) error->all(FLERR, "pair_style mdcg: keyword " + key + " needs a value");
    if (key == "device") {
      impl->device = arg[i + 1];
      if (impl->device != "auto" && impl->device != "cpu" && impl->device != "cuda")
        error->all(FLERR, "pair_style mdcg: device is " + impl->device +
                              ", expected auto, cpu or cuda");
    } else {
      impl->threads = utils::inumeric(FLERR, arg[i + 1], false, lmp);
      if (impl->threads < 1)
        error->all(FLERR, "pair_style mdcg: threads is " + std::to_string(impl->threads) +
                              ", expected 1 or more");
    }
  }
}

void PairMDCG::allocate()
{
  allocated = 1;
  const int n = atom->ntypes + 1;
  memory->create(setflag, n, n, "pair:setflag");
  memory->create(cutsq, n, n, "pair:cutsq");
  for (int i = 0; i < n; i++)
    for (int j = 0; j < n; j++) setflag[i][j] = 0;
}

void PairMDCG::coeff(int narg, char **arg)
{
  if (!allocated) allocate();
  const int ntypes = atom->ntypes;
  const std::string usage = "pair_coeff * * water.mdcg O H (a package, then the package's type "
                            "name, or NULL, for each of the " +
      std::to_string(ntypes) + " atom types)";
  if (narg < 3 || std::strcmp(arg[0], "*") != 0 || std::strcmp(arg[1], "*") != 0)
    error->all(FLERR, "pair_style mdcg: expected " + usage);
  if (narg != 3 + ntypes)
    error->all(FLERR, "pair_style mdcg: got " + std::to_string(narg - 3) +
                          " type names, expected " + usage);

  Impl &it = *impl;
  if (it.model) it.library->close(it.model);
  it.model = nullptr;
  it.file = arg[2];
  mdcg_options options{};
  options.size = sizeof(options);
  options.device = it.device == "auto" ? nullptr : it.device.c_str();
  options.threads = it.threads ? it.threads : comm->nthreads;
  if (it.library->open(arg[2], &options, &it.model) != MDCG_OK)
    error->one(FLERR, std::string("pair_style mdcg: ") + it.library->last_error());
  it.info = mdcg_info{};
  it.info.size = sizeof(it.info);
  if (it.library->describe(it.model, &it.info) != MDCG_OK)
    error->one(FLERR, std::string("pair_style mdcg: ") + it.library->last_error());

  std::string known;
  for (int t = 0; t < it.info.num_types; t++)
    known += std::string(t ? " " : "") + it.info.type_names[t];
  it.kind.assign(ntypes + 1, -1);
  it.excluded = false;
  for (int i = 1; i <= ntypes; i++) {
    const char *name = arg[2 + i];
    if (std::strcmp(name, "NULL") == 0) {
      it.excluded = true;
      continue;
    }
    for (int t = 0; t < it.info.num_types; t++)
      if (std::strcmp(name, it.info.type_names[t]) == 0) it.kind[i] = t;
    if (it.kind[i] < 0)
      error->all(FLERR, std::string("pair_style mdcg: atom type ") + std::to_string(i) + " is " +
                            name + ", which " + it.file + " does not know; it knows: " + known);
  }
  int count = 0;
  for (int i = 1; i <= ntypes; i++)
    for (int j = 1; j <= ntypes; j++) {
      setflag[i][j] = it.kind[i] >= 0 && it.kind[j] >= 0;
      count += setflag[i][j];
    }
  if (!count) error->all(FLERR, "pair_style mdcg: all atom types are NULL");

  comm_forward = comm_reverse = (it.info.exchange_bytes + 7) / 8;
  it.announced = false;
  it.known_all = -1;
}

void PairMDCG::init_style()
{
  const std::string units = update->unit_style;
  if (units == "metal")
    impl->energy_unit = 1.0;
  else if (units == "real")
    impl->energy_unit = EV_TO_KCAL;
  else
    error->all(FLERR, "pair_style mdcg: units are " + units + ", expected metal or real");
  if (!force->newton_pair)
    error->all(FLERR, "pair_style mdcg: newton pair is off, expected on (command: newton on)");
  if (atom->molecular && force->special_lj[1] != 1.0 && comm->me == 0)
    error->warning(FLERR, "pair_style mdcg: neighbours that are bonded are excluded by "
                          "special_bonds; the potential needs them: special_bonds lj/coul 1 1 1");
  neighbor->add_request(this, NeighConst::REQ_FULL);
  if (lmp->citeme) lmp->citeme->add(CITATION);

  // under hybrid the buffers are sized by the outer style, which asked before coeff was read
  if (force->pair && force->pair != this) {
    force->pair->comm_forward = std::max(force->pair->comm_forward, comm_forward);
    force->pair->comm_reverse = std::max(force->pair->comm_reverse, comm_reverse);
  }
  impl->known_all = -1;
}

double PairMDCG::init_one(int i, int j)
{
  if (!setflag[i][j]) return 0.0;    // NULL
  return impl->info.r_max;
}

// Edges and nodes of the neighbour list as it is, its skin included.
void PairMDCG::take_neighbors()
{
  Impl &it = *impl;
  const int nlocal = atom->nlocal, nall = nlocal + atom->nghost;
  it.node.clear();
  it.atom.clear();
  it.num_local = nlocal;
  it.num_nodes = nall;
  if (it.excluded) {
    it.node.assign(nall, -1);
    std::int64_t n = 0;
    for (int i = 0; i < nall; i++) {
      if (i == nlocal) it.num_local = n;
      if (it.kind[atom->type[i]] < 0) continue;
      it.node[i] = static_cast<std::int32_t>(n++);
      it.atom.push_back(i);
    }
    if (nall == nlocal) it.num_local = n;
    it.num_nodes = n;
  }
  it.types.resize(it.num_nodes);
  for (int i = 0; i < nall; i++)
    if (const auto n = it.node_of(i); n >= 0) it.types[n] = it.kind[atom->type[i]];

  it.sender.clear();
  it.receiver.clear();
  for (int ii = 0; ii < list->inum; ii++) {
    const int i = list->ilist[ii];
    if (it.node_of(i) < 0) continue;
    const int *neighbors = list->firstneigh[i];
    for (int jj = 0; jj < list->numneigh[i]; jj++) {
      const int j = neighbors[jj] & NEIGHMASK;
      if (it.node_of(j) < 0) continue;
      it.sender.push_back(static_cast<std::int32_t>(it.node_of(j)));
      it.receiver.push_back(static_cast<std::int32_t>(it.node_of(i)));
    }
  }
  it.fresh = true;
  it.known_local = nlocal;
  it.known_all = nall;
}

void PairMDCG::take_positions()
{
  Impl &it = *impl;
  it.positions.resize(3 * it.num_nodes);
  for (std::int64_t n = 0; n < it.num_nodes; n++)
    std::memcpy(&it.positions[3 * n], atom->x[it.atom.empty() ? n : it.atom[n]],
                3 * sizeof(double));
}

namespace {

struct Exchange {
  PairMDCG *pair;
  Comm *comm;
};

}    // namespace

void PairMDCG::compute(int eflag, int vflag)
{
  ev_init(eflag, vflag);
  Impl &it = *impl;
  // every rank goes through all of this, also one without atoms: the others wait for its part of
  // each exchange
  if (neighbor->ago == 0 || it.known_local != atom->nlocal ||
      it.known_all != atom->nlocal + atom->nghost)
    take_neighbors();
  take_positions();

  mdcg_system system{};
  system.size = sizeof(system);
  system.num_local = it.num_local;
  system.num_nodes = it.num_nodes;
  system.positions = it.positions.data();
  system.types = it.types.data();
  system.num_edges = static_cast<std::int64_t>(it.sender.size());
  system.sender = it.sender.data();
  system.receiver = it.receiver.data();
  system.same_edges = it.fresh ? 0 : 1;
  it.fresh = false;

  double energy = 0.0, sum[9] = {};
  it.forces.resize(3 * it.num_nodes);
  mdcg_results results{};
  results.size = sizeof(results);
  if (eflag_global) results.energy = &energy;
  results.forces = it.forces.data();
  if (vflag_global) results.virial = sum;
  if (eflag_atom) {
    it.energies.resize(it.num_local);
    results.energies = it.energies.data();
  }
  if (vflag_atom) {
    it.virials.resize(9 * it.num_nodes);
    results.virials = it.virials.data();
  }

  Exchange exchange{this, comm};
  mdcg_communicator communicator{};
  communicator.size = sizeof(communicator);
  communicator.context = &exchange;
  communicator.forward = [](void *context, void *rows, int width, int item_bytes) {
    auto *of = static_cast<Exchange *>(context);
    Impl &impl = *of->pair->impl;
    impl.rows = static_cast<char *>(rows);
    impl.row_width = width;
    impl.item_bytes = item_bytes;
    impl.row_bytes = width * item_bytes;
    of->comm->forward_comm(of->pair, impl.doubles());
    return 0;
  };
  communicator.reverse = [](void *context, void *rows, int width, int item_bytes) {
    auto *of = static_cast<Exchange *>(context);
    Impl &impl = *of->pair->impl;
    impl.rows = static_cast<char *>(rows);
    impl.row_width = width;
    impl.item_bytes = item_bytes;
    impl.row_bytes = width * item_bytes;
    of->comm->reverse_comm(of->pair, impl.doubles());
    return 0;
  };
  if (it.library->evaluate(it.model, &system, &communicator, &results) != MDCG_OK)
    error->one(FLERR, std::string("pair_style mdcg: ") + it.library->last_error());
  if (!it.announced) announce();

  const double unit = it.energy_unit;
  double **f = atom->f;
  for (std::int64_t n = 0; n < it.num_nodes; n++) {
    double *force = f[it.atom.empty() ? n : it.atom[n]];
    for (int k = 0; k < 3; k++) force[k] += unit * it.forces[3 * n + k];
  }
  if (eflag_global) eng_vdwl += unit * energy;
  if (eflag_atom)
    for (std::int64_t n = 0; n < it.num_local; n++)
      eatom[it.atom.empty() ? n : it.atom[n]] += unit * it.energies[n];
  static constexpr int PLACE[6] = {0, 4, 8, 1, 2, 5};    // xx yy zz xy xz yz
  if (vflag_global)
    for (int k = 0; k < 6; k++) virial[k] += unit * sum[PLACE[k]];
  if (vflag_atom)
    for (std::int64_t n = 0; n < it.num_nodes; n++) {
      double *into = vatom[it.atom.empty() ? n : it.atom[n]];
      for (int k = 0; k < 6; k++) into[k] += unit * it.virials[9 * n + PLACE[k]];
    }
}

void PairMDCG::announce()
{
  impl->announced = true;
  if (comm->me == 0)
    utils::logmesg(lmp, std::string("pair_style mdcg: ") + impl->file + ": " +
                            impl->library->summary(impl->model) + ", " +
                            std::to_string(comm->nprocs) +
                            (comm->nprocs == 1 ? " rank\n" : " ranks\n"));
}

// ---- rows of ghosts; their items travel as they are, two floats in the place of a double ----

int PairMDCG::pack_forward_comm(int n, int *atoms, double *buf, int, int *)
{
  const Impl &it = *impl;
  const int size = it.doubles();
  for (int k = 0; k < n; k++) {
    const auto row = it.node_of(atoms[k]);
    if (row >= 0) std::memcpy(buf + k * size, it.rows + row * it.row_bytes, it.row_bytes);
  }
  return n * size;
}

void PairMDCG::unpack_forward_comm(int n, int first, double *buf)
{
  const Impl &it = *impl;
  const int size = it.doubles();
  for (int k = 0; k < n; k++) {
    const auto row = it.node_of(first + k);
    if (row >= 0) std::memcpy(it.rows + row * it.row_bytes, buf + k * size, it.row_bytes);
  }
}

int PairMDCG::pack_reverse_comm(int n, int first, double *buf)
{
  const Impl &it = *impl;
  const int size = it.doubles();
  for (int k = 0; k < n; k++) {
    const auto row = it.node_of(first + k);
    if (row >= 0) std::memcpy(buf + k * size, it.rows + row * it.row_bytes, it.row_bytes);
  }
  return n * size;
}

void PairMDCG::unpack_reverse_comm(int n, int *atoms, double *buf)
{
  const Impl &it = *impl;
  const int size = it.doubles();
  for (int k = 0; k < n; k++) {
    const auto row = it.node_of(atoms[k]);
    if (row < 0) continue;
    char *target = it.rows + row * it.row_bytes;
    const char *source = reinterpret_cast<const char *>(buf + k * size);
    if (it.item_bytes == 4)
      for (int c = 0; c < it.row_width; c++)
        reinterpret_cast<float *>(target)[c] += reinterpret_cast<const float *>(source)[c];
    else
      for (int c = 0; c < it.row_width; c++)
        reinterpret_cast<double *>(target)[c] += reinterpret_cast<const double *>(source)[c];
  }
}

double PairMDCG::memory_usage()
{
  const Impl &it = *impl;
  double bytes = Pair::memory_usage();
  bytes += static_cast<double>(it.sender.capacity() + it.receiver.capacity() +
                               it.types.capacity() + it.node.capacity() + it.atom.capacity()) *
      sizeof(std::int32_t);
  bytes += static_cast<double>(it.positions.capacity() + it.forces.capacity() +
                               it.energies.capacity() + it.virials.capacity()) *
      sizeof(double);
  return bytes;
}

void *PairMDCG::extract(const char *name, int &dim)
{
  dim = 0;
  if (std::strcmp(name, "r_max") == 0) return &impl->info.r_max;
  return nullptr;
}
