// SPDX-License-Identifier: GPL-2.0-only
// Every step: edges, the evaluation, and the exchange of rows between its layers.
#include <mpi.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>

#include "atom.h"
#include "comm.h"
#include "domain.h"
#include "error.h"
#include "force.h"
#include "neigh_list.h"
#include "neighbor.h"
#include "pair_mdcg_impl.h"
#include "platform.h"

using namespace LAMMPS_NS;
using mdcg_lammps::AtomId;
using mdcg_lammps::GhostExchange;

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

// Ghosts that edges may lead to: of other ranks not more than that are wanted.
std::vector<char> PairMDCG::ghosts_near() const
{
  const int nlocal = atom->nlocal, nghost = atom->nghost;
  std::vector<char> seen(nghost, comm->nprocs == 1);
  if (comm->nprocs == 1) return seen;
  if (!impl->own_list) {
    for (int ii = 0; ii < list->inum; ii++) {
      const int *neighbors = list->firstneigh[list->ilist[ii]];
      for (int jj = 0; jj < list->numneigh[list->ilist[ii]]; jj++) {
        const int j = neighbors[jj] & NEIGHMASK;
        if (j >= nlocal) seen[j - nlocal] = 1;
      }
    }
    return seen;
  }
  // around a box of the local nodes; there may be none of those
  double **x = atom->x, low[3], high[3];
  for (int k = 0; k < 3; k++) {
    low[k] = HUGE_VAL;
    high[k] = -HUGE_VAL;
    for (int i = 0; i < nlocal; i++) {
      if (impl->kind[atom->type[i]] < 0) continue;
      low[k] = std::min(low[k], x[i][k]);
      high[k] = std::max(high[k], x[i][k]);
    }
  }
  const double reach = impl->info.r_max + neighbor->skin + 1e-6;
  for (int j = 0; j < nghost; j++) {
    const double *at = x[nlocal + j];
    seen[j] = 1;
    for (int k = 0; k < 3; k++)
      if (at[k] < low[k] - reach || at[k] > high[k] + reach) seen[j] = 0;
  }
  return seen;
}

// Which atoms are nodes of the graph: those of types that are not NULL. First the local ones, then
// those of other ranks that edges may lead to, in the order of their owners.
void PairMDCG::take_nodes()
{
  Impl &it = *impl;
  const int nlocal = atom->nlocal, nall = nlocal + atom->nghost;
  const bool cell = it.own_list && comm->nprocs == 1;    // ghosts are not needed
  if (!cell) {
    it.owner.resize(nall);
    for (int i = 0; i < nlocal; i++) it.owner[i] = AtomId::of(comm->me, i);
    comm->forward_comm(this, 1);
  }

  it.node.assign(nall, -1);
  it.atom.clear();
  for (int i = 0; i < nlocal; i++) {
    if (it.kind[atom->type[i]] < 0) continue;
    it.node[i] = static_cast<std::int32_t>(it.atom.size());
    it.atom.push_back(i);
  }
  it.num_local = static_cast<std::int64_t>(it.atom.size());

  const std::vector<char> seen = ghosts_near();
  std::vector<std::int32_t> images;    // of atoms of other ranks
  for (int j = nlocal; j < nall && !cell; j++) {
    if (!seen[j - nlocal] || it.kind[atom->type[j]] < 0) continue;
    if (AtomId::rank(it.owner[j]) == comm->me)
      it.node[j] = it.node[AtomId::atom(it.owner[j])];
    else
      images.push_back(j);
  }
  std::vector<double> wanted;
  for (const int j : mdcg_lammps::by_owner(images, it.owner)) {
    if (wanted.empty() || wanted.back() != it.owner[j]) {
      wanted.push_back(it.owner[j]);
      it.atom.push_back(j);
    }
    it.node[j] = static_cast<std::int32_t>(it.atom.size()) - 1;
  }
  it.num_nodes = static_cast<std::int64_t>(it.atom.size());
  it.types.resize(it.num_nodes);
  if (comm->nprocs == 1) return;
  it.ghosts.sent.clear();
  for (const int i : it.ghosts.plan(world, wanted)) it.ghosts.sent.push_back(it.node[i]);
}

