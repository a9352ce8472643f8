// SPDX-License-Identifier: GPL-2.0-only
#include "compute_mdcg_heat_flux.h"

#include <mpi.h>

#include <algorithm>
#include <string>
#include <vector>

#include "atom.h"
#include "comm.h"
#include "error.h"
#include "force.h"
#include "neigh_list.h"
#include "neighbor.h"
#include "pair_mdcg_impl.h"
#include "update.h"

using namespace LAMMPS_NS;

// The heat flux of Langer, Frank and Knoop, J. Chem. Phys. 159, 174105 (2023):
//     J = sum_i v_i E_i + sum_j v_j . d(sum_i r0_i U_i)/dr_j - sum_j r_j (v_j . d(sum_i U_i)/dr_j),
// where r0 are the positions held constant, i runs over the atoms of the group, and j over all
// atoms and images that send messages to them, in an open system.

ComputeMDCGHeatFlux::ComputeMDCGHeatFlux(LAMMPS *lmp, int narg, char **arg)
    : Compute(lmp, narg, arg)
{
  if (narg != 3)
    error->all(FLERR, "compute mdcg/heat/flux: got {} arguments, expected none", narg - 3);
  vector_flag = 1;
  size_vector = 6;
  extvector = 1;
  comm_forward = 3;
  vector = new double[size_vector]{};
}

ComputeMDCGHeatFlux::~ComputeMDCGHeatFlux()
{
  delete[] vector;
}

void ComputeMDCGHeatFlux::init()
{
  pair = dynamic_cast<PairMDCG *>(force->pair_match("mdcg", 1));
  if (!pair)
    error->all(FLERR, "compute mdcg/heat/flux: the pair style is {}, expected mdcg once",
               force->pair_style ? force->pair_style : "none");
  if (pair->impl->dispersion)
    error->all(FLERR, "compute mdcg/heat/flux: the pair style has dispersion, whose heat flux is "
                      "not implemented, expected pair_style mdcg without it");
  neighbor->add_request(this, NeighConst::REQ_FULL | NeighConst::REQ_GHOST);
}

void ComputeMDCGHeatFlux::init_list(int, NeighList *made)
{
  list = made;
}

// Makes an atom or ghost a node, if it is part of the potential.
void ComputeMDCGHeatFlux::add(int i)
{
  if (node[i] >= 0 || !pair->takes_part(i)) return;
  node[i] = static_cast<std::int32_t>(atoms.size());
  atoms.push_back(i);
}

// Returns the largest number of message layers of any member.
int ComputeMDCGHeatFlux::layers() const
{
  int most = 0;
  for (const PairMDCG::Member &member : pair->impl->members)
    most = std::max(most, member.info.num_exchanges);
  return most + 1;
}

// Makes the nodes and edges: follows edges backwards from the group's atoms, once for each layer.
void ComputeMDCGHeatFlux::unfold()
{
  const double r_max = pair->impl->r_max;
  const int layers = this->layers();
  node.assign(atom->nlocal + atom->nghost, -1);
  atoms.clear();
  sender.clear();
  receiver.clear();
  for (int i = 0; i < atom->nlocal; i++)
    if (atom->mask[i] & groupbit) add(i);
  num_own = static_cast<std::int64_t>(atoms.size());
  std::size_t begin = 0;
  for (int layer = 0; layer < layers; layer++) {
    const std::size_t end = atoms.size();
    for (std::size_t n = begin; n < end; n++) {
      const int i = atoms[n];
      const double *to = atom->x[i];
      for (int jj = 0; jj < list->numneigh[i]; jj++) {
        const int j = list->firstneigh[i][jj] & NEIGHMASK;
        const double *from = atom->x[j];
        double square = 0.0;
        for (int k = 0; k < 3; k++) square += (to[k] - from[k]) * (to[k] - from[k]);
        if (square > r_max * r_max) continue;
        add(j);
        if (node[j] < 0) continue;
        sender.push_back(node[j]);
        receiver.push_back(static_cast<std::int32_t>(n));
      }
    }
    begin = end;
  }
}

