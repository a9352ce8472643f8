// SPDX-License-Identifier: GPL-2.0-only
// Every step: the evaluation, and the exchange of rows between its layers.
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "atom.h"
#include "comm.h"
#include "domain.h"
#include "error.h"
#include "neighbor.h"
#include "pair_mdcg_impl.h"
#include "platform.h"

using namespace LAMMPS_NS;
using mdcg_lammps::GhostExchange;

namespace {

struct Exchange {
  GhostExchange *ghosts;
  std::int64_t num_local;
  double seconds = 0.0;
  std::exception_ptr error;
};

// Exceptions must not cross the C interface: they are stored, and rethrown after the call.
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
  // every rank runs all of this, even without atoms: the others wait for its part of
  // each exchange
  if (!it.bonds_checked && !it.own_list) check_bonds();
  if (it.own_list && neighbor->exclude)
    all_or_none(FLERR,
                "a fix has excluded pairs from the neighbour list after the pair style was set up "
                "without one, expected neigh_modify exclude before the run, or device cpu");
  if (new_neighbors()) {
    if (it.own_list)
      take_copies();
    else
      take_neighbors();
    take_types();
  }
  take_positions();
  take_shifts();

  mdcg_system system{};
  system.size = sizeof(system);
  system.num_local = it.num_local;
  system.num_nodes = it.num_nodes;
  system.positions = it.positions.data();
  system.types = it.types.data();
  const int periodic[3] = {domain->xperiodic, domain->yperiodic, domain->zperiodic};
  const bool images = it.own_list ? comm->nprocs > 1 : it.cells.size() > 1;
  if (images) {
    system.num_images = static_cast<std::int64_t>(it.cells.size());
    system.image_shifts = it.image_shifts.data();
  }
  if (it.own_list) {
    system.make_edges = 1;
    system.skin = neighbor->skin > 0.0 ? neighbor->skin : -1.0;
    if (comm->nprocs == 1) {
      system.cell = it.box.data();
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
  // the engine keeps a list of a periodic cell where it is still valid
  system.same_edges = it.fresh || system.cell ? 0 : 1;
  it.fresh = false;

  double energy = 0.0, sum[9] = {};
  // never null, which means "not wanted" to the engine: all ranks must ask for the same results
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
  // Other ranks may be waiting in an exchange, so an error on one rank aborts all of them.
  if (it.library->evaluate(it.model, &system, comm->nprocs == 1 ? nullptr : &communicator,
                           &results) != MDCG_OK) {
    if (exchange.error) std::rethrow_exception(exchange.error);
    std::vector<std::int64_t> ids;    // atom ids of the nodes that the error names
    for (std::int64_t n = 0; n < it.num_nodes && atom->tag_enable; n++)
      ids.push_back(atom->tag[it.atom[n]]);
    const std::string reason =
        std::string("pair_style mdcg: ") +
        (ids.empty() ? it.library->last_error() : it.library->last_error_about(ids.data()));
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

// ---- LAMMPS tells each ghost its atom through these ----

int PairMDCG::pack_forward_comm(int n, int *atoms, double *buf, int, int *)
{
  for (int k = 0; k < n; k++) buf[k] = impl->owner[atoms[k]];
  return n;
}

void PairMDCG::unpack_forward_comm(int n, int first, double *buf)
{
  for (int k = 0; k < n; k++) impl->owner[first + k] = buf[k];
}
