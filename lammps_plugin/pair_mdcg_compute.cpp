// SPDX-License-Identifier: GPL-2.0-only
// What runs at every step: the evaluation, and the exchange of rows between its layers.
#include <mpi.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
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
#include "update.h"

using namespace LAMMPS_NS;
using mdcg_lammps::GhostExchange;

// Callbacks of the engine that exchange rows during a step. Exceptions must not cross the C
// interface, so they are stored, and rethrown after the call.
struct PairMDCG::Exchange {
  GhostExchange &ghosts;
  std::int64_t num_local;
  double seconds = 0.0;
  std::exception_ptr error;

  template <typename Function> static int timed(void *context, const Function &function) noexcept
  {
    auto &of = *static_cast<Exchange *>(context);
    const double start = platform::walltime();
    try {
      function(of.ghosts, of.num_local);
    } catch (...) {
      of.error = std::current_exception();
    }
    of.seconds += platform::walltime() - start;
    return of.error ? 1 : 0;
  }

  mdcg_communicator communicator();
  void add_peers(mdcg_communicator &communicator, const Comm *comm);
};

mdcg_communicator PairMDCG::Exchange::communicator()
{
  mdcg_communicator out{};
  out.size = sizeof(out);
  out.context = this;
  out.forward = [](void *context, void *rows, int width, int item_bytes) {
    return timed(context, [&](GhostExchange &ghosts, std::int64_t num_local) {
      char *const first = static_cast<char *>(rows);
      ghosts.forward(first, first + num_local * width * item_bytes, width * item_bytes);
    });
  };
  out.reverse = [](void *context, void *rows, int width, int item_bytes) {
    return timed(context, [&](GhostExchange &ghosts, std::int64_t num_local) {
      char *const first = static_cast<char *>(rows);
      ghosts.reverse(first, first + num_local * width * item_bytes, width, item_bytes);
    });
  };
  out.num_sent = static_cast<std::int64_t>(ghosts.sent.size());
  out.sent = ghosts.sent.data();
  out.forward_rows = [](void *context, const void *sent, void *rows, int row_bytes) {
    return timed(context, [&](GhostExchange &ghosts, std::int64_t) {
      ghosts.forward_rows(static_cast<const char *>(sent), static_cast<char *>(rows), row_bytes);
    });
  };
  out.reverse_rows = [](void *context, const void *rows, void *sent, int row_bytes) {
    return timed(context, [&](GhostExchange &ghosts, std::int64_t) {
      ghosts.reverse_rows(static_cast<const char *>(rows), static_cast<char *>(sent), row_bytes);
    });
  };
  out.sum = [](void *context, std::int64_t *values, std::int64_t count) {
    return timed(context, [&](GhostExchange &ghosts, std::int64_t) { ghosts.sum(values, count); });
  };
  return out;
}

void PairMDCG::Exchange::add_peers(mdcg_communicator &communicator, const Comm *comm)
{
  communicator.rank = comm->me;
  communicator.num_ranks = comm->nprocs;
  communicator.num_peers = static_cast<std::int64_t>(ghosts.peers.size());
  communicator.peers = ghosts.peers.data();
  communicator.gather = [](void *context, const void *mine, void *all, int bytes) {
    return timed(context,
                 [&](GhostExchange &ghosts, std::int64_t) { ghosts.gather(mine, all, bytes); });
  };
}

// Tries whether rows can go from device to device between all ranks. Returns why not, the same on
// all ranks, or an empty text. Collective.
std::string PairMDCG::why_not_peers()
{
  GhostExchange ranks;
  ranks.plan(world, {});
  for (int rank = 0; rank < comm->nprocs; rank++)
    if (rank != comm->me) ranks.peers.push_back({rank, 0, 0, 0, 0, 0, 0});
  Exchange exchange{ranks, 0, 0.0, nullptr};
  mdcg_communicator communicator = exchange.communicator();
  exchange.add_peers(communicator, comm);
  const Member &member = impl->members.front();
  const mdcg_status status = impl->library->check_peers(member.model.get(), &communicator);
  if (exchange.error) std::rethrow_exception(exchange.error);
  if (status == MDCG_OK) return "";
  const std::string reason = impl->library->last_error();
  if (status != MDCG_ERROR_DEVICE) error->all(FLERR, "pair_style mdcg: " + reason);
  return reason;
}

