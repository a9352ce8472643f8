// SPDX-License-Identifier: GPL-2.0-only
// Every step: edges, the evaluation, and the exchange of rows between its layers.
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>

#include "atom.h"
#include "comm.h"
#include "error.h"
#include "force.h"
#include "neigh_list.h"
#include "neighbor.h"
#include "pair_mdcg_impl.h"
#include "platform.h"

using namespace LAMMPS_NS;

// special_bonds 0 takes pairs out of the neighbour list that the potential needs. Only now ghosts
// are there, and with them the types of all partners.
void PairMDCG::check_bonds()
{
  impl->bonds_checked = true;
  bool removed[4] = {};
  for (int k = 1; k < 4; k++)
    removed[k] = force->special_lj[k] == 0.0 && force->special_coul[k] == 0.0;
  if (!removed[1] && !removed[2] && !removed[3]) return;
  if (atom->molecular == Atom::TEMPLATE)
    all_or_none("special_bonds may leave out bonded neighbours, which the potential needs and "
                "atom_style template does not list, expected special_bonds lj/coul 1 1 1");
  if (atom->molecular != Atom::MOLECULAR || !atom->special || !atom->map_style) return;
  std::string reason;
  for (int i = 0; i < atom->nlocal; i++) {
    if (impl->kind[atom->type[i]] < 0) continue;
    for (int s = 0; s < atom->nspecial[i][2]; s++) {
      const int which = s < atom->nspecial[i][0] ? 1 : s < atom->nspecial[i][1] ? 2 : 3;
      const int j = removed[which] ? atom->map(atom->special[i][s]) : -1;
      if (j >= 0 && impl->kind[atom->type[j]] >= 0)
        reason = "special_bonds leaves out bonded neighbours, which the potential needs, expected "
                 "special_bonds lj/coul 1 1 1";
    }
  }
  all_or_none(reason);
}

// Which atoms are nodes of the graph: those of types that are not NULL; of one rank the local ones,
// of several also ghosts.
void PairMDCG::take_nodes()
{
  Impl &it = *impl;
  const int nlocal = atom->nlocal, nall = nlocal + atom->nghost;
  it.node.clear();
  it.atom.clear();
  it.folded = comm->nprocs == 1;
  it.num_local = nlocal;
  it.num_nodes = it.folded ? nlocal : nall;
  if (it.excluded) {
    it.node.assign(nall, -1);
    const int end = it.folded ? nlocal : nall;
    for (int i = 0; i < end; i++) {
      if (i == nlocal) it.num_local = static_cast<std::int64_t>(it.atom.size());
      if (it.kind[atom->type[i]] < 0) continue;
      it.node[i] = static_cast<std::int32_t>(it.atom.size());
      it.atom.push_back(i);
    }
    it.num_nodes = static_cast<std::int64_t>(it.atom.size());
    if (end == nlocal) it.num_local = it.num_nodes;
  }
  it.types.resize(it.num_nodes);
  if (!it.folded) return;
  it.owner.resize(nall);
  for (int i = 0; i < nlocal; i++) it.owner[i] = i;
  it.take_rows(it.owner.data(), 1, sizeof(double));
  it.rows_of_atoms = true;
  comm->forward_comm(this, 1);
  it.rows_of_atoms = false;
}

// Types of the nodes; commands such as fix atom/swap change them between neighbour lists. False:
// a node is none any more. (Atoms that were none have no neighbours in the list until it is made
// anew, and become nodes then.)
bool PairMDCG::take_types()
{
  Impl &it = *impl;
  for (std::int64_t n = 0; n < it.num_nodes; n++) {
    it.types[n] = it.kind[atom->type[it.atom_of(n)]];
    if (it.types[n] < 0) return false;
  }
  return true;
}

// Edges of the neighbour list as it is, its skin included.
void PairMDCG::take_neighbors()
{
  Impl &it = *impl;
  const int nlocal = atom->nlocal;
  take_nodes();
  it.sender.clear();
  it.receiver.clear();
  it.image_edges.clear();
  for (int ii = 0; ii < list->inum; ii++) {
    const int i = list->ilist[ii];
    const std::int64_t receiver = it.node_of(i);
    if (receiver < 0) continue;
    const int *neighbors = list->firstneigh[i];
    for (int jj = 0; jj < list->numneigh[i]; jj++) {
      const int j = neighbors[jj] & NEIGHMASK;
      const std::int64_t sender =
          it.node_of(it.folded && j >= nlocal ? static_cast<int>(it.owner[j]) : j);
      if (sender < 0) continue;
      if (it.folded && j >= nlocal)
        it.image_edges.push_back({static_cast<std::int64_t>(it.sender.size()), j});
      it.sender.push_back(static_cast<std::int32_t>(sender));
      it.receiver.push_back(static_cast<std::int32_t>(receiver));
    }
  }
  it.shifts.assign(it.folded ? 3 * it.sender.size() : 0, 0.0);
  it.fresh = true;
  it.known_local = nlocal;
  it.known_all = nlocal + atom->nghost;
}

void PairMDCG::take_positions()
{
  Impl &it = *impl;
  double **x = atom->x;
  it.positions.resize(3 * it.num_nodes);
  for (std::int64_t n = 0; n < it.num_nodes; n++)
    std::memcpy(&it.positions[3 * n], x[it.atom_of(n)], 3 * sizeof(double));
  for (const auto &image : it.image_edges) {
    const double *ghost = x[image.ghost], *owner = x[static_cast<int>(it.owner[image.ghost])];
    for (int k = 0; k < 3; k++) it.shifts[3 * image.edge + k] = owner[k] - ghost[k];
  }
}