// Adds the flux to `flux`, and the energy that moving atoms carry to `carried`, both in the
// package's energy unit. Returns the reason if it fails, else an empty string.
std::string ComputeMDCGHeatFlux::evaluate(double *flux, double *carried)
{
  PairMDCG::Impl &it = *pair->impl;
  const std::size_t count = atoms.size();
  double centre[3] = {};    // subtracted, because smaller numbers lose fewer digits
  for (std::int64_t n = 0; n < num_own; n++)
    for (int k = 0; k < 3; k++) centre[k] += atom->x[atoms[n]][k] / static_cast<double>(num_own);
  positions.resize(3 * count);
  for (std::size_t n = 0; n < count; n++)
    for (int k = 0; k < 3; k++) positions[3 * n + k] = atom->x[atoms[n]][k] - centre[k];

  forces.resize(3 * count);
  energies.resize(count);
  weights.resize(count);
  mdcg_system system{};
  system.size = sizeof(system);
  system.num_local = system.num_nodes = static_cast<std::int64_t>(count);
  system.positions = positions.data();
  system.num_edges = static_cast<std::int64_t>(sender.size());
  system.sender = sender.data();
  system.receiver = receiver.data();
  system.energy_weights = weights.data();
  mdcg_results results{};
  results.size = sizeof(results);
  results.energies = energies.data();
  results.forces = forces.data();

  // the mean of a committee, or its first member
  const std::size_t members = it.first_only ? 1 : it.members.size();
  for (std::size_t m = 0; m < members; m++) {
    PairMDCG::Member &member = it.members[m];
    const double share = 1.0 / static_cast<double>(members);
    types.resize(count);
    for (std::size_t n = 0; n < count; n++) types[n] = member.kind[atom->type[atoms[n]]];
    system.types = types.data();
    mdcg_list edges{};
    system.list = &edges;
    if (!member.inputs.empty()) system.inputs = member.inputs.data();
    for (int pass = 0; pass < 4; pass++) {
      std::fill(weights.begin(), weights.end(), 0.0);
      for (std::int64_t n = 0; n < num_own; n++)
        weights[n] = pass == 0 ? 1.0 : positions[3 * n + pass - 1];
      if (it.library->evaluate(member.model.get(), &system, nullptr, &results) != MDCG_OK)
        return pair->engine_error(member, atoms);
      for (std::size_t n = 0; n < count; n++) {
        double power = 0.0;
        for (int k = 0; k < 3; k++)
          power += share * forces[3 * n + k] * velocities[3 * atoms[n] + k];
        if (pass > 0) flux[pass - 1] -= power;
        for (int k = 0; k < 3 && pass == 0; k++) flux[k] += positions[3 * n + k] * power;
      }
    }
    for (std::int64_t n = 0; n < num_own; n++)
      for (int k = 0; k < 3; k++) carried[k] += share * energies[n] * velocities[3 * atoms[n] + k];
  }
  return "";
}

void ComputeMDCGHeatFlux::compute_vector()
{
  pair->require_setup();
  invoked_vector = update->ntimestep;
  const PairMDCG::Impl &it = *pair->impl;
  if (pair->has_long_range_sum())
    error->all(FLERR,
               "compute mdcg/heat/flux: the model has a long-range sum, whose heat flux is not "
               "implemented, expected a model without one: remove this compute");
  const int layers = this->layers();
  const double depth = layers * it.r_max + neighbor->skin;
  if (comm->get_comm_cutoff() < depth * (1.0 - 1e-12))
    error->all(FLERR,
               "compute mdcg/heat/flux: ghosts are {:.8} Å deep, expected {:.8} Å ({} layers of "
               "messages over {:.8} Å, and the skin): use comm_modify cutoff {:.8}",
               comm->get_comm_cutoff(), depth, layers, it.r_max, depth);
  velocities.resize(3 * (atom->nlocal + atom->nghost));
  for (int i = 0; i < atom->nlocal; i++) std::copy_n(atom->v[i], 3, &velocities[3 * i]);
  comm->forward_comm(this);
  pair->check_bonds();
  unfold();
  double mine[6] = {};    // the flux, then the carried energy
  std::string reason;
  if (num_own > 0) reason = evaluate(mine, mine + 3);
  // Models of ranks with atoms of the group now hold other edges. All ranks must read theirs again.
  for (PairMDCG::Member &member : pair->impl->members) member.list = {};
  pair->all_or_none(FLERR, reason.empty() ? "" : "compute mdcg/heat/flux: " + reason);
  for (int k = 0; k < 6; k++) mine[k] *= it.energy_unit;
  for (std::int64_t n = 0; n < num_own; n++) {
    const int i = atoms[n];
    const double mass = atom->rmass ? atom->rmass[i] : atom->mass[atom->type[i]];
    const double *v = atom->v[i];
    const double kinetic = 0.5 * force->mvv2e * mass * (v[0] * v[0] + v[1] * v[1] + v[2] * v[2]);
    for (int k = 0; k < 3; k++) mine[3 + k] += kinetic * v[k];
  }
  for (int k = 0; k < 3; k++) mine[k] += mine[3 + k];
  MPI_Allreduce(mine, vector, 6, MPI_DOUBLE, MPI_SUM, world);
}

int ComputeMDCGHeatFlux::pack_forward_comm(int n, int *of, double *buf, int, int *)
{
  for (int k = 0; k < n; k++) std::copy_n(&velocities[3 * of[k]], 3, buf + 3 * k);
  return 3 * n;
}

void ComputeMDCGHeatFlux::unpack_forward_comm(int n, int first, double *buf)
{
  std::copy_n(buf, 3 * n, &velocities[3 * first]);
}

double ComputeMDCGHeatFlux::memory_usage()
{
  return mdcg_lammps::bytes_of(velocities, positions, forces, energies, weights, node, atoms, types,
                               sender, receiver);
}