void PairMDCG::compute(int eflag, int vflag)
{
  require_setup();
  ev_init(eflag, vflag);
  Impl &it = *impl;
  if (vflag_atom && has_long_range_sum())
    error->all(FLERR,
               "pair_style mdcg: the model has a long-range sum, which has no virials of single "
               "atoms, expected commands that ask for the virial of the system alone: remove "
               "compute stress/atom and the like");
  // Ranks without atoms go on too, because exchanges are collective.
  if (neighbors_changed()) update_graph();
  const mdcg_system system = system_of_members();

  // Only the first member is evaluated if no results of the others are wanted.
  const bool all = !it.first_only || eflag_global || it.deviations_asked;
  const std::size_t count = all ? it.members.size() : 1;
  Exchange exchange{it.nodes.ghosts, it.nodes.num_local, 0.0, nullptr};
  if (it.charges_asked) {
    it.charges.assign(std::max(atom->nlocal, 1), 0.0);
    it.charges_step = update->ntimestep;
  }
  pvector[1] = 0.0;
  for (std::size_t m = 0; m < count; m++)
    evaluate(it.members[m], it.nodes, system, exchange,
             it.first_only ? (m == 0 ? 1.0 : 0.0) : 1.0 / static_cast<double>(count));
  pvector[0] = exchange.seconds;
  if (it.dispersion) {
    Nodes &nodes = comm->nprocs == 1 ? it.nodes : it.dispersion_nodes;
    Exchange dispersion_exchange{nodes.ghosts, nodes.num_local, 0.0, nullptr};
    evaluate(*it.dispersion, nodes, system_of(nodes, true), dispersion_exchange, 1.0);
    pvector[0] += dispersion_exchange.seconds;
  }
  if (count > 1) compute_deviations();
}

// Returns the nodes with their current positions, for the engine, which makes the edges itself if
// `make_edges` is true.
mdcg_system PairMDCG::system_of(Nodes &nodes, bool make_edges) const
{
  nodes.update_positions(atom);
  nodes.update_shifts(atom, domain);
  mdcg_system system{};
  system.size = sizeof(system);
  system.num_local = nodes.num_local;
  system.num_nodes = nodes.num_nodes;
  system.positions = nodes.positions.data();
  if (make_edges) {
    system.make_edges = 1;
    system.skin = neighbor->skin > 0.0 ? neighbor->skin : -1.0;
  }
  system.num_inner = nodes.num_inner;
  if (make_edges && comm->nprocs == 1) {
    system.cell = nodes.box.data();
    system.periodic = nodes.periodic.data();
    return system;
  }
  if (make_edges || nodes.cells.size() > 1) {
    system.num_images = static_cast<std::int64_t>(nodes.cells.size());
    system.image_shifts = nodes.image_shifts.data();
  }
  if (make_edges) {
    system.num_copies = static_cast<std::int64_t>(nodes.copy_node.size());
    system.copy_node = nodes.copy_node.data();
    system.copy_image = nodes.copy_image.data();
  }
  return system;
}

// Returns the nodes and edges that the members share.
mdcg_system PairMDCG::system_of_members()
{
  Impl &it = *impl;
  mdcg_system system = system_of(it.nodes, it.device_makes_list);
  if (it.device_makes_list) return system;
  system.num_edges = static_cast<std::int64_t>(it.sender.size());
  system.sender = it.sender.data();
  system.receiver = it.receiver.data();
  if (it.nodes.cells.size() > 1) system.image = it.image.data();
  return system;
}

// Evaluates one member, and adds its results, times the weight, to LAMMPS' arrays.
void PairMDCG::evaluate(Member &member, Nodes &nodes, mdcg_system system, Exchange &exchange,
                        double weight)
{
  Impl &it = *impl;
  double sum[9] = {};
  // All ranks must ask for the same results, and to the engine null means "not wanted". So a rank
  // without nodes needs memory too.
  member.forces.resize(std::max<std::size_t>(3 * nodes.num_nodes, 3));
  mdcg_results results{};
  results.size = sizeof(results);
  if (eflag_global) results.energy = &member.energy;
  results.forces = member.forces.data();
  if (vflag_global && weight != 0.0) results.virial = sum;
  if (eflag_atom && weight != 0.0) {
    it.energies.resize(std::max<std::size_t>(nodes.num_local, 1));
    results.energies = it.energies.data();
  }
  if (vflag_atom && weight != 0.0) {
    it.virials.resize(std::max<std::size_t>(9 * nodes.num_nodes, 9));
    results.virials = it.virials.data();
  }

  const bool charges = it.charges_asked && weight != 0.0 && member.info.has_charges;
  const std::int64_t width = charges ? it.library->descriptor_width(member.model.get()) : 0;
  if (charges) {
    it.descriptors.resize(std::max<std::size_t>(nodes.num_local * width, 1));
    results.descriptors = it.descriptors.data();
  }

  const double start = platform::walltime();
  run_engine(member, nodes, system, exchange, results);
  pvector[1] += platform::walltime() - start;
  if (!member.announced && &member != it.dispersion.get()) announce(member);
  if (weight != 0.0) add_results(member, nodes, sum, weight);
  for (std::int64_t n = 0; charges && n < nodes.num_local; n++)
    it.charges[nodes.atom[n]] += weight * it.descriptors[n * width + width - 1];
}