namespace {

struct Exchange {
  PairMDCG *pair;
  Comm *comm;
  double seconds = 0.0;
  std::exception_ptr error;
};

// What LAMMPS throws must not pass through the C interface: it is kept, and thrown again behind it.
template <typename Function> int timed(Exchange &of, const Function &exchange) noexcept
{
  const double start = platform::walltime();
  try {
    exchange();
  } catch (...) {
    of.error = std::current_exception();
  }
  of.seconds += platform::walltime() - start;
  return of.error ? 1 : 0;
}

}    // namespace

void PairMDCG::compute(int eflag, int vflag)
{
  ev_init(eflag, vflag);
  Impl &it = *impl;
  // every rank goes through all of this, also one without atoms: the others wait for its part of
  // each exchange
  if (!it.bonds_checked) check_bonds();
  if (neighbor->ago == 0 || it.known_local != atom->nlocal ||
      it.known_all != atom->nlocal + atom->nghost || !take_types()) {
    take_neighbors();
    take_types();
  }
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
  system.shifts = it.folded ? it.shifts.data() : nullptr;
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

  Exchange exchange{this, comm, 0.0, nullptr};
  mdcg_communicator communicator{};
  communicator.size = sizeof(communicator);
  communicator.context = &exchange;
  communicator.forward = [](void *context, void *rows, int width, int item_bytes) {
    auto &of = *static_cast<Exchange *>(context);
    return timed(of, [&] {
      of.pair->impl->take_rows(rows, width, item_bytes);
      of.comm->forward_comm(of.pair, of.pair->impl->doubles());
    });
  };
  communicator.reverse = [](void *context, void *rows, int width, int item_bytes) {
    auto &of = *static_cast<Exchange *>(context);
    return timed(of, [&] {
      of.pair->impl->take_rows(rows, width, item_bytes);
      of.comm->reverse_comm(of.pair, of.pair->impl->doubles());
    });
  };
  const double start = platform::walltime();
  // Other ranks may be waiting in an exchange: an error of one ends all of them at once.
  if (it.library->evaluate(it.model, &system, it.folded ? nullptr : &communicator, &results) !=
      MDCG_OK) {
    if (exchange.error) std::rethrow_exception(exchange.error);
    const std::string reason = std::string("pair_style mdcg: ") + it.library->last_error();
    if (comm->nprocs > 1) {    // launchers lose what a rank prints just before it aborts
      std::fprintf(stderr, "rank %d: %s\n", comm->me, reason.c_str());
      std::fflush(stderr);
      platform::usleep(200000);
    }
    error->one(FLERR, reason);
  }
  pvector[0] = exchange.seconds;
  pvector[1] = platform::walltime() - start;
  if (!it.announced) announce();
  add_results(energy, sum);
}

void PairMDCG::add_results(double energy, const double *sum)
{
  Impl &it = *impl;
  const double unit = it.energy_unit;
  static constexpr int PLACE[6] = {0, 4, 8, 1, 2, 5};    // xx yy zz xy xz yz
  for (std::int64_t n = 0; n < it.num_nodes; n++) {
    double *force = atom->f[it.atom_of(n)];
    for (int k = 0; k < 3; k++) force[k] += unit * it.forces[3 * n + k];
  }
  if (eflag_global) eng_vdwl += unit * energy;
  if (eflag_atom)
    for (std::int64_t n = 0; n < it.num_local; n++) eatom[it.atom_of(n)] += unit * it.energies[n];
  if (vflag_global)
    for (int k = 0; k < 6; k++) virial[k] += unit * sum[PLACE[k]];
  if (vflag_atom)
    for (std::int64_t n = 0; n < it.num_nodes; n++)
      for (int k = 0; k < 6; k++) vatom[it.atom_of(n)][k] += unit * it.virials[9 * n + PLACE[k]];
}

// ---- rows of ghosts; their items travel as they are, two floats in the place of a double ----

int PairMDCG::pack_forward_comm(int n, int *atoms, double *buf, int, int *)
{
  const Impl &it = *impl;
  const int size = it.doubles();
  for (int k = 0; k < n; k++)
    if (const auto row = it.row_of(atoms[k]); row >= 0)
      std::memcpy(buf + k * size, it.rows + row * it.row_bytes, it.row_bytes);
  return n * size;
}

void PairMDCG::unpack_forward_comm(int n, int first, double *buf)
{
  const Impl &it = *impl;
  const int size = it.doubles();
  for (int k = 0; k < n; k++)
    if (const auto row = it.row_of(first + k); row >= 0)
      std::memcpy(it.rows + row * it.row_bytes, buf + k * size, it.row_bytes);
}

int PairMDCG::pack_reverse_comm(int n, int first, double *buf)
{
  const Impl &it = *impl;
  const int size = it.doubles();
  for (int k = 0; k < n; k++)
    if (const auto row = it.row_of(first + k); row >= 0)
      std::memcpy(buf + k * size, it.rows + row * it.row_bytes, it.row_bytes);
  return n * size;
}

namespace {

template <typename Item> void add(char *target, const double *source, int width)
{
  auto *to = reinterpret_cast<Item *>(target);
  auto *from = reinterpret_cast<const Item *>(source);
  for (int c = 0; c < width; c++) to[c] += from[c];
}

}    // namespace

void PairMDCG::unpack_reverse_comm(int n, int *atoms, double *buf)
{
  const Impl &it = *impl;
  const int size = it.doubles();
  for (int k = 0; k < n; k++) {
    const auto row = it.row_of(atoms[k]);
    if (row < 0) continue;
    char *target = it.rows + row * it.row_bytes;
    if (it.item_bytes == 4)
      add<float>(target, buf + k * size, it.row_width);
    else
      add<double>(target, buf + k * size, it.row_width);
  }
}