// Types of the nodes; commands such as set change them between neighbour lists. False: a node is
// none any more. (Atoms that were none have no neighbours in the list until it is made anew, and
// become nodes then.)
bool PairMDCG::take_types()
{
  Impl &it = *impl;
  for (std::int64_t n = 0; n < it.num_nodes; n++) {
    it.types[n] = it.kind[atom->type[it.atom[n]]];
    if (it.types[n] < 0) return false;
  }
  return true;
}

// Number of the cell that leads from an image to the place of its node.
std::int32_t PairMDCG::image_of(int ghost)
{
  Impl &it = *impl;
  const double *from = atom->x[ghost], *to = atom->x[it.atom[it.node[ghost]]];
  const double *h = domain->h;    // xx yy zz yz xz xy
  std::array<int, 3> cell{};
  double rest[3];
  for (int k = 0; k < 3; k++) rest[k] = to[k] - from[k];
  for (int k = 2; k >= 0; k--) {
    cell[k] = static_cast<int>(std::lround(rest[k] / h[k]));
    if (!domain->triclinic) continue;
    if (k == 2) rest[1] -= h[3] * cell[2], rest[0] -= h[4] * cell[2];
    if (k == 1) rest[0] -= h[5] * cell[1];
  }
  const auto found = std::find(it.cells.begin(), it.cells.end(), cell);
  const auto number = static_cast<std::int32_t>(found - it.cells.begin());
  if (found == it.cells.end()) it.cells.push_back(cell);
  return number;
}

// What edges of the device's list lead to beside nodes; a lone rank has a cell instead.
void PairMDCG::take_copies()
{
  Impl &it = *impl;
  take_nodes();
  it.cells.assign(1, {0, 0, 0});
  it.copy_node.clear();
  it.copy_image.clear();
  const int nall = atom->nlocal + atom->nghost;
  for (int j = atom->nlocal; j < nall && comm->nprocs > 1; j++)
    if (it.node[j] >= 0 && it.atom[it.node[j]] != j) {
      it.copy_node.push_back(it.node[j]);
      it.copy_image.push_back(image_of(j));
    }
  it.fresh = true;
  it.known_local = atom->nlocal;
  it.known_all = nall;
}

// Edges of the neighbour list as it is, its skin included.
void PairMDCG::take_neighbors()
{
  Impl &it = *impl;
  take_nodes();
  it.cells.assign(1, {0, 0, 0});
  const int nall = atom->nlocal + atom->nghost;
  std::vector<std::int32_t> image_of_ghost(nall, 0);
  for (int j = 0; j < nall; j++)
    if (it.node[j] >= 0 && it.atom[it.node[j]] != j) image_of_ghost[j] = image_of(j);
  std::size_t most = 0, edges = 0;
  for (int ii = 0; ii < list->inum; ii++) most += list->numneigh[list->ilist[ii]];
  it.sender.resize(most);
  it.receiver.resize(most);
  it.image.resize(most);
  for (int ii = 0; ii < list->inum; ii++) {
    const int i = list->ilist[ii];
    const std::int32_t receiver = it.node[i];
    if (receiver < 0) continue;
    const int *neighbors = list->firstneigh[i];
    for (int jj = 0; jj < list->numneigh[i]; jj++) {
      const int j = neighbors[jj] & NEIGHMASK;
      const std::int32_t sender = it.node[j];
      if (sender < 0) continue;
      it.sender[edges] = sender;
      it.receiver[edges] = receiver;
      it.image[edges++] = image_of_ghost[j];
    }
  }
  it.sender.resize(edges);
  it.receiver.resize(edges);
  it.image.resize(edges);
  it.fresh = true;
  it.known_local = atom->nlocal;
  it.known_all = nall;
}