// Returns the last error of a member, about atoms by their IDs; `atoms` are those of the nodes.
std::string PairMDCG::engine_error(const Member &member, const std::vector<std::int32_t> &atoms)
{
  std::vector<std::int64_t> ids;
  for (const std::int32_t one : atoms)
    if (atom->tag_enable) ids.push_back(atom->tag[one]);
  return (impl->members.size() > 1 ? member.file + ": " : std::string()) +
         (ids.empty() ? impl->library->last_error() : impl->library->last_error_about(ids.data()));
}

// Evaluates one member with its own types and inputs. Collective.
void PairMDCG::run_engine(Member &member, const Nodes &nodes, mdcg_system system,
                          Exchange &exchange, const mdcg_results &results)
{
  Impl &it = *impl;
  system.types = member.types.data();
  member.list.shifts = 0;    // the shifts change with the box
  system.list = &member.list;
  if (!member.inputs.empty()) system.inputs = member.inputs.data();
  if (member.info.is_long_range) {    // the sum reads the box
    system.cell = nodes.box.data();
    system.periodic = nodes.periodic.data();
  }
  mdcg_communicator communicator = exchange.communicator();
  if (it.device_to_device) exchange.add_peers(communicator, comm);
  // Other ranks may be waiting in an exchange, so an error on one rank aborts all of them.
  if (it.library->evaluate(member.model.get(), &system, comm->nprocs == 1 ? nullptr : &communicator,
                           &results) != MDCG_OK) {
    if (exchange.error) std::rethrow_exception(exchange.error);
    const std::string reason = "pair_style mdcg: " + engine_error(member, nodes.atom);
    if (comm->nprocs > 1) {    // launchers lose what a rank prints just before it aborts
      std::fprintf(stderr, "rank %d: %s\n", comm->me, reason.c_str());
      std::fflush(stderr);
      platform::usleep(200000);
    }
    error->one(FLERR, reason);
  }
}

// Returns how many descriptors an atom has in the first package. Dipoles and charges, which are the
// last, do not count.
int PairMDCG::num_descriptors() const
{
  const Member &first = impl->members.front();
  const int width = impl->library->descriptor_width(first.model.get());
  return width - 3 * first.info.has_dipoles - first.info.has_charges;
}

// Writes the descriptors of the first package to the rows [nlocal][num_descriptors()] of the atoms
// of a group that are part of the potential. Collective.
void PairMDCG::find_descriptors(int groupbit, double **rows)
{
  Impl &it = *impl;
  if (neighbors_changed()) update_graph();
  const mdcg_system system = system_of_members();
  Member &first = it.members.front();
  const std::int64_t width = it.library->descriptor_width(first.model.get());
  it.descriptors.resize(std::max<std::size_t>(it.nodes.num_local * width, 1));
  mdcg_results results{};
  results.size = sizeof(results);
  results.descriptors = it.descriptors.data();
  Exchange exchange{it.nodes.ghosts, it.nodes.num_local, 0.0, nullptr};
  run_engine(first, it.nodes, system, exchange, results);
  const int count = num_descriptors();
  for (std::int64_t n = 0; n < it.nodes.num_local; n++) {
    const int i = it.nodes.atom[n];
    if (atom->mask[i] & groupbit) std::copy_n(&it.descriptors[n * width], count, rows[i]);
  }
}

void PairMDCG::add_results(const Member &member, const Nodes &nodes, const double *sum,
                           double weight)
{
  Impl &it = *impl;
  const double unit = it.energy_unit * weight;
  static constexpr int PLACE[6] = {0, 4, 8, 1, 2, 5};    // xx yy zz xy xz yz
  for (std::int64_t n = 0; n < nodes.num_nodes; n++) {
    double *force = atom->f[nodes.atom[n]];
    for (int k = 0; k < 3; k++) force[k] += unit * member.forces[3 * n + k];
  }
  if (eflag_global) eng_vdwl += unit * member.energy;
  if (eflag_atom)
    for (std::int64_t n = 0; n < nodes.num_local; n++)
      eatom[nodes.atom[n]] += unit * it.energies[n];
  if (vflag_global)
    for (int k = 0; k < 6; k++) virial[k] += unit * sum[PLACE[k]];
  if (vflag_atom)
    for (std::int64_t n = 0; n < nodes.num_nodes; n++)
      for (int k = 0; k < 6; k++) vatom[nodes.atom[n]][k] += unit * it.virials[9 * n + PLACE[k]];
}