// Whether the neighbour list is another one than that of the step before, or does not fit any more;
// the same on all ranks.
bool PairMDCG::new_neighbors()
{
  if (neighbor->ago == 0) return true;
  int mine = impl->known_local != atom->nlocal || impl->known_all != atom->nlocal + atom->nghost ||
             !take_types();
  int any = mine;
  if (comm->nprocs > 1) MPI_Allreduce(&mine, &any, 1, MPI_INT, MPI_MAX, world);
  return any != 0;
}

void PairMDCG::take_positions()
{
  Impl &it = *impl;
  double **x = atom->x;
  it.positions.resize(3 * it.num_nodes);
  for (std::int64_t n = 0; n < it.num_nodes; n++)
    std::memcpy(&it.positions[3 * n], x[it.atom[n]], 3 * sizeof(double));
  const double *h = domain->h;
  it.image_shifts.resize(3 * it.cells.size());
  for (std::size_t c = 0; c < it.cells.size(); c++) {
    const auto &[a, b, d] = it.cells[c];
    double *shift = &it.image_shifts[3 * c];
    shift[0] = h[0] * a;
    shift[1] = h[1] * b;
    shift[2] = h[2] * d;
    if (!domain->triclinic) continue;
    shift[0] += h[5] * b + h[4] * d;
    shift[1] += h[3] * d;
  }
}

namespace {

struct Exchange {
  GhostExchange *ghosts;
  std::int64_t num_local;
  double seconds = 0.0;
  std::exception_ptr error;
};

// What is thrown must not pass through the C interface: it is kept, and thrown again behind it.
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
  if (!it.bonds_checked && !it.own_list) check_bonds();
  if (it.own_list && neighbor->exclude)
    all_or_none("a fix has excluded pairs from the neighbour list after the pair style was set up "
                "without one, expected neigh_modify exclude before the run, or device cpu");
  if (new_neighbors()) {
    if (it.own_list)
      take_copies();
    else
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
  const double *h = domain->h;    // xx yy zz yz xz xy
  const double cell[9] = {h[0], 0.0, 0.0, h[5], h[1], 0.0, h[4], h[3], h[2]};
  const int periodic[3] = {domain->xperiodic, domain->yperiodic, domain->zperiodic};
  const bool images = it.cells.size() > 1 || (it.own_list && comm->nprocs > 1);
  if (images) {
    system.num_images = static_cast<std::int64_t>(it.cells.size());
    system.image_shifts = it.image_shifts.data();
  }
  if (it.own_list) {
    system.make_edges = 1;
    system.skin = neighbor->skin > 0.0 ? neighbor->skin : -1.0;
    if (comm->nprocs == 1) {
      system.cell = cell;
      system.periodic = periodic;
    } else {
      system.num_copies = static_cast<std::int64_t>(it.copy_node.size());
      system.copy_node = it.copy_node.data();
      system.copy_image = it.copy_image.data();
    }
  } else {
    system.num_edges = static_cast<std::int64_t>(it.sender.size());
    system.sender = it.sender.data();
    system.receiver = it.receiver.data();
    if (images) system.image = it.image.data();
  }
  // a cell's list is kept where the engine sees that it can be
  system.same_edges = it.fresh || system.cell ? 0 : 1;
  it.fresh = false;

  double energy = 0.0, sum[9] = {};
  // never null, which the engine would take for not wanted: all ranks must want the same
  it.forces.resize(std::max<std::size_t>(3 * it.num_nodes, 3));
  mdcg_results results{};
  results.size = sizeof(results);
  if (eflag_global) results.energy = &energy;
  results.forces = it.forces.data();
  if (vflag_global) results.virial = sum;
  if (eflag_atom) {
    it.energies.resize(std::max<std::size_t>(it.num_local, 1));
    results.energies = it.energies.data();
  }
  if (vflag_atom) {
    it.virials.resize(std::max<std::size_t>(9 * it.num_nodes, 9));
    results.virials = it.virials.data();
  }

  Exchange exchange{&it.ghosts, it.num_local, 0.0, nullptr};
  mdcg_communicator communicator{};
  communicator.size = sizeof(communicator);
  communicator.context = &exchange;
  communicator.forward = [](void *context, void *rows, int width, int item_bytes) {
    auto &of = *static_cast<Exchange *>(context);
    return timed(of, [&] {
      char *const first = static_cast<char *>(rows);
      of.ghosts->forward(first, first + of.num_local * width * item_bytes, width * item_bytes);
    });
  };
  communicator.reverse = [](void *context, void *rows, int width, int item_bytes) {
    auto &of = *static_cast<Exchange *>(context);
    return timed(of, [&] {
      char *const first = static_cast<char *>(rows);
      of.ghosts->reverse(first, first + of.num_local * width * item_bytes, width, item_bytes);
    });
  };
  communicator.num_sent = static_cast<std::int64_t>(it.ghosts.sent.size());
  communicator.sent = it.ghosts.sent.data();
  communicator.forward_rows = [](void *context, const void *sent, void *ghosts, int row_bytes) {
    auto &of = *static_cast<Exchange *>(context);
    return timed(of, [&] {
      of.ghosts->forward_rows(static_cast<const char *>(sent), static_cast<char *>(ghosts),
                              row_bytes);
    });
  };
  communicator.reverse_rows = [](void *context, const void *ghosts, void *sent, int row_bytes) {
    auto &of = *static_cast<Exchange *>(context);
    return timed(of, [&] {
      of.ghosts->reverse_rows(static_cast<const char *>(ghosts), static_cast<char *>(sent),
                              row_bytes);
    });
  };
  communicator.any = [](void *context, int *flag) {
    auto &of = *static_cast<Exchange *>(context);
    return timed(of, [&] { *flag = of.ghosts->any(*flag); });
  };
  if (it.device_to_device) {
    communicator.rank = comm->me;
    communicator.num_ranks = comm->nprocs;
    communicator.num_peers = static_cast<std::int64_t>(it.ghosts.peers.size());
    communicator.peers = it.ghosts.peers.data();
    communicator.gather = [](void *context, const void *mine, void *all, int bytes) {
      auto &of = *static_cast<Exchange *>(context);
      return timed(of, [&] { of.ghosts->gather(mine, all, bytes); });
    };
  }
  const double start = platform::walltime();
  // Other ranks may be waiting in an exchange: an error of one ends all of them at once.
  if (it.library->evaluate(it.model, &system, comm->nprocs == 1 ? nullptr : &communicator,
                           &results) != MDCG_OK) {
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
    double *force = atom->f[it.atom[n]];
    for (int k = 0; k < 3; k++) force[k] += unit * it.forces[3 * n + k];
  }
  if (eflag_global) eng_vdwl += unit * energy;
  if (eflag_atom)
    for (std::int64_t n = 0; n < it.num_local; n++) eatom[it.atom[n]] += unit * it.energies[n];
  if (vflag_global)
    for (int k = 0; k < 6; k++) virial[k] += unit * sum[PLACE[k]];
  if (vflag_atom)
    for (std::int64_t n = 0; n < it.num_nodes; n++)
      for (int k = 0; k < 6; k++) vatom[it.atom[n]][k] += unit * it.virials[9 * n + PLACE[k]];
}

// ---- what LAMMPS sends to ghosts: of which atom they are images ----

int PairMDCG::pack_forward_comm(int n, int *atoms, double *buf, int, int *)
{
  for (int k = 0; k < n; k++) buf[k] = impl->owner[atoms[k]];
  return n;
}

void PairMDCG::unpack_forward_comm(int n, int first, double *buf)
{
  for (int k = 0; k < n; k++) impl->owner[first + k] = buf[k];
}