// Computes the standard deviations (of the population) of the energy and of each atom's force over
// a committee, by the same formula as the ASE calculator. The deviation of a force is the norm of
// the deviations of its components.
void PairMDCG::compute_deviations()
{
  Impl &it = *impl;
  const auto count = static_cast<double>(it.members.size());
  if (comm->nprocs > 1)    // forces of other ranks' ghosts are added to their owners
    for (Member &member : it.members) {
      auto *rows = reinterpret_cast<char *>(member.forces.data());
      it.nodes.ghosts.reverse(rows, rows + 3 * sizeof(double) * it.nodes.num_local, 3,
                              sizeof(double));
    }
  it.forces_std.assign(std::max(atom->nlocal, 1), 0.0);
  it.deviations_step = update->ntimestep;
  double largest = 0.0, total = 0.0;
  for (std::int64_t n = 0; n < it.nodes.num_local; n++) {
    double variance = 0.0;
    for (int k = 0; k < 3; k++) {
      double mean = 0.0;
      for (const Member &member : it.members) mean += member.forces[3 * n + k] / count;
      for (const Member &member : it.members) {
        const double difference = member.forces[3 * n + k] - mean;
        variance += difference * difference / count;
      }
    }
    const double deviation = it.energy_unit * std::sqrt(variance);
    it.forces_std[it.nodes.atom[n]] = deviation;
    largest = std::max(largest, deviation);
    total += deviation;
  }
  if (!eflag_global) return;
  std::vector<double> sums = {static_cast<double>(it.nodes.num_local), total};
  for (const Member &member : it.members) sums.push_back(member.energy);
  MPI_Allreduce(MPI_IN_PLACE, sums.data(), static_cast<int>(sums.size()), MPI_DOUBLE, MPI_SUM,
                world);
  MPI_Allreduce(MPI_IN_PLACE, &largest, 1, MPI_DOUBLE, MPI_MAX, world);
  double mean = 0.0, variance = 0.0;
  for (std::size_t m = 2; m < sums.size(); m++) mean += sums[m] / count;
  for (std::size_t m = 2; m < sums.size(); m++)
    variance += (sums[m] - mean) * (sums[m] - mean) / count;
  const double atoms = std::max(sums[0], 1.0);
  if (comm->me) return;    // compute pair adds the numbers of all ranks
  pvector[2] = it.energy_unit * std::sqrt(variance) / atoms;
  pvector[3] = largest;
  pvector[4] = sums[1] / atoms;
}

// Fix pair sets these flags before a step whose deviations or charges it will read.
void *PairMDCG::extract(const char *name, int &dim)
{
  dim = 0;
  if (std::strcmp(name, "forces_std_flag") == 0) return &impl->deviations_asked;
  if (std::strcmp(name, "charges_flag") == 0) return &impl->charges_asked;
  return nullptr;
}

// Fix pair reads this after a step. Its constructor calls it too, before anything is computed.
void *PairMDCG::extract_peratom(const char *name, int &columns)
{
  const bool charges = std::strcmp(name, "charges") == 0;
  if (!charges && std::strcmp(name, "forces_std") != 0) return nullptr;
  columns = 0;
  if (update->whichflag == 0) return nullptr;
  if (charges) {
    for (const Member &member : impl->members)
      if (!member.info.has_charges)
        error->all(FLERR,
                   "pair_style mdcg: fix pair reads charges, which {} does not have: name the "
                   "package of a model with latent charges in pair_coeff",
                   member.file);
    if (impl->charges_step != update->ntimestep)
      error->all(FLERR, "pair_style mdcg: fix pair reads charges of a step at which they were not "
                        "asked for: write charges 1 in place of charges 0");
    return impl->charges.data();
  }
  if (impl->members.size() < 2)
    error->all(FLERR, "pair_style mdcg: fix pair reads forces_std, which a single package does not "
                      "have: name two packages or more in pair_coeff");
  if (impl->deviations_step != update->ntimestep)
    error->all(FLERR, "pair_style mdcg: fix pair reads forces_std of a step at which the first "
                      "package alone was evaluated: write forces_std 1 in place of forces_std 0, "
                      "or committee mean");
  return impl->forces_std.data();
}

// ---- LAMMPS sends the ids of atoms to their ghosts through these ----

int PairMDCG::pack_forward_comm(int n, int *atoms, double *buf, int, int *)
{
  for (int k = 0; k < n; k++) buf[k] = impl->owner[atoms[k]];
  return n;
}

void PairMDCG::unpack_forward_comm(int n, int first, double *buf)
{
  for (int k = 0; k < n; k++) impl->owner[first + k] = buf[k];
}
